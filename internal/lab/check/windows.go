package check

import "github.com/fabricd/fabricd/internal/lab/history"

// windows (I10): an operation that begins after its window is gone does not
// succeed, and every window that an operation names was registered before. That
// holds where the other end can know: not for a window that went with a
// connection that was cut off, whose other end may not know it yet.
//
// It needs window, unwindow, rma and rma_done records.
type windows struct {
	judge
	stale map[opKey]int // operations on windows that were gone: their records
	begun map[uint64]int
}

func (m *windows) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Window:
		first := recordOf(m.begun, b.ID)
		m.unless(first < 0, r.At, []int{first, i}, "window %d is registered twice", b.ID)
		m.begun[b.ID] = i
	case *history.RMA:
		x := m.w.windows.get(b.Window)
		if b.Window == 0 || x == nil {
			return
		}
		own := m.w.connEnd(x.ConnEnd) // it owned the window, and must not have been cut off
		if x.gone != never && x.gone+m.w.order() < r.At && (own.closed > r.At || own.orderly()) {
			m.stale[opKey{b.ConnEnd, b.Op}] = i
		} else {
			m.good()
		}
	case *history.RMADone:
		if began, stale := m.stale[opKey{b.ConnEnd, b.Op}]; stale {
			m.unless(b.Status != "", r.At, []int{began, i}, "connection %d: operation %d of the %s succeeds on a window that was gone", b.Conn, b.Op, b.Side)
		}
	}
}
