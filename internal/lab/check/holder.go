package check

import (
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// holder (I6): no node ID is held by two nodes at once, no ID changes hands before
// its quarantine is over, and a node's generations of one ID grow. A node holds an ID from when it says so
// until its process ends, it is reset, or it says that it has another one.
//
// The ID of the host may be held twice while the two are cut off from each other, and for the time
// of healing after that: neither can know better.
//
// It needs self events and process records.
type holder struct {
	judge
	held map[addr.NodeID][]claim
}

// A claim is a node's hold on an ID.
type claim struct {
	node        int
	incarnation *incarnation
	index       int
}

func (m *holder) see(i int, r *history.Record) {
	b, ok := r.Body.(*history.Event)
	if !ok || b.What != history.EventSelf {
		return
	}
	l := m.w.incarnations.get(b.Subject)
	claims := m.held[b.Subject.Node]
	for _, c := range claims {
		if c.incarnation == l && c.node == r.Source.Node {
			return // said by another source of the node, or again
		}
	}
	for _, c := range claims {
		m.against(c, i, r, b)
	}
	m.held[b.Subject.Node] = append(claims, claim{r.Source.Node, l, i})
	m.good()
}

// against judges a new claim beside an earlier one.
func (m *holder) against(c claim, i int, r *history.Record, b *history.Event) {
	proof := []int{c.index, i}
	switch {
	case c.incarnation.incarnation == b.Subject:
		m.fail(r.At, proof, "nodes %s and %s both have the incarnation %s", m.w.begin.NodeLabel(c.node), m.w.begin.NodeLabel(r.Source.Node), b.Subject)
	case c.node == r.Source.Node && c.incarnation.incarnation.Generation >= b.Subject.Generation:
		m.fail(r.At, proof, "node %s has %s after %s", m.w.begin.NodeLabel(c.node), b.Subject, c.incarnation.incarnation)
	case c.node != r.Source.Node && c.incarnation.gone > r.At && !m.excused(c.node, r.Source.Node, r.At):
		m.fail(r.At, proof, "node %s gets ID %d while node %s holds it", m.w.begin.NodeLabel(r.Source.Node), b.Subject.Node, m.w.begin.NodeLabel(c.node))
	case c.node != r.Source.Node && b.Subject.Node != addr.Host && r.At-c.incarnation.gone < int64(m.w.bound.Quarantine):
		m.fail(r.At, proof, "node %s gets ID %d, which node %s had: it is in quarantine", m.w.begin.NodeLabel(r.Source.Node), b.Subject.Node, m.w.begin.NodeLabel(c.node))
	}
}

// excused reports whether two nodes may both be the host: they are cut off from
// each other, or were a moment ago.
func (m *holder) excused(a, b int, at int64) bool {
	return slices.ContainsFunc(m.w.faults, func(f *fault) bool {
		return f.Cut && f.onWay(a, b) && f.begin <= at && (f.end == never || at <= f.end+m.w.within(m.w.bound.Heal))
	})
}
