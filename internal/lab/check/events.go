package check

import (
	"cmp"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// events (I5): the notices about nodes at one source make sense: for each incarnation at most one ADDED
// and then at most one REMOVED; the REMOVED of a generation comes before the ADDED of the next;
// generations only grow; no notice is of an incarnation that the source did not know, nor of its own
// incarnation as of another one's.
//
// A source that gets a new incarnation of its own begins anew: it knows nothing, and is
// notified of every live peer again. It needs event and view records.
type events struct {
	judge
	seen table[history.Source, audience]
}

// An audience is one source as it is notified of nodes.
type audience struct {
	self   addr.Incarnation
	viewAt int64
	nodes  table[addr.NodeID, knownNode]
}

// A knownNode is a source's knowledge of one ID.
type knownNode struct {
	id        addr.NodeID
	live      addr.Generation // 0: none
	liveAt    int             // record
	byEvent   bool            // it was added, not only seen in a view
	highest   addr.Generation // ever live
	removed   addr.Generation // highest that was removed
	removedAt int
	// before is the generation that was live when the source got a new incarnation: an event that was
	// under way may still bring its end.
	before addr.Generation
	// forgiven is one of which that was so.
	forgiven addr.Generation
}

func (m *events) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.View:
		m.view(i, r, b)
	case *history.Event:
		a := m.audience(r.Source)
		switch b.What {
		case history.EventSelf:
			if a.self != b.Subject {
				m.unless(a.self.Node != b.Subject.Node || a.self.Generation < b.Subject.Generation, r.At, []int{i}, "%s has the incarnation %s after %s", r.Source, b.Subject, a.self)
				a.renew(b.Subject)
			}
		case history.EventReset:
			a.renew(addr.Incarnation{})
		case history.EventAdded:
			m.added(i, r, b, a)
		case history.EventRemoved:
			m.lost(i, r, b, a)
		}
	}
}

func (m *events) audience(s history.Source) *audience { return m.seen.of(s, audience{}) }

// renew begins anew with another own incarnation, of which an application asks again for the nodes.
func (a *audience) renew(self addr.Incarnation) {
	a.self, a.viewAt = self, 0
	for _, n := range a.nodes.list {
		*n = knownNode{id: n.id, removedAt: -1, liveAt: n.liveAt, before: cmp.Or(n.live, n.before)}
	}
}

func (a *audience) node(id addr.NodeID) *knownNode {
	return a.nodes.of(id, knownNode{id: id, liveAt: -1, removedAt: -1})
}

// view replaces the knowledge from events. Incarnations that it has are known without having been added;
// those that it lacks are gone without a notice.
func (m *events) view(i int, r *history.Record, b *history.View) {
	a := m.audience(r.Source)
	a.viewAt = r.At
	has := map[addr.NodeID]bool{}
	for _, member := range b.Live {
		l := member.Incarnation
		m.unless(!has[l.Node], r.At, []int{i}, "the view of %s has node %d twice", r.Source, l.Node)
		has[l.Node] = true
		if l == b.Observer {
			continue
		}
		n := a.node(l.Node)
		m.unless(n.removed < l.Generation, r.At, []int{n.removedAt, i}, "the view of %s has %s, whose end it was notified of", r.Source, l)
		if n.live != l.Generation {
			n.live, n.liveAt, n.byEvent, n.forgiven = l.Generation, i, false, 0
		}
		n.highest = max(n.highest, l.Generation)
	}
	for _, n := range a.nodes.list {
		if !has[n.id] {
			n.live = 0
		}
	}
}

func (m *events) added(i int, r *history.Record, b *history.Event, a *audience) {
	l := b.Subject
	n := a.node(l.Node)
	proof := []int{n.liveAt, n.removedAt, i}
	switch {
	case l == a.self:
		m.fail(r.At, proof, "%s is notified that its own incarnation %s was added", r.Source, l)
	case n.live == l.Generation && n.byEvent:
		m.fail(r.At, proof, "%s is notified twice that %s was added", r.Source, l)
	case n.live == l.Generation && r.At > a.viewAt+m.w.order():
		m.fail(r.At, proof, "%s is notified that %s was added, which it knew", r.Source, l)
	case n.live != 0 && n.live != l.Generation:
		m.fail(r.At, proof, "%s is notified that %s was added before generation %d was removed", r.Source, l, n.live)
	case l.Generation <= n.removed:
		m.fail(r.At, proof, "%s is notified that %s was added after generation %d was removed", r.Source, l, n.removed)
	case l.Generation < n.highest:
		m.fail(r.At, proof, "%s is notified that %s was added after generation %d", r.Source, l, n.highest)
	default:
		m.good()
	}
	n.live, n.liveAt, n.byEvent, n.forgiven = l.Generation, i, true, 0
	n.highest = max(n.highest, l.Generation)
}

func (m *events) lost(i int, r *history.Record, b *history.Event, a *audience) {
	l := b.Subject
	n := a.node(l.Node)
	proof := []int{n.liveAt, n.removedAt, i}
	switch {
	case l == a.self:
		m.fail(r.At, proof, "%s is notified that its own incarnation %s was removed", r.Source, l)
	case l.Generation <= n.removed || l.Generation == n.forgiven:
		m.fail(r.At, proof, "%s is notified twice that %s was removed", r.Source, l)
	case a.viewAt == 0 && r.Source.Role == history.RoleApp: // it has not asked for the nodes yet
		m.good()
	case n.live != l.Generation && n.before != l.Generation && r.At > a.viewAt+m.w.order():
		m.fail(r.At, proof, "%s is notified that %s was removed, which it did not know", r.Source, l)
	default:
		m.good()
	}
	ofBefore := r.Source.Role == history.RoleApp && a.viewAt == 0 && n.live != l.Generation && n.before == l.Generation
	n.before = 0
	if ofBefore { // in its new incarnation the source may meet a node of whose end it was notified in the one before
		n.forgiven = l.Generation
		return
	}
	if n.live == l.Generation {
		n.live = 0
	}
	n.removed, n.removedAt = max(n.removed, l.Generation), i
}
