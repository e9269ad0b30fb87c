package check

import "github.com/fabricd/fabricd/internal/lab/history"

// fence (I9): a fence wait that succeeded is true: every operation that it covers had begun, and
// when the target is notified, it sees all of them. A signal is never early (a reader of its value sees
// all that it covers), never out of nothing or backwards, and never late: not after the target's
// end of the connection has ended. A target looks at its signal word once more before it writes
// that its end is closed, so a value that it finds later came later.
// It needs rma, fenced, checked, signal and seen records.
type fence struct {
	judge
	fenced map[history.ConnEnd]stamped[uint64] // highest that a wait has covered, by the initiator
	asked  map[opKey]int                       // signals, by the initiator and the operation
	value  map[history.ConnEnd]stamped[uint64] // last seen, by the target
}

func (m *fence) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Fenced:
		m.wait(i, r, b)
	case *history.Checked:
		peer := b.Other()
		wait := m.fenced[peer]
		m.unless(b.Upto <= wait.v, r.At, []int{indexOf(wait), i}, "connection %d: the %s is notified that %d operations are there, but a fence wait covered only %d", b.Conn, b.Side, b.Upto, wait.v)
		if b.Missing != nil {
			m.fail(r.At, []int{indexOf(wait), i}, "connection %d: a fence wait up to %d succeeded, but operation %d is not in the window", b.Conn, b.Upto, *b.Missing)
		}
	case *history.Signal:
		begun := m.w.begun[b.ConnEnd]
		m.unless(b.Value <= begun.v, r.At, []int{indexOf(begun), i}, "connection %d: a signal of the %s covers %d operations, but %d had begun", b.Conn, b.Side, b.Value, begun.v)
		m.asked[opKey{b.ConnEnd, b.Value}] = i
	case *history.SignalSeen:
		m.seen(i, r, b)
	}
}

func (m *fence) wait(i int, r *history.Record, b *history.Fenced) {
	if b.Status != "" {
		m.good()
		return
	}
	begun := m.w.begun[b.ConnEnd]
	m.unless(b.Upto <= begun.v, r.At, []int{indexOf(begun), i}, "connection %d: a fence wait of the %s covers %d operations, but %d had begun", b.Conn, b.Side, b.Upto, begun.v)
	if b.Upto > m.fenced[b.ConnEnd].v {
		m.fenced[b.ConnEnd] = stamped[uint64]{r.At, i, b.Upto}
	}
}

func (m *fence) seen(i int, r *history.Record, b *history.SignalSeen) {
	asked := recordOf(m.asked, opKey{b.Other(), b.Value})
	own := m.w.connEnd(b.ConnEnd)
	before := m.value[b.ConnEnd]
	proof := []int{asked, indexOf(before), i}
	switch {
	case asked < 0:
		m.fail(r.At, proof, "connection %d: the %s sees the signal %d, which was not asked for", b.Conn, b.Side, b.Value)
	case b.Missing != nil:
		m.fail(r.At, proof, "connection %d: the %s sees the signal %d early: operation %d is not in the window", b.Conn, b.Side, b.Value, *b.Missing)
	case b.Value <= before.v:
		m.fail(r.At, proof, "connection %d: the %s sees the signal %d after %d", b.Conn, b.Side, b.Value, before.v)
	case own.closed < r.At:
		m.fail(r.At, append(proof, own.closeIndex), "connection %d: the %s sees the signal %d after its end", b.Conn, b.Side, b.Value)
	default:
		m.good()
	}
	m.value[b.ConnEnd] = stamped[uint64]{r.At, i, max(b.Value, before.v)}
}
