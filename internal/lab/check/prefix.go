package check

import "github.com/fabricd/fabricd/internal/lab/history"

// prefix (I1): the bytes that an end has received are at every time exactly the first that the
// other end has offered on this very connection: no gap, no byte twice or out of order, no wrong
// byte, none before it was offered. The bytes that send has accepted are contiguous too.
//
// It needs offered (or sent) and received records.
type prefix struct{ judge }

// A flow is one direction of a connection.
type flow struct {
	offered, sent, received       int64
	offeredAt, sentAt, receivedAt int // records
}

// flow returns what was read of the direction from an end.
func (w *world) flow(e history.ConnEnd) *flow {
	return w.flows.of(e, flow{offeredAt: -1, sentAt: -1, receivedAt: -1})
}

func (m *prefix) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Offered:
		f := m.w.flow(b.ConnEnd)
		m.unless(b.From <= f.offered, r.At, []int{f.offeredAt, i}, "connection %d: the %s offers from %d, but had offered only up to %d", b.Conn, b.Side, b.From, f.offered)
		if b.To > f.offered {
			f.offered, f.offeredAt = b.To, i
		}
	case *history.Sent:
		f := m.w.flow(b.ConnEnd)
		m.unless(b.From == f.sent, r.At, []int{f.sentAt, i}, "connection %d: the %s has sent from %d, after %d", b.Conn, b.Side, b.From, f.sent)
		if f.offeredAt >= 0 {
			m.unless(b.To <= f.offered, r.At, []int{f.offeredAt, i}, "connection %d: the %s has sent up to %d, but had offered only up to %d", b.Conn, b.Side, b.To, f.offered)
		}
		f.sent, f.sentAt = max(f.sent, b.To), i
		if f.offered < f.sent {
			f.offered, f.offeredAt = f.sent, i
		}
	case *history.Received:
		m.received(i, r, b)
	}
}

func (m *prefix) received(i int, r *history.Record, b *history.Received) {
	from := b.Other()
	f := m.w.flow(from)
	proof := []int{f.receivedAt, f.offeredAt, i}
	switch {
	case b.Bad != nil:
		m.fail(r.At, proof, "connection %d: the %s has received a wrong byte at %d", b.Conn, b.Side, *b.Bad)
	case b.From > f.received:
		m.fail(r.At, proof, "connection %d: the %s has received from %d, after %d: bytes are missing", b.Conn, b.Side, b.From, f.received)
	case b.From < f.received:
		m.fail(r.At, proof, "connection %d: the %s has received from %d, after %d: bytes came twice", b.Conn, b.Side, b.From, f.received)
	case b.To > f.offered:
		m.fail(r.At, proof, "connection %d: the %s has received up to %d, but only %d were offered", b.Conn, b.Side, b.To, f.offered)
	default:
		m.good()
	}
	f.received, f.receivedAt = max(f.received, b.To), i
}
