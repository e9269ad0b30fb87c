package check

import "github.com/fabricd/fabricd/internal/lab/history"

// fence (I9): a fence wait that succeeded is true: every operation that it covers had begun, and
// when the target is told, it sees all of them. A signal is never early (a reader of its value sees
// all that it covers), never out of nothing or backwards, and never late: not after the target's
// end of the connection has ended. A target looks at its signal word once more before it writes
// that its end is closed, so a value that it finds later came later.
// It needs rma, fenced, checked, signal and seen records.
type fence struct {
	judge
	begun  map[history.ConnEnd]stamped[uint64] // highest operation, by its initiator
	fenced map[history.ConnEnd]stamped[uint64] // highest that a wait has covered, by the initiator
	asked  map[history.ConnEnd]map[uint64]int  // signals, by the initiator
	value  map[history.ConnEnd]stamped[uint64] // last seen, by the target
}

func newFence(w *world) *fence {
	return &fence{judge{w: w, j: Judgement{Name: "fence", Rows: "I9", Claim: "fence waits are true when they return; signals are neither early nor late"}},
		map[history.ConnEnd]stamped[uint64]{}, map[history.ConnEnd]stamped[uint64]{}, map[history.ConnEnd]map[uint64]int{}, map[history.ConnEnd]stamped[uint64]{}}
}

func (m *fence) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.RMA:
		if b.Op > m.begun[b.ConnEnd].v {
			m.begun[b.ConnEnd] = stamped[uint64]{r.At, i, b.Op}
		}
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
		m.ask(i, r, b)
	case *history.SignalSeen:
		m.seen(i, r, b)
	}
}

func (m *fence) wait(i int, r *history.Record, b *history.Fenced) {
	if b.Status != "" {
		m.good()
		return
	}
	begun := m.begun[b.ConnEnd]
	m.unless(b.Upto <= begun.v, r.At, []int{indexOf(begun), i}, "connection %d: a fence wait of the %s covers %d operations, but %d had begun", b.Conn, b.Side, b.Upto, begun.v)
	if b.Upto > m.fenced[b.ConnEnd].v {
		m.fenced[b.ConnEnd] = stamped[uint64]{r.At, i, b.Upto}
	}
}

func (m *fence) ask(i int, r *history.Record, b *history.Signal) {
	begun := m.begun[b.ConnEnd]
	m.unless(b.Value <= begun.v, r.At, []int{indexOf(begun), i}, "connection %d: a signal of the %s covers %d operations, but %d had begun", b.Conn, b.Side, b.Value, begun.v)
	if m.asked[b.ConnEnd] == nil {
		m.asked[b.ConnEnd] = map[uint64]int{}
	}
	m.asked[b.ConnEnd][b.Value] = i
}

func (m *fence) seen(i int, r *history.Record, b *history.SignalSeen) {
	peer := b.Other()
	asked, known := m.asked[peer][b.Value]
	if !known {
		asked = -1
	}
	before := m.value[b.ConnEnd]
	proof := []int{asked, indexOf(before), i}
	switch {
	case !known:
		m.fail(r.At, proof, "connection %d: the %s sees the signal %d, which nobody has asked for", b.Conn, b.Side, b.Value)
	case b.Missing != nil:
		m.fail(r.At, proof, "connection %d: the %s sees the signal %d early: operation %d is not in the window", b.Conn, b.Side, b.Value, *b.Missing)
	case b.Value <= before.v:
		m.fail(r.At, proof, "connection %d: the %s sees the signal %d after %d", b.Conn, b.Side, b.Value, before.v)
	case m.late(r, b):
		m.fail(r.At, append(proof, m.w.conns[b.Conn].ends[sideIndex(b.Side)].closeIndex), "connection %d: the %s sees the signal %d after its end", b.Conn, b.Side, b.Value)
	default:
		m.good()
	}
	m.value[b.ConnEnd] = stamped[uint64]{r.At, i, max(b.Value, before.v)}
}

func (m *fence) late(r *history.Record, b *history.SignalSeen) bool {
	c := m.w.conns[b.Conn]
	return c != nil && c.ends[sideIndex(b.Side)].closed < r.At
}
