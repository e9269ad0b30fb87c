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
type drain struct{ judge }

func (m *drain) see(i int, r *history.Record) {
	b, ok := r.Body.(*history.Closed)
	if !ok || b.How != history.HowEOF {
		return
	}
	peer := b.Other()
	other := m.w.connEnd(peer)
	closed := other.closed != never && other.how == history.HowClose
	p := m.w.procs.get(other.source)
	ended := p != nil && p.end <= r.At+m.w.order()
	ended = ended || slices.ContainsFunc(m.w.at(other.source.Node).daemons, func(p *proc) bool {
		return p.asked <= r.At && p.start <= other.opened && p.end >= other.opened
	})
	if !closed && !ended {
		if other.opened == never && other.closed == never {
			return // the other end never wrote a word: it was ended before it could
		}
		m.fail(r.At, []int{other.openIndex, other.closeIndex, i}, "connection %d: the %s reads an orderly end, but the %s has not closed", b.Conn, b.Side, peer.Side)
		return
	}
	f := m.w.flow(peer)
	sentLate := closed && other.closed > r.At+m.w.order() && f.sentAt >= 0 && m.w.records[f.sentAt].At > r.At
	m.unless(f.received >= f.sent || sentLate, r.At, []int{f.sentAt, f.receivedAt, other.closeIndex, i},
		"connection %d: the %s reads the orderly end after %d bytes, but %d were accepted", b.Conn, b.Side, f.received, f.sent)
}
