package check

import (
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// agreement (I6): an incarnation has one UUID, whichever node reports it, and a UUID one incarnation
// at a time; and when everything has been well for the time of healing, every
// application of a running node knows exactly the incarnations that the running nodes
// have.
//
// It needs event and view records; the second half only runs whose faults are
// over early enough.
type agreement struct {
	judge
	uuid map[addr.Incarnation]stamped[addr.UUID]
}

func (m *agreement) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Event:
		m.identity(i, r, b.Subject, b.UUID)
	case *history.View:
		for _, x := range b.Live {
			m.identity(i, r, x.Incarnation, x.UUID)
		}
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

func (m *agreement) finish() {
	end := m.w.finish()
	quiet := m.w.lastEnd()
	if quiet == never || end < quiet+m.w.within(m.w.bound.Heal) {
		return
	}
	want := map[addr.NodeID]addr.Generation{}
	for _, s := range m.w.nodes.list {
		if l := m.w.current(s.id, end); l != nil && m.w.runs(s.id, quiet, end) {
			want[l.incarnation.Node] = l.incarnation.Generation
		}
	}
	for _, s := range m.w.sessions.list {
		if s.liveAt >= 0 {
			m.same(s, want, end)
		}
	}
}

// same holds one source to the map that all nodes must have.
func (m *agreement) same(s *session, want map[addr.NodeID]addr.Generation, end int64) {
	own := m.w.current(s.source.Node, end)
	heal := end - m.w.within(m.w.bound.Heal)
	if own == nil || own.born > heal || !m.w.alive(s.source, heal, end) || !m.w.runs(s.source.Node, heal, end) {
		return
	}
	if len(s.self) == 0 || s.self[len(s.self)-1].v != own.incarnation {
		return // it attached to no incarnation, or has not yet noticed that it has another
	}
	after, proof := time.Duration(end-m.w.lastEnd()), []int{s.liveAt}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if id != own.incarnation.Node {
			m.unless(s.live[id] == want[id], end, proof, "%s after the last fault, %s knows node %d as generation %d, but it is %d",
				after, s.source, id, s.live[id], want[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.live)) {
		if want[id] == 0 && id != own.incarnation.Node {
			m.fail(end, proof, "%s after the last fault, %s knows %s, which no node has", after, s.source, addr.Incarnation{Node: id, Generation: s.live[id]})
		}
	}
}
