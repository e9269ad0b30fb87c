package check_test

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestTimeToErrorIsOfWhatAFaultBreaks has calls end with a reset after a cut
// between nodes 1 and 2: one that the cut has caught, one on a connection that
// was made when the cut had begun, and one that its peer has closed.
func TestTimeToErrorIsOfWhatAFaultBreaks(t *testing.T) {
	for _, tt := range []struct {
		name         string
		late, closed bool
		want         int
	}{
		{"caught by the cut", false, false, 1},
		{"made behind it", true, false, 0},
		{"closed by the peer", false, true, 0},
	} {
		m := newModel(1, 4)
		var c *modelConn
		if !tt.late {
			c = m.connect(m.nodes[1], m.nodes[2])
		}
		m.now = max(m.now, sec)
		m.put(history.Lab, &history.Fault{ID: 1, What: "link cut", Ways: []history.Way{{From: []int{1}, To: []int{2}}}, Since: m.now, Harm: history.HarmReset, Cut: true})
		m.now += 500 * ms
		if tt.late {
			m.put(history.Lab, &history.FaultEnd{ID: 1, Fired: 1})
			c = m.connect(m.nodes[1], m.nodes[2])
		}
		began := m.now
		m.now += 4 * sec
		if tt.closed {
			m.put(m.app(c.server), &history.Closed{ConnEnd: c.end(history.Server), How: history.HowClose})
		}
		m.call++
		m.put(m.app(c.client), &history.Return{Status: "ECONNRESET",
			Call: history.Call{ID: m.call, Name: "recv", Began: began, Conn: c.nonce, Side: history.Client, Peer: addr.Incarnation{Node: 2, Generation: 1}, Idle: true}})
		s := modelScenario(4, "  - removals: {max: 0}\n")
		s.Figures = []scenario.FigureName{scenario.TimeToError}
		r := check.Run(m.records, s)
		if got := r.Figures[0]; got.Count != tt.want || tt.want == 1 && got.Max < 4*sec {
			t.Errorf("%s: %+v, want %d samples", tt.name, got, tt.want)
		}
	}
}

// TestTimeToRemovedIsWhatIsExpected: the figure counts from when the lab began to put
// the fault in place, the expectation from when it was, to the same observers. A fault
// of an observer between the loss and the word of it does not move the figure, nor do
// daemons, whose events come by another way; the slack is the expectation's alone.
func TestTimeToRemovedIsWhatIsExpected(t *testing.T) {
	const takes = 800 * ms // to put the fault in place
	for _, tt := range []struct {
		lab   scenario.Lab
		after int64 // to the word of the loss
		want  check.Verdict
	}{
		{scenario.Sim, takes + 1950*ms, check.Held},
		{scenario.Sim, takes + 2050*ms, check.Violated},
		{scenario.Local, takes + 2050*ms, check.Held},
		{scenario.Local, takes + 2550*ms, check.Violated},
		{scenario.Compose, takes + 2550*ms, check.Held},
	} {
		lab, after, want := tt.lab, tt.after, tt.want
		m := newModel(1, 4)
		m.records[0].Body.(*history.Begin).Lab = string(lab)
		m.now = max(m.now, sec)
		since, lost := m.now, m.nodes[3]
		m.now += takes
		m.put(history.Lab, &history.Fault{ID: 1, What: "node stop", Nodes: []int{3}, Since: since, Harm: history.HarmRemove})
		m.put(history.Lab, &history.Process{Target: m.daemon(lost), Did: history.DidStop})
		m.now = since + after - 100*ms
		m.put(history.Lab, &history.Fault{ID: 2, Step: 1, What: "node stop", Nodes: []int{1}, Harm: history.HarmRemove})
		m.put(history.Lab, &history.FaultEnd{ID: 2, Fired: 1})
		m.now = since + after
		for _, node := range []int{0, 1} {
			o := m.nodes[node]
			m.put(m.app(o), &history.Event{What: history.EventRemoved, Observer: o.incarnation, Subject: lost.incarnation, Reason: "silent"})
		}
		m.now += 2 * sec
		m.put(m.daemon(m.nodes[0]), &history.Event{What: history.EventRemoved, Observer: m.nodes[0].incarnation, Subject: lost.incarnation, Reason: "silent"})
		m.now += 10 * sec
		m.put(history.Lab, &history.End{Complete: true})

		s := modelScenario(4, "  - removed: {node: 3, at: [0, 1], within: 2s}\n")
		s.Figures = []scenario.FigureName{scenario.TimeToRemoved}
		r := check.Run(m.records, s)
		got := r.Figures[0]
		if got.Of != "node stop" || got.Count != 2 || got.Min < after || got.Max > after+ms {
			t.Errorf("%s: time to removed is %+v, want 2 of %v after the stop", lab, got, time.Duration(after))
		}
		if e := r.Expectations[0]; e.Verdict != want {
			t.Errorf("%s: notified %v after the fault within 2s and slack of %v: %s, want %s", lab, time.Duration(after), lab.Slack().Time, e.Verdict, want)
		}
	}
}

// TestNodesCutOffTogetherAreNotifiedLater: two nodes that a partition leaves together do not miss each
// other while it lasts. Notices after its end are no time of detection; those across it are.
func TestNodesCutOffTogetherAreNotifiedLater(t *testing.T) {
	m := newModel(1, 4)
	m.now = max(m.now, sec)
	cut := m.now
	m.put(history.Lab, &history.Fault{ID: 1, What: "partition", Ways: []history.Way{{From: []int{0, 1}, To: []int{2, 3}}}, Since: cut, Harm: history.HarmRemove})
	notified := func(observer, lost int, at int64) {
		m.now = cut + at
		m.put(m.app(m.nodes[observer]), &history.Event{What: history.EventRemoved, Observer: m.nodes[observer].incarnation, Subject: m.nodes[lost].incarnation, Reason: "silent"})
	}
	notified(0, 3, 2*sec)
	notified(1, 3, 2*sec)
	notified(2, 3, 8*sec)
	m.put(history.Lab, &history.FaultEnd{ID: 1, Fired: 1})
	m.put(history.Lab, &history.End{Complete: true})
	s := modelScenario(4, "")
	s.Figures = []scenario.FigureName{scenario.TimeToRemoved}
	if got := check.Run(m.records, s).Figures[0]; got.Count != 2 || got.Max > 2*sec+ms {
		t.Errorf("time to removed is %+v, want 2 of 2 s", got)
	}
}

// TestAFigureWithoutASampleSaysWhy: a run in which nothing happens has none of any figure.
func TestAFigureWithoutASampleSaysWhy(t *testing.T) {
	reasons := map[string]bool{}
	for _, harm := range []history.Harm{"", history.HarmNone, history.HarmRemove} {
		m := newModel(1, 3)
		if harm != "" {
			m.put(history.Lab, &history.Fault{ID: 1, What: "node stop", Nodes: []int{1}, Harm: harm})
			m.put(history.Lab, &history.FaultEnd{ID: 1, Fired: 1})
		}
		s := modelScenario(3, "  - removals: {max: 0}\n")
		s.Figures = scenario.FigureNames
		for _, f := range check.Run(m.records, s).Figures {
			if (f.Count == 0) != (f.Why != "") {
				t.Errorf("harm %q: %s has %d samples, and says %q", harm, f.Name, f.Count, f.Why)
			}
			reasons[f.Why] = true
		}
	}
	for _, want := range []string{"no application was notified that a node is lost because of a fault", "no connect succeeded"} {
		if !reasons[want] {
			t.Errorf("no figure says %q", want)
		}
	}
}
