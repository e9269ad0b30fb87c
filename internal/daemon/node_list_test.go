package daemon

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/membership"
)

// TestTheLastIncarnationIsNeverShownAsJoined follows a node that serves its machine alone
// until the host answers: at no moment its last incarnation is listed as one of the cluster.
func TestTheLastIncarnationIsNeverShownAsJoined(t *testing.T) {
	r := newNodeList()
	last, next := testNode(2, 10, "two"), testNode(2, 11, "two")
	for _, c := range []struct {
		kind  membership.EventKind
		node  membership.Node
		self  addr.Incarnation
		local bool
	}{
		{membership.EventLocal, last, last.Incarnation, true},
		{membership.EventSelf, next, next.Incarnation, false},
		{membership.EventReset, next, addr.Incarnation{Node: 2}, false},
		{membership.EventLocal, next, next.Incarnation, true},
		{membership.EventReset, next, addr.Incarnation{Node: 2}, false},
	} {
		r.apply(membership.Event{Kind: c.kind, Node: c.node}, time.Now())
		if self, local := r.own(); self != c.self || local != c.local {
			t.Errorf("after %v: %v, local %v; want %v, %v", c.kind, self, local, c.self, c.local)
		}
	}
}

// TestOneRecordHasWhatThePageAndEventsShow: the changes of a node's state are in it, what
// members change of themselves as often as they like is not, and the page has since when a
// node is suspect.
func TestOneRecordHasWhatThePageAndEventsShow(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newNodeList()
	r.record = flight.New(func() time.Time { return now })
	event := func(kind membership.EventKind, state membership.State, labels ...string) {
		n := testNode(2, 10, "two")
		n.State, n.Labels = state, labels
		r.apply(membership.Event{Kind: kind, Node: n, Reason: map[bool]membership.Reason{true: membership.ReasonSilent}[kind == membership.EventRemoved]}, now)
		now = now.Add(time.Second)
	}
	event(membership.EventAdded, membership.Alive)
	event(membership.EventUpdated, membership.Alive, "gpu")
	event(membership.EventUpdated, membership.Suspect)
	event(membership.EventUpdated, membership.Suspect, "gpu")
	d := &Daemon{nodeList: r, record: r.record}
	s := observe.Snapshot{Nodes: []observe.Node{{ID: 2, Generation: 10, State: "suspect"}}}
	d.observePast(&s)
	if !s.Nodes[0].Suspect.Equal(time.Unix(1002, 0)) {
		t.Errorf("suspect since %v", s.Nodes[0].Suspect)
	}
	event(membership.EventUpdated, membership.Alive)
	event(membership.EventRemoved, membership.Removed)
	d.observePast(&s)
	var page, events []string
	for _, e := range s.Events[len(s.Events)-4:] {
		page = append(page, e.Event+" "+e.Node+" "+e.Name+" "+e.Text)
	}
	for _, e := range d.Recorded(0, time.Time{}) {
		line := recordedEvent(e)
		events = append(events, line.Event+" "+line.Peer+" "+line.Detail)
	}
	wantPage := []string{"added 2.10 two ", "updated 2.10 two suspect", "updated 2.10 two alive", "removed 2.10 two silent"}
	wantEvents := []string{`added 2.10 "two"`, `updated 2.10 "two": suspect`, `updated 2.10 "two": alive`, `removed 2.10 "two": silent`}
	if !slices.Equal(page, wantPage) || !slices.Equal(events, wantEvents) || s.Removals["silent"] != 1 {
		t.Errorf("got %q and %q, %v removals; want %q and %q", page, events, s.Removals, wantPage, wantEvents)
	}
}
