package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestARunWhoseLabStoodStillIsInDoubt has an observer notified late of a loss, in a run
// that is judged as one of processes. A stall of the lab at that time, as long as the
// delay, explains it: the verdict is that nothing can be said.
func TestARunWhoseLabStoodStillIsInDoubt(t *testing.T) {
	l, err := OpenLab(scenario.Sim)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sc := decode(t, head+"timeline: [{at: 2s, node: {id: 2, do: kill, for: 4s}}]\nexpect: [{removed: {node: 2, at: [0, 1], within: 1s}}]\n")
	out := Once(t.Context(), l, sc.Resolve(5), &Options{})
	if out.Verdict() != report.Green {
		t.Fatalf("%v: %v", out.Verdict(), out.Problems())
	}
	const slack = 500 * time.Millisecond
	for _, tt := range []struct {
		name        string
		late, still time.Duration // beyond the bound; before the observer is notified
		at          time.Duration // when the lab went on, from the bound on
		want        report.Verdict
	}{
		{"in time", -100 * time.Millisecond, 700 * time.Millisecond, 0, report.Green},
		{"late", 300 * time.Millisecond, 0, 0, report.Broken},
		{"late while the lab stood still", 300 * time.Millisecond, 400 * time.Millisecond, 200 * time.Millisecond, report.Harness},
		{"later than the lab stood still", 300 * time.Millisecond, 250 * time.Millisecond, 200 * time.Millisecond, report.Broken},
		{"long after it", 300 * time.Millisecond, 400 * time.Millisecond, 5 * time.Second, report.Broken},
	} {
		records := slices.Clone(out.Records)
		records[0].Body = withLab(records[0].Body, scenario.Local)
		i := slices.IndexFunc(records, func(r history.Record) bool {
			b, ok := r.Body.(*history.Event)
			return ok && b.What == history.EventRemoved && r.Source == history.App(1, 1)
		})
		killed := slices.IndexFunc(records, func(r history.Record) bool {
			b, ok := r.Body.(*history.Fault)
			return ok && b.What == "node kill"
		})
		bound := records[killed].At + int64(time.Second+slack)
		records[i].At = bound + int64(tt.late)
		if tt.still > 0 {
			records = append(records, history.Record{At: bound + int64(tt.at), Source: history.Lab, Seq: 1 << 40, Body: &history.Stall{For: int64(tt.still)}})
		}
		slices.SortStableFunc(records, history.Compare)
		run := &Outcome{Schedule: out.Schedule, Lab: scenario.Local, Records: records}
		run.judge(sc)
		if run.Verdict() != tt.want {
			t.Errorf("%s: %v, want %v: %v", tt.name, run.Verdict(), tt.want, run.Problems())
		}
	}
}

// withLab returns the begin of a run as of another lab.
func withLab(b history.Body, l scenario.Lab) history.Body {
	begin := *b.(*history.Begin)
	begin.Lab = string(l)
	return &begin
}
