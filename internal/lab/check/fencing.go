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
	begun map[history.ConnEnd]stamped[uint64] // highest operation, by its initiator
	after map[uint64]stamped[uint64]          // hash of a window after its end
}

func newFencing(w *world) *fencing {
	return &fencing{judge{w: w, j: Judgement{Name: "fencing", Rows: "I7",
		Claim: "nothing of another generation, connection or window lands in a window, and nothing after its end"}},
		map[history.ConnEnd]stamped[uint64]{}, map[uint64]stamped[uint64]{}}
}

func (m *fencing) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.RMA:
		if b.Op > m.begun[b.ConnEnd].v {
			m.begun[b.ConnEnd] = stamped[uint64]{r.At, i, b.Op}
		}
	case *history.Scan:
		m.scan(i, r, b)
	}
}

func (m *fencing) scan(i int, r *history.Record, b *history.Scan) {
	x := m.w.windows[b.ID]
	if x == nil {
		m.fail(r.At, []int{i}, "a scan of window %d, which nobody registered", b.ID)
		return
	}
	m.unless(b.Unknown == 0, r.At, []int{i}, "%d words of window %d have no tag that anybody wrote", b.Unknown, b.ID)
	for _, writer := range b.Writers {
		m.writer(i, r, x, writer)
	}
	own := m.w.conns[x.Conn]
	ended := own != nil && own.ends[sideIndex(x.Side)].closed < r.At || x.gone < r.At
	if !ended {
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
	c := m.w.conns[x.Conn]
	proof := []int{i}
	remote := addr.Incarnation{}
	if c != nil {
		own := c.ends[sideIndex(x.Side)]
		proof, remote = []int{own.openIndex, i}, own.remote
	}
	peer := m.begun[x.Other()]
	switch {
	case by.Conn != x.Conn:
		m.fail(r.At, proof, "%d words of window %d of connection %d were written by connection %d of %s", by.Words, x.ID, x.Conn, by.Conn, by.Incarnation)
	case remote != addr.Incarnation{} && by.Incarnation != remote:
		m.fail(r.At, proof, "%d words of window %d were written by %s, but the connection is with %s", by.Words, x.ID, by.Incarnation, remote)
	case by.Last > peer.v:
		m.fail(r.At, append(proof, indexOf(peer)), "window %d has words of operation %d, but only %d had begun", x.ID, by.Last, peer.v)
	default:
		m.good()
	}
}
