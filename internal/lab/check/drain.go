package check

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// drain (I2): an end that reads the peer's orderly end of stream has received
// everything that the peer's send had accepted, and the peer really has closed,
// or its application has ended, or its daemon was asked to end in order, which
// close as well.
//
// It needs the closed records of both ends, sent and received.
type drain struct {
	judge
	sent, received map[history.ConnEnd]stamped[int64] // by the sending, by the receiving end
}

func newDrain(w *world) *drain {
	return &drain{judge{w: w, j: Judgement{Name: "drain", Rows: "I2", Claim: "after an orderly close everything that send had accepted arrives"}},
		map[history.ConnEnd]stamped[int64]{}, map[history.ConnEnd]stamped[int64]{}}
}

func (m *drain) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Sent:
		m.sent[b.ConnEnd] = stamped[int64]{r.At, i, max(b.To, m.sent[b.ConnEnd].v)}
	case *history.Received:
		m.received[b.ConnEnd] = stamped[int64]{r.At, i, max(b.To, m.received[b.ConnEnd].v)}
	case *history.Closed:
		if b.How == history.HowEOF {
			m.eof(i, r, b)
		}
	}
}

func (m *drain) eof(i int, r *history.Record, b *history.Closed) {
	peer := b.Other()
	c := m.w.conns[b.Conn]
	other := c.ends[sideIndex(peer.Side)]
	closed := other.closed != never && other.how == history.HowClose
	p := m.w.procs[other.source]
	ended := p != nil && p.end <= r.At+m.w.order()
	ended = ended || slices.ContainsFunc(m.w.at(other.source.Slot).daemons, func(p *proc) bool {
		return p.asked <= r.At && p.start <= other.opened && p.end >= other.opened
	})
	if !closed && !ended {
		if other.opened == never && other.closed == never {
			return // the other end never wrote a word: it was ended before it could
		}
		m.fail(r.At, []int{other.openIndex, other.closeIndex, i}, "connection %d: the %s reads an orderly end, but the %s has not closed", b.Conn, b.Side, peer.Side)
		return
	}
	sent, received := m.sent[peer], m.received[b.ConnEnd]
	m.unless(received.v >= sent.v || closed && other.closed > r.At+m.w.order() && sent.at > r.At, r.At, []int{indexOf(sent), indexOf(received), other.closeIndex, i},
		"connection %d: the %s reads the orderly end after %d bytes, but %d were accepted", b.Conn, b.Side, received.v, sent.v)
}
