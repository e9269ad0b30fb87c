package check

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// fencing (I7): every word of a window is the window's own fill or was written by
// an operation of the other end of the window's own connection, of the incarnation that
// the connection is with, and one that had begun by then; and once the owner's
// end of the connection has ended, or the window is gone, no word changes any
// more.
//
// It needs window, opened, rma and scan records.
type fencing struct {
	judge
	after map[uint64]stamped[uint64] // hash of a window after its end
}

func (m *fencing) see(i int, r *history.Record) {
	b, ok := r.Body.(*history.Scan)
	if !ok {
		return
	}
	x := m.w.windows.get(b.ID)
	if x == nil {
		m.fail(r.At, []int{i}, "a scan of window %d, which was not registered", b.ID)
		return
	}
	m.unless(b.Unknown == 0, r.At, []int{i}, "%d words of window %d have no tag that was written", b.Unknown, b.ID)
	for _, writer := range b.Writers {
		m.writer(i, r, x, writer)
	}
	if m.w.connEnd(x.ConnEnd).closed >= r.At && x.gone >= r.At {
		return
	}
	first, again := m.after[b.ID]
	if !again {
		m.after[b.ID] = stamped[uint64]{r.At, i, b.Sum}
		return
	}
	m.unless(first.v == b.Sum, r.At, []int{first.index, i}, "window %d has changed after its end", b.ID)
}

// writer judges the writer of words of a window.
func (m *fencing) writer(i int, r *history.Record, x *window, by history.WindowWriter) {
	own := m.w.connEnd(x.ConnEnd)
	proof := []int{own.openIndex, i}
	peer := m.w.begun[x.Other()]
	switch {
	case by.Conn != x.Conn:
		m.fail(r.At, proof, "%d words of window %d of connection %d were written by connection %d of %s", by.Words, x.ID, x.Conn, by.Conn, by.Incarnation)
	case own.remote != addr.Incarnation{} && by.Incarnation != own.remote:
		m.fail(r.At, proof, "%d words of window %d were written by %s, but the connection is with %s", by.Words, x.ID, by.Incarnation, own.remote)
	case by.Last > peer.v:
		m.fail(r.At, append(proof, indexOf(peer)), "window %d has words of operation %d, but only %d had begun", x.ID, by.Last, peer.v)
	default:
		m.good()
	}
}
