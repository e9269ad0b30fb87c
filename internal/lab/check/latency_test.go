package check_test

import (
	"fmt"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// waited is a history in which node 3 of 4 is stopped at 1 s, and node 1 waits
// for fences of node 0, and node 3 for such of node 0, before and since.
func waited(before, since, stopped int64, count int, status string) []history.Record {
	m := newModel(1, 4)
	near, far := m.connect(m.nodes[1], m.nodes[0]), m.connect(m.nodes[3], m.nodes[0])
	wait := func(c *modelConn, ns int64, status string) {
		m.call++
		call := history.Call{ID: m.call, Name: "fence_wait", Began: m.now, Conn: c.nonce, Side: history.Client, Peer: c.sl}
		m.now += ns
		m.put(m.app(c.client), &history.Return{Call: call, Status: status})
	}
	for range count {
		wait(near, before, "")
		wait(far, before, "")
	}
	m.now = max(m.now, sec)
	m.put(history.Lab, &history.Fault{ID: 1, What: "node stop", Nodes: []int{3}, Since: m.now, Harm: history.HarmRemove})
	for range count {
		wait(near, since, status)
		wait(far, stopped, "")
	}
	m.put(history.Lab, &history.FaultEnd{ID: 1, Fired: 1})
	m.now += sec
	return m.finish()
}

func TestLatencyOfOthers(t *testing.T) {
	for _, tt := range []struct {
		expect                 string
		before, since, stopped int64
		count                  int
		status                 string
		want                   check.Verdict
	}{
		{"p99: 20ms", ms, ms, ms, 50, "", check.Held},
		{"p99: 20ms", ms, 30 * ms, ms, 50, "", check.Violated},
		{"p99: 20ms", 30 * ms, ms, ms, 50, "", check.Held},          // it is about the time since
		{"p99: 20ms", ms, ms, sec, 50, "", check.Held},              // an end that waits for the stopped one is no other
		{"p99: 20ms", ms, ms, ms, 19, "", check.NotExercised},       // too few for a percentile
		{"p99: 20ms", ms, ms, ms, 50, "EINTR", check.NotExercised},  // failures have no latency
		{"times: 5", ms, 4 * ms, sec, 50, "", check.Held},           //
		{"times: 5", ms, 6 * ms, sec, 50, "", check.Violated},       //
		{"times: 5, p99: 3ms", ms, 4 * ms, sec, 50, "", "violated"}, // both hold
	} {
		name := fmt.Sprintf("%s, %d before, %d since, %d of each %s", tt.expect, tt.before, tt.since, tt.count, tt.status)
		r := check.Run(waited(tt.before, tt.since, tt.stopped, tt.count, tt.status), modelScenario(4, "  - latency: {among: [0, 1, 2], "+tt.expect+"}\n"))
		if j := r.Expectations[0]; j.Verdict != tt.want || j.Name != "latency" {
			t.Errorf("%s: %+v, want %s", name, j, tt.want)
		}
	}
}

// TestLatencyFigure shows latencies before and since the first fault, of the
// others only.
func TestLatencyFigure(t *testing.T) {
	s := modelScenario(4, "  - latency: {among: [0, 1, 2], p99: 1s}\n")
	s.Figures = []scenario.FigureName{scenario.Latency}
	r := check.Run(waited(ms, 4*ms, sec, 50, ""), s)
	got := map[string]check.Figure{}
	for _, f := range r.Figures {
		got[f.Of] = f
	}
	before, since := got["fence_wait, before"], got["fence_wait, since the first fault"]
	if before.Count != 50 || before.P99 < ms || before.P99 > 2*ms || since.Count != 50 || since.P99 < 4*ms || since.Max > 5*ms {
		t.Errorf("before %+v, since %+v", before, since)
	}
	if first := got["first message, before"]; first.Count != 1 { // of the two connections, one is of a stopped node
		t.Errorf("first messages: %+v", got)
	}
}
