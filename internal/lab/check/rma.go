package check

import "github.com/fabricd/fabricd/internal/lab/history"

// rma (I8): operations of one end are numbered in order, each ends at most once and after it began;
// the bytes of a read that succeeded are those that the window held; and nothing is ever written
// outside the range of an operation: the guard pages of a window and the words that the operation
// did not cover stay as they were.
//
// It needs rma, rma_done and scan records.
type rma struct {
	judge
	done map[opKey]int
}

// An opKey is one operation.
type opKey struct {
	end history.ConnEnd
	op  uint64
}

func (m *rma) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.RMA:
		last := m.w.begun[b.ConnEnd]
		m.unless(b.Op == last.v+1, r.At, []int{indexOf(last), i}, "connection %d: the %s begins operation %d after %d", b.Conn, b.Side, b.Op, last.v)
		m.w.begun[b.ConnEnd] = stamped[uint64]{r.At, i, max(b.Op, last.v)}
	case *history.RMADone:
		key := opKey{b.ConnEnd, b.Op}
		before := recordOf(m.done, key)
		m.done[key] = i
		last := m.w.begun[b.ConnEnd]
		m.unless(before < 0, r.At, []int{before, i}, "connection %d: operation %d of the %s has ended twice", b.Conn, b.Op, b.Side)
		m.unless(b.Op <= last.v, r.At, []int{indexOf(last), i}, "connection %d: operation %d of the %s has ended before it began", b.Conn, b.Op, b.Side)
		m.unless(b.Bad == nil || b.Status != "", r.At, []int{i}, "connection %d: operation %d of the %s has read wrong bytes", b.Conn, b.Op, b.Side)
	case *history.Scan:
		m.unless(b.Guard == 0, r.At, []int{i}, "%d bytes beside window %d have changed", b.Guard, b.ID)
		m.unless(b.Misplaced == 0, r.At, []int{i}, "%d words of window %d are where their operation did not write", b.Misplaced, b.ID)
	}
}
