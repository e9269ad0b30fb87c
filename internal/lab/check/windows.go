package check

import "github.com/fabricd/fabricd/internal/lab/history"

// windows (I10): an operation that begins after its window is gone does not
// succeed, and every window that an operation names was registered before. That
// holds where the other end can know: not for a window that went with a
// connection that was cut off, whose other end may not have heard of it.
//
// It needs window, unwindow, rma and rma_done records.
type windows struct {
	judge
	stale map[opKey]int // operations on windows that were gone: their records
	begun map[uint64]int
}

func newWindows(w *world) *windows {
	return &windows{judge{w: w, j: Judgement{Name: "windows", Rows: "I10", Claim: "a window that is gone takes no new operation"}}, map[opKey]int{}, map[uint64]int{}}
}

func (m *windows) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Window:
		first, twice := m.begun[b.ID]
		if !twice {
			first = -1
		}
		m.unless(!twice, r.At, []int{first, i}, "window %d is registered twice", b.ID)
		m.begun[b.ID] = i
	case *history.RMA:
		x := m.w.windows[b.Window]
		if b.Window == 0 || x == nil {
			return
		}
		if x.gone+m.w.order() < r.At && x.gone != never && m.inOrder(x, r.At) {
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

// inOrder reports whether the end that owned a window had not been cut off.
func (m *windows) inOrder(x *window, at int64) bool {
	c := m.w.conns[x.Conn]
	if c == nil {
		return true
	}
	own := c.ends[sideIndex(x.Side)]
	return own.closed > at || own.how == history.HowClose || own.how == history.HowEOF
}
