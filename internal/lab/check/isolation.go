package check

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// isolation (I14): a connection between two slots that no fault had a right to
// harm is not reset: none of its ends ends with an error, unless the other end
// has closed or its process has ended.
//
// It needs opened and closed records of both ends, and fault records.
type isolation struct{ judge }

func newIsolation(w *world) *isolation {
	return &isolation{judge{w: w, j: Judgement{Name: "isolation", Rows: "I14", Claim: "connections that no fault touches are not reset"}}}
}

func (m *isolation) finish() {
	for _, c := range m.w.connList {
		a, b := m.w.slotsOf(c)
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
	if e.closed == never || e.how == history.HowClose || e.how == history.HowEOF {
		m.good()
		return
	}
	// The peer's end may have been closed, or its process ended, a moment before
	// or after this end noticed.
	near := e.closed + m.w.order() + int64(time.Second)
	switch {
	case e.how == "ECONNRESET" && other.closed <= near && (other.how == history.HowClose || other.how == history.HowEOF),
		m.processEnded(e.source, near), m.processEnded(other.source, near),
		m.daemonEnded(a, near, e.opened), m.daemonEnded(b, near, e.opened),
		m.w.resettable(a, b, e.closed) != nil:
		m.good()
	default:
		m.fail(e.closed, []int{e.openIndex, e.closeIndex, other.closeIndex}, "connection %d between slots %d and %d ends with %s at %s, but nothing was done to it",
			c.nonce, a, b, e.how, e.source)
	}
}

func (m *isolation) processEnded(s history.Source, at int64) bool {
	p := m.w.procs[s]
	return p != nil && p.end <= at
}

// daemonEnded reports whether a daemon of a slot ended between two times.
func (m *isolation) daemonEnded(slot int, at, since int64) bool {
	return slices.ContainsFunc(m.w.at(slot).daemons, func(p *proc) bool { return p.end <= at && p.end >= since-m.w.order() })
}
