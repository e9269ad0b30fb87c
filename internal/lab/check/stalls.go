package check

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// stalls (I14): between two nodes that no fault has touched yet, bytes that an end has accepted
// from its application do not stand still for longer than the bound: from when they are under way, or
// the last of them arrived, to the next that arrive. Nor do a send and the recv of the other end
// wait for each other for so long.
//
// It is judged in simulation only. There a standstill is the fabric's own doing. On a real machine
// it is as often that of a process that waits for a processor, of which the lab knows only where it
// waits itself; the expectations of traffic and latency, with bounds of their own, say there how
// much others may notice.
//
// It needs sent and received records, written within recordLate, call and return records of calls
// that wait, and fault records.
type stalls struct {
	judge
	undelivered table[history.ConnEnd, undelivered] // by the sending end
}

// recordLate is how long after its first byte a record of bytes may be written: so
// much longer than it was a standstill may look.
const recordLate = 50 * time.Millisecond

// Undelivered are the bytes of one direction of a connection that have not arrived.
type undelivered struct {
	since int64 // since when nothing of it has arrived; never: nothing is under way
	index int   // of the record that says so
}

func (m *stalls) see(i int, r *history.Record) {
	if m.w.begin.Lab != string(scenario.Sim) {
		return
	}
	switch b := r.Body.(type) {
	case *history.Sent:
		if d := m.of(b.ConnEnd); d.since == never && m.underWay(b.ConnEnd) {
			d.since, d.index = r.At, i
		}
	case *history.Received:
		end := b.Other()
		d := m.of(end)
		m.arrives(end, d, r.At, i)
		if m.underWay(end) {
			d.since, d.index = r.At, i
		}
	}
}

// underWay reports whether bytes of an end that were accepted have not arrived.
func (m *stalls) underWay(end history.ConnEnd) bool {
	f := m.w.flow(end)
	return f.received < f.sent
}

func (m *stalls) of(end history.ConnEnd) *undelivered {
	return m.undelivered.of(end, undelivered{since: never})
}

// arrives judges for how long nothing has arrived at a time. Record i is that
// something has arrived; -1: nothing will any more.
func (m *stalls) arrives(end history.ConnEnd, d *undelivered, at int64, i int) {
	if d.since != never {
		m.stood(end, interval{d.since, at}, []int{d.index, i})
	}
	d.since = never
}

// stood judges that the stream of a sending end stood still.
func (m *stalls) stood(end history.ConnEnd, x interval, proof []int) {
	c := m.w.conns.get(end.Conn)
	if c == nil {
		return
	}
	limit := x.from + int64(m.w.bound.Stall+recordLate)
	a, b := m.w.nodesOf(c)
	broken := min(x.to, limit) // later faults are no reason
	if a < 0 || b < 0 || m.w.touchedBy(a, b, broken) || m.w.resettable(a, b, broken) != nil {
		return
	}
	m.unless(x.to <= limit, x.from, proof, "connection %d between nodes %d and %d: nothing arrives from the %s for %s, though it sends",
		end.Conn, a, b, end.Side, time.Duration(x.to-x.from))
}

// finish judges bytes that never arrived, until one of the ends was closed or the run ended, and
// calls that waited for each other.
func (m *stalls) finish() {
	if m.w.begin.Lab != string(scenario.Sim) {
		return
	}
	waits := m.w.standstills()
	for _, c := range m.w.conns.list {
		for _, side := range []history.Side{history.Client, history.Server} {
			end := history.ConnEnd{Conn: c.nonce, Side: side}
			if d := m.undelivered.get(end); d != nil && d.since != never {
				until := min(c.ends[0].closed, c.ends[1].closed, m.w.finish())
				m.arrives(end, d, max(until, d.since), -1)
			}
			for _, x := range waits[end] {
				m.stood(end, x, nil)
			}
		}
	}
}
