package check

import (
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// agreement (I6): an incarnation has one UUID, whichever node tells of it, and a UUID one incarnation
// at a time; and when everything has been well for the time of healing, every
// application of a running slot knows exactly the incarnations that the running slots
// have.
//
// It needs event and view records; the second half only runs whose faults are
// over early enough.
type agreement struct {
	judge
	uuid map[addr.Incarnation]stamped[addr.UUID]
	view map[history.Source]map[addr.NodeID]addr.Generation
	last map[history.Source]int
}

func newAgreement(w *world) *agreement {
	return &agreement{judge{w: w, j: Judgement{Name: "agreement", Rows: "I6", Claim: "everybody has the same map of IDs once it is quiet"}},
		map[addr.Incarnation]stamped[addr.UUID]{}, map[history.Source]map[addr.NodeID]addr.Generation{}, map[history.Source]int{}}
}

func (m *agreement) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Event:
		m.identity(i, r, b.Subject, b.UUID)
		m.event(i, r, b)
	case *history.View:
		view := map[addr.NodeID]addr.Generation{}
		for _, x := range b.Live {
			m.identity(i, r, x.Incarnation, x.UUID)
			if x.Incarnation != b.Observer {
				view[x.Incarnation.Node] = x.Incarnation.Generation
			}
		}
		m.view[r.Source], m.last[r.Source] = view, i
	}
}

// identity holds an incarnation to its UUID.
func (m *agreement) identity(i int, r *history.Record, l addr.Incarnation, uuid addr.UUID) {
	if uuid.IsZero() {
		return
	}
	known, ok := m.uuid[l]
	if !ok {
		m.uuid[l] = stamped[addr.UUID]{r.At, i, uuid}
		return
	}
	if known.v != uuid {
		m.fail(r.At, []int{known.index, i}, "%s is %s and %s", l, known.v, uuid)
	}
}

func (m *agreement) event(i int, r *history.Record, b *history.Event) {
	view := m.view[r.Source]
	if view == nil || b.What == history.EventReset {
		view = map[addr.NodeID]addr.Generation{}
		m.view[r.Source] = view
	}
	switch b.What {
	case history.EventSelf:
		s := m.w.sessions[r.Source]
		if slices.ContainsFunc(s.self, func(x stamped[addr.Incarnation]) bool { return x.index == i }) { // another incarnation than before
			clear(view)
		}
	case history.EventAdded:
		view[b.Subject.Node] = b.Subject.Generation
	case history.EventRemoved:
		if view[b.Subject.Node] == b.Subject.Generation {
			delete(view, b.Subject.Node)
		}
	default:
		return
	}
	m.last[r.Source] = i
}

func (m *agreement) finish() {
	end := m.w.finish()
	quiet := m.w.lastEnd()
	if quiet == never || end < quiet+m.w.within(m.w.bound.Heal) {
		return
	}
	want := map[addr.NodeID]addr.Generation{}
	for slot := range m.w.slots {
		if l := m.w.current(slot, end); l != nil && m.w.runs(slot, quiet, end) {
			want[l.incarnation.Node] = l.incarnation.Generation
		}
	}
	for _, source := range inOrder(m.last) {
		m.same(source, m.view[source], want, end)
	}
}

// same holds one source to the map that everybody must have.
func (m *agreement) same(source history.Source, view, want map[addr.NodeID]addr.Generation, end int64) {
	own := m.w.current(source.Slot, end)
	heal := end - m.w.within(m.w.bound.Heal)
	if own == nil || own.born > heal || !m.w.alive(source, heal, end) || !m.w.runs(source.Slot, heal, end) {
		return
	}
	s := m.w.sessions[source]
	if s == nil || len(s.self) == 0 || s.self[len(s.self)-1].v != own.incarnation {
		return // it attached to no incarnation, or has not yet noticed that it has another
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		generation := want[id]
		if id != own.incarnation.Node {
			m.unless(view[id] == generation, end, []int{m.last[source]}, "%s after the last fault, %s knows node %d as generation %d, but it is %d",
				time.Duration(end-m.w.lastEnd()), source, id, view[id], generation)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(view)) {
		generation := view[id]
		if want[id] == 0 && id != own.incarnation.Node {
			m.fail(end, []int{m.last[source]}, "%s after the last fault, %s knows %s, which nobody has",
				time.Duration(end-m.w.lastEnd()), source, addr.Incarnation{Node: id, Generation: generation})
		}
	}
}
