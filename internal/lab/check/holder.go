package check

import (
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// holder (I6): no node ID is held by two slots at once, no ID changes hands before
// its quarantine is over, and a slot's generations of one ID grow. A slot holds an ID from when it says so
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

// A claim is a slot's hold on an ID.
type claim struct {
	slot        int
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
		if c.incarnation == l && c.slot == r.Source.Slot {
			return // said by another source of the slot, or again
		}
	}
	for _, c := range claims {
		m.against(c, i, r, b)
	}
	m.held[b.Subject.Node] = append(claims, claim{r.Source.Slot, l, i})
	m.good()
}

// against judges a new claim beside an earlier one.
func (m *holder) against(c claim, i int, r *history.Record, b *history.Event) {
	proof := []int{c.index, i}
	switch {
	case c.incarnation.incarnation == b.Subject:
		m.fail(r.At, proof, "slots %s and %s both have the incarnation %s", m.w.begin.Slot(c.slot), m.w.begin.Slot(r.Source.Slot), b.Subject)
	case c.slot == r.Source.Slot && c.incarnation.incarnation.Generation >= b.Subject.Generation:
		m.fail(r.At, proof, "slot %s has %s after %s", m.w.begin.Slot(c.slot), b.Subject, c.incarnation.incarnation)
	case c.slot != r.Source.Slot && c.incarnation.gone > r.At && !m.excused(c.slot, r.Source.Slot, r.At):
		m.fail(r.At, proof, "slot %s gets ID %d while slot %s holds it", m.w.begin.Slot(r.Source.Slot), b.Subject.Node, m.w.begin.Slot(c.slot))
	case c.slot != r.Source.Slot && b.Subject.Node != addr.Host && r.At-c.incarnation.gone < int64(m.w.bound.Quarantine):
		m.fail(r.At, proof, "slot %s gets ID %d, which slot %s had: it is in quarantine", m.w.begin.Slot(r.Source.Slot), b.Subject.Node, m.w.begin.Slot(c.slot))
	}
}

// excused reports whether two slots may both be the host: they are cut off from
// each other, or were a moment ago.
func (m *holder) excused(a, b int, at int64) bool {
	return slices.ContainsFunc(m.w.faults, func(f *fault) bool {
		return f.Cut && f.onWay(a, b) && f.begin <= at && (f.end == never || at <= f.end+m.w.within(m.w.bound.Heal))
	})
}
