package check

import "github.com/fabricd/fabricd/internal/lab/history"

// isolation (I14): a connection between two nodes that no fault had a right to
// harm is not reset: none of its ends ends with an error, unless the other end
// has closed or its process has ended.
//
// It needs opened and closed records of both ends, and fault records.
type isolation struct{ judge }

func (m *isolation) finish() {
	for _, c := range m.w.conns.list {
		a, b := m.w.nodesOf(c)
		if a < 0 || b < 0 {
			continue
		}
		for side := range c.ends {
			m.end(c, side, a, b)
		}
	}
}

func (m *isolation) end(c *conn, side, a, b int) {
	e, other := &c.ends[side], &c.ends[1-side]
	if e.opened == never {
		return
	}
	// A process may have ended a moment before or after this end noticed.
	near := m.w.soonAfter(e.closed)
	switch {
	case m.w.unharmed(c, side),
		m.processEnded(e.source, near), m.processEnded(other.source, near),
		m.w.daemonEnded(a, e.opened-m.w.order(), near), m.w.daemonEnded(b, e.opened-m.w.order(), near),
		m.w.resettable(a, b, e.closed) != nil:
		m.good()
	default:
		m.fail(e.closed, []int{e.openIndex, e.closeIndex, other.closeIndex}, "connection %d between nodes %d and %d ends with %s at %s, but nothing was done to it",
			c.nonce, a, b, e.how, e.source)
	}
}

func (m *isolation) processEnded(s history.Source, at int64) bool {
	p := m.w.procs.get(s)
	return p != nil && p.end <= at
}
