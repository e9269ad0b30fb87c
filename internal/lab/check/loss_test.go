package check_test

import (
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// isolate cuts node 1 off from 2 to 7 s: both sides give each other up at 4.5 s, and the node is
// back with another incarnation at 7.5 s. meanwhile is called at 5 s.
func (m *model) isolate(meanwhile func()) {
	alone := m.nodes[1]
	others := m.others(alone)
	m.now = 2 * sec
	m.fault++
	id := m.fault
	m.put(history.Lab, &history.Fault{ID: id, Step: id - 1, What: "partition", Ways: []history.Way{{From: []int{1}, To: []int{0, 2, 3}}}, Harm: history.HarmRemove, Cut: true})
	m.now = 4500 * ms
	for _, c := range m.conns {
		if c.open && (c.client == alone || c.server == alone) {
			m.lose(c)
		}
	}
	m.deliver(0)
	m.call++
	m.put(m.app(alone), &ret{Call: history.Call{ID: m.call, Name: "send", Began: 2*sec + ms, Peer: m.nodes[2].incarnation}, Status: "ECONNRESET"})
	for _, o := range others {
		m.removed(alone, o)
		m.removed(o, alone)
	}
	m.now = 5 * sec
	alone.alive = false // nothing reaches it
	meanwhile()
	m.now = 7 * sec
	m.put(history.Lab, &history.FaultEnd{ID: id, Fired: 9, Proof: "dropped 9 packets"})
	m.now = 7500 * ms
	m.put(m.app(alone), &history.Event{What: history.EventReset, Observer: alone.incarnation, Subject: alone.incarnation, Reason: "partitioned"})
	m.rejoin(alone)
}

// removed notifies an observer that another node was removed.
func (m *model) removed(observer, of *modelNode) {
	m.put(m.app(observer), &history.Event{What: history.EventRemoved, Observer: observer.incarnation, Subject: of.incarnation, UUID: of.uuid, Reason: "silent"})
	delete(observer.knows, of.node)
}

// lateOf moves an observer's event of a kind about the last incarnation of node 2.
func lateOf(e *edit, node int, what history.EventKind, by int64) {
	i := find(e, -1, func(r rec, b *event) bool {
		return b.What == what && r.Source.Node == node && b.Subject.Node == 2
	})
	e.move(i, e.records[i].At+by)
}

// TestALossIsOfItsObserver has a node cut off for some seconds, which gives up nodes that go on,
// and another one killed and started again, after that or meanwhile. Only notices to an observer
// that was not cut off itself count.
func TestALossIsOfItsObserver(t *testing.T) {
	for _, tt := range []struct {
		name      string
		meanwhile bool // it is killed while node 1 is cut off
		spoil     func(e *edit)
		expect    string
		want      check.Verdict
	}{
		{"a loss after the isolation", false, nil, `removed: {node: 2, times: 1, within: 1s}`, check.Held},
		{"the others are late", false, func(e *edit) { lateOf(e, 3, history.EventRemoved, 2*sec) }, `removed: {node: 2, within: 1s}`, check.Violated},
		{"the one that was cut off is late", false, func(e *edit) { lateOf(e, 1, history.EventRemoved, 2*sec) }, `removed: {node: 2, within: 1s}`, check.Violated},
		{"it is late where it is named", false, func(e *edit) { lateOf(e, 1, history.EventRemoved, 2*sec) }, `removed: {node: 2, at: [1], within: 2s}`, check.Violated},
		{"a node that is named is notified of what it lost", false, nil, `removed: {node: [0, 3], at: [1], times: 1, within: 3s}`, check.Held},
		{"nobody else lost them", false, nil, `removed: {node: [0, 3]}`, check.NotExercised},
		{"who was cut off is lost", false, nil, `removed: {node: 1, times: 1, within: 3s}`, check.Held},
		{"who was cut off is lost late", false, nil, `removed: {node: 1, within: 2s}`, check.Violated},
		{"incarnations that were lost to the cluster", false, nil, `removals: {min: 2, max: 2}`, check.Held},
		{"errors of a caller that was cut off", false, nil, `errors: {to: 2, within: 1s}`, check.Held},
		{"errors of a caller that is named", false, nil, `errors: {to: 2, from: [1], within: 1s}`, check.Violated},
		{"a loss meanwhile", true, nil, `removed: {node: 2, times: 1, within: 1s}`, check.Held},
		{"a start meanwhile", true, nil, `added: {node: 2, times: 1, within: 1s}`, check.Held},
		{"a start that another one learns late", true, func(e *edit) { lateOf(e, 3, history.EventAdded, 2*sec) }, `added: {node: 2, within: 1s}`, check.Violated},
	} {
		m := newModel(1, 4)
		m.connect(m.nodes[1], m.nodes[2])
		kill := func() {
			m.die(m.nodes[2])
			m.now += 500 * ms
			m.start(m.nodes[2])
		}
		if tt.meanwhile {
			m.isolate(kill)
		} else {
			m.isolate(func() {})
			m.connect(m.nodes[0], m.nodes[2])
			m.now = 12 * sec
			kill()
		}
		e := newEdit(m.finish())
		if tt.spoil != nil {
			tt.spoil(e)
		}
		r := check.Run(e.done(), modelScenario(4, "  - "+tt.expect+"\n"))
		if got := r.Expectations[0].Verdict; got != tt.want || tt.want == check.Held && !r.OK() {
			t.Errorf("%s: %s, want %s\n%s", tt.name, got, tt.want, strings.Join(r.Problems(), "\n"))
		}
	}
}

// TestACallOutlivesWhatItsNodeLearnedBefore: a node that was cut off accepts a connection
// of one that it gave up then, before it is notified that the other one is there. A call that
// waits there is not late.
func TestACallOutlivesWhatItsNodeLearnedBefore(t *testing.T) {
	m := newModel(1, 4)
	m.connect(m.nodes[0], m.nodes[3])
	m.isolate(func() {})
	e := newEdit(m.finish())
	again := addr.Incarnation{Node: 1, Generation: 2}
	from2 := func(r rec, b *history.View) bool { return b.Observer == again }
	view := body[*history.View](e, find(e, 0, from2))
	view.Live = view.Live[:1] // it has met no other node yet
	i := find(e, 0, from2)
	call := history.Call{ID: 1 << 40, Name: "recv", Began: e.records[i].At, Conn: 77, Side: history.Server, Peer: addr.Incarnation{Node: 2, Generation: 1}, Idle: true}
	e.insert(i, history.App(1, 1), &call)
	e.insert(i+1, history.App(1, 1), &ret{Call: call})
	e.move(i+2, e.records[i].At+6*sec)
	if j, _ := check.Run(e.done(), nil).Invariant("no-hang"); j.Verdict != check.Held {
		t.Errorf("%s: %+v", j.Verdict, j.Violations)
	}
}
