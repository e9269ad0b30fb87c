package check_test

import (
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestProcessorTimeIsHeldToItsShare gives the daemons of a history processor time: the first three
// 2 % of the elapsed time, the last one 10 %.
func TestProcessorTimeIsHeldToItsShare(t *testing.T) {
	records := oneLoss()
	for i := range records {
		b, ok := records[i].Body.(*history.Resources)
		if !ok || b.Target.Role != history.RoleDaemon {
			continue
		}
		part := int64(50)
		if b.Target.Node == 2 {
			part = 10
		}
		b.UsedAt = records[i].At
		b.Used = 1000*ms + b.UsedAt/part // the time of the start is not counted
	}
	for _, tt := range []struct {
		expect string
		want   check.Verdict
	}{
		{`cpu: {nodes: [0, 1], most: 2.1%}`, check.Held},
		{`cpu: {nodes: [0, 1], most: 1.9%}`, check.Violated},
		{`cpu: {nodes: [0, 1, 2], most: 9%}`, check.Violated},
		{`cpu: {nodes: 2, most: 11%}`, check.Held},
		{`cpu: {nodes: 3, most: 100%}`, check.NotExercised}, // it was started anew
	} {
		r := check.Run(records, modelScenarioOn(scenario.Local, 4, "  - "+tt.expect+"\n"))
		if len(r.Expectations) != 1 || r.Expectations[0].Verdict != tt.want {
			t.Errorf("%s: %+v, want %s", tt.expect, r.Expectations, tt.want)
		}
	}
	_, err := scenario.Decode("s.yaml", []byte(`version: 1
name: s
on: [sim]
cluster: {nodes: 2}
duration: 1s
expect:
  - cpu: {nodes: all, most: 2%}
`))
	if err == nil || !strings.Contains(err.Error(), "s.yaml:7:") {
		t.Errorf("on virtual time: %v", err)
	}
}
