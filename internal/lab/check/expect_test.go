package check_test

import (
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// oneLoss is a history in which node 3 of 4 dies at 1 s and is back at 2 s.
func oneLoss() []history.Record {
	m := newModel(1, 4)
	a := m.connect(m.nodes[0], m.nodes[1])
	m.connect(m.nodes[1], m.nodes[3])
	for m.now < sec {
		m.talk(a)
		m.now += 10 * ms
	}
	m.die(m.nodes[3])
	for m.now < 2*sec {
		m.talk(a)
		m.now += 10 * ms
	}
	m.start(m.nodes[3])
	for m.now < 3*sec {
		m.talk(a)
		m.now += 10 * ms
	}
	if a.received < a.sent {
		m.put(m.app(a.server), &history.Received{ConnEnd: a.end(history.Server), Range: history.Range{From: a.received, To: a.sent}})
		a.received = a.sent
	}
	return m.finish()
}

func TestExpectations(t *testing.T) {
	for _, tt := range []struct {
		expect string
		want   check.Verdict
	}{
		{`removed: {node: 3, times: 1, within: 1s, reason: crashed}`, check.Held},
		{`removed: {node: 3}`, check.Held},
		{`removed: {node: 3, at: [0, 2], within: 2s}`, check.Held},
		{`removed: {node: 3, times: 2}`, check.Violated},
		{`removed: {node: 3, within: 1ms}`, check.Violated},
		{`removed: {node: 3, reason: left}`, check.Violated},
		{`removed: {node: 3, p99: 1s}`, check.Held},
		{`removed: {node: 3, p99: 1us}`, check.Violated},
		{`removed: {node: 2, p99: 1s}`, check.NotExercised},
		{`removed: {node: 2}`, check.NotExercised},
		{`removed: {node: 2, times: 1}`, check.Violated},
		{`added: {node: 3, times: 1, within: 1s}`, check.Held},
		{`added: {node: 3, within: 1s, after: last}`, check.Held},
		{`added: {node: 3, times: 2}`, check.Violated},
		{`added: {node: 2}`, check.NotExercised},
		{`errors: {to: 3, within: 1s, status: [ECONNRESET, ENODEV]}`, check.Held},
		{`errors: {to: 3, status: [ENODEV]}`, check.Violated},
		{`errors: {to: 3, p99: 1s}`, check.Held},
		{`errors: {to: 3, p99: 1us}`, check.Violated},
		{`errors: {to: 2}`, check.NotExercised},
		{`unharmed: {nodes: [0, 1, 2]}`, check.Held},
		{`unharmed: {nodes: all}`, check.Violated},
		{`removals: {min: 1, max: 1}`, check.Held},
		{`removals: {max: 0}`, check.Violated},
		{`removals: {min: 2, max: 3}`, check.Violated},
		{`mesh: {within: 1s}`, check.Held},
		{`mesh: {within: 1s, after: begin}`, check.Violated}, // it was broken since
		{`connects: {within: 5s}`, check.Held},
		{`connects: {within: 1ms}`, check.Violated},
		{`traffic: {among: [0, 1], stall: 500ms}`, check.Held},
		{`traffic: {among: [0, 1], stall: 1ms}`, check.Violated},
		{`traffic: {among: [0, 1], least: 1%}`, check.NotExercised}, // the fault is instant
		{`traffic: {among: [0, 2], stall: 1s}`, check.NotExercised},
		{`exits: {node: 3, within: 1s}`, check.NotExercised},
	} {
		r := check.Run(oneLoss(), modelScenario(4, "  - "+tt.expect+"\n"))
		if len(r.Expectations) != 1 || r.Expectations[0].Verdict != tt.want {
			t.Errorf("%s: got %+v, want %s", tt.expect, r.Expectations, tt.want)
			continue
		}
		j := r.Expectations[0]
		if !strings.HasPrefix(tt.expect, j.Name+":") || !strings.Contains(j.Claim, j.Name) || (j.Count > 0) != (tt.want == check.Violated) {
			t.Errorf("%s: named %q, claims %q, %d violations", tt.expect, j.Name, j.Claim, j.Count)
		}
		if r.OK() != (tt.want == check.Held) {
			t.Errorf("%s: %s, and the run is ok: %v", tt.expect, tt.want, r.OK())
		}
	}
}

func TestOthersAreThoseThatNoFaultTouches(t *testing.T) {
	s := modelScenario(4, "  - unharmed: {nodes: others}\n")
	s.Timeline = []scenario.Step{{At: scenario.At(1e9), Do: scenario.Do{Node: &scenario.Node{ID: scenario.NodesOf(3), Do: scenario.Kill}}}}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if r := check.Run(oneLoss(), s); !r.OK() || r.Expectations[0].Verdict != check.Held {
		t.Errorf("%+v", r.Expectations)
	}
	s.Timeline[0].Node.ID = scenario.NodesOf(2)
	if r := check.Run(oneLoss(), s); r.Expectations[0].Verdict != check.Violated {
		t.Errorf("node 3 is harmed, but %+v", r.Expectations)
	}
}

// TestStartThatIsReportedLate: a lab may write that a daemon was started only when it
// serves; the others know it by then.
func TestStartThatIsReportedLate(t *testing.T) {
	e := newEdit(oneLoss())
	i := find(e, -1, func(_ rec, p *history.Process) bool { return p.Did == history.DidStart })
	j := find(e, -1, isAdded)
	e.move(i, e.records[j].At+50*ms)
	s := modelScenario(4, "  - added: {node: 3, times: 1, within: 100ms}\n")
	s.Figures = []scenario.FigureName{scenario.TimeToAdded}
	r := check.Run(e.done(), s)
	if r.Expectations[0].Verdict != check.Held || r.Figures[0].Count != 3 || r.Figures[0].Max > 10*ms {
		t.Errorf("%+v, %+v", r.Expectations, r.Figures)
	}
}

// TestALossBeforeTheFirstLook: an application that attaches again is notified of losses from then on,
// and asks for the nodes a moment later: it may be notified of the end of an incarnation that it never saw. After
// its look it may not.
func TestALossBeforeTheFirstLook(t *testing.T) {
	for _, looked := range []bool{false, true} {
		m := newModel(1, 4)
		m.connect(m.nodes[0], m.nodes[1])
		m.now = sec
		m.die(m.nodes[3])
		m.start(m.nodes[3])
		m.now = 3 * sec
		e := newEdit(m.finish())
		look := find(e, -1, func(r rec, _ *history.View) bool { return r.Source == m.app(m.nodes[3]) && r.At > sec && r.At < 2*sec })
		i := look
		if !looked {
			i--
		}
		e.insert(i, m.app(m.nodes[3]), &history.Event{What: history.EventRemoved, Observer: m.nodes[3].incarnation, Subject: addr.Incarnation{Node: 9, Generation: 3}, Reason: "crashed"})
		want := check.Held
		if looked {
			e.move(i+1, e.records[i].At+sec/2)
			want = check.Violated
		}
		for _, j := range check.Run(e.done(), modelScenario(4, "")).Invariants {
			if j.Name == "events" && j.Verdict != want {
				t.Errorf("looked %v: %s: %+v", looked, j.Verdict, j)
			}
		}
	}
}

// TestANodeThatComesLaterIsNotLate: a node that comes back is notified of those that have been
// there for long, which says nothing of how fast news travels.
func TestANodeThatComesLaterIsNotLate(t *testing.T) {
	m := newModel(1, 4)
	m.connect(m.nodes[0], m.nodes[1])
	for i, n := range []int{3, 2, 3} {
		m.die(m.nodes[n])
		m.now += int64(i+1) * sec
		m.start(m.nodes[n])
		for _, o := range m.others(m.nodes[n]) {
			m.put(m.app(m.nodes[n]), &history.Event{What: history.EventAdded, Observer: m.nodes[n].incarnation, Subject: o.incarnation, UUID: o.uuid})
		}
		m.now += 5 * sec
	}
	s := modelScenario(4, "")
	s.Figures = []scenario.FigureName{scenario.TimeToAdded}
	f := check.Run(m.finish(), s).Figures[0]
	if f.Count != 9 || f.Max > 10*ms {
		t.Errorf("%d additions, the last after %d ns; want 9 at once", f.Count, f.Max)
	}
}

func TestExits(t *testing.T) {
	records := oneLoss()
	for i, r := range records {
		if p, ok := r.Body.(*history.Process); ok && p.Did == history.DidKill {
			records[i].Body = &history.Process{Target: p.Target, Did: history.DidTerminate}
			records = renumber(append(records[:i+1:i+1], append([]history.Record{{At: r.At + 2*sec/10, Source: history.Lab,
				Body: &history.Process{Target: p.Target, Did: history.DidExit}}}, records[i+1:]...)...))
			break
		}
	}
	for expect, want := range map[string]check.Verdict{
		`exits: {node: 3, within: 1s}`:          check.Held,
		`exits: {node: 3, within: 100ms}`:       check.Violated,
		`exits: {node: 3, within: 1s, code: 3}`: check.Violated,
	} {
		if r := check.Run(records, modelScenario(4, "  - "+expect+"\n")); r.Expectations[0].Verdict != want {
			t.Errorf("%s: %+v, want %s", expect, r.Expectations[0], want)
		}
	}
}

func TestFiguresCountFromTheFault(t *testing.T) {
	s := modelScenario(4, "")
	s.Figures = scenario.FigureNames
	r := check.Run(oneLoss(), s)
	got := map[scenario.FigureName]check.Figure{}
	for _, f := range r.Figures {
		if f.Of == "" || f.Of == "node kill" {
			got[f.Name] = f
		}
	}
	for name, count := range map[scenario.FigureName]int{
		scenario.TimeToRemoved: 3, scenario.TimeToError: 2, scenario.TimeToAdded: 3, scenario.TimeToMesh: 1, scenario.TimeToConnect: 4, scenario.Throughput: 1,
	} {
		f := got[name]
		if f.Count < count || f.Count != len(f.Samples) || f.Min > f.P50 || f.P50 > f.P99 || f.P99 > f.Max {
			t.Errorf("%s: %+v, want at least %d samples", name, f, count)
		}
	}
	if f := got[scenario.TimeToRemoved]; f.Min < ms || f.Max > 3*ms || f.Of != "node kill" {
		t.Errorf("the events came a good millisecond after the kill, but %+v", f)
	}
}
