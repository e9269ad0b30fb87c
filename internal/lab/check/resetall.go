package check

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// resetAll (I3): when a source is notified of NODE_REMOVED, every call of it towards that incarnation has failed
// already, with an errno that says so; and afterwards nothing towards that incarnation succeeds but local
// calls (close, unregister, and recv of bytes that had arrived), no connection to it opens, and
// every connection to it ends within 500 ms, as its application notices.
//
// It needs removed events, and calls and connections that name their peer.
type resetAll struct {
	judge
	sources table[history.Source, observer]
}

// An observer is a source as it is notified of ends of incarnations.
type observer struct {
	self    addr.Incarnation                                 // that it last had
	renewed int64                                            // since when it has that, if it had an earlier one; else 0
	removed map[addr.Incarnation]stamped[addr.Incarnation]   // since it has its incarnation, which v is
	all     map[addr.Incarnation][]stamped[addr.Incarnation] // ever
	known   map[addr.Incarnation]bool                        // since it has its incarnation
}

func (m *resetAll) of(s history.Source) *observer {
	if n := m.sources.get(s); n != nil {
		return n
	}
	return m.sources.of(s, observer{removed: map[addr.Incarnation]stamped[addr.Incarnation]{},
		all: map[addr.Incarnation][]stamped[addr.Incarnation]{}, known: map[addr.Incarnation]bool{}})
}

// endTime is how long after the event an end of a connection may still look
// open.
const endTime = 500 * time.Millisecond

// lossErrnos are the errnos with which a call towards a lost incarnation may fail.
var lossErrnos = []string{"ECONNRESET", "ENODEV", "ENOTCONN", "EBADF", "ECANCELED", "EINTR", "EAGAIN", "ECONNREFUSED"}

// localCalls are those that may succeed towards a lost incarnation.
var localCalls = []string{"close", "unregister", "recv", "munmap", "poll", "connect", "accept", "bind", "listen", "attach", "open"}

func (m *resetAll) see(i int, r *history.Record) {
	n := m.of(r.Source)
	switch b := r.Body.(type) {
	case *history.Event:
		m.event(i, r, b, n)
	case *history.View:
		for _, member := range b.Live {
			n.known[member.Incarnation] = true
		}
	case *history.Return:
		m.returned(i, r, b, n)
	case *history.Opened:
		n.forgetBefore(b.Local)
		if b.Local == n.self {
			n.known[b.Remote] = true
		}
		if e, ok := n.removed[b.Remote]; ok {
			m.unless(r.At <= e.at+m.w.order(), r.At, []int{e.index, i}, "%s has a new connection to %s, of whose end it was notified", r.Source, b.Remote)
		}
	case *history.Sent:
		if e, ok := n.removed[m.w.connEnd(b.ConnEnd).remote]; ok && b.From < b.To {
			m.unless(r.At <= e.at+m.w.order(), r.At, []int{e.index, i}, "%s sends on connection %d to an incarnation of whose end it was notified", r.Source, b.Conn)
		}
	}
}

func (m *resetAll) event(i int, r *history.Record, b *history.Event, n *observer) {
	switch b.What {
	case history.EventAdded:
		n.known[b.Subject] = true
	case history.EventRemoved:
		// A removal may have been under way when the node got the incarnation that it has: an
		// application sees that for itself, and may be notified only then of an end before. It has not met
		// the removed node in its new incarnation.
		if n.renewed > 0 && r.Source.Role == history.RoleApp && !n.known[b.Subject] && r.At <= n.renewed+m.w.within(endTime) {
			return
		}
		now := stamped[addr.Incarnation]{at: r.At, index: i, v: b.Observer}
		n.all[b.Subject] = append(n.all[b.Subject], now)
		if _, twice := n.removed[b.Subject]; !twice {
			n.removed[b.Subject] = now
		}
	case history.EventReset, history.EventSelf:
		// Its own connections have all ended, and to its next incarnation every node is
		// new, also the nodes that it gave up while it was cut off.
		if b.What == history.EventReset || n.self != b.Subject {
			clear(n.removed)
			clear(n.known)
			if n.self != (addr.Incarnation{}) {
				n.renewed = r.At
			}
		}
		n.self = b.Subject
	}
}

// forgetBefore forgets the removals that a source was notified of while its node had an earlier
// incarnation than l. Its listeners outlive that: a connection may be the first sign of the next one.
func (n *observer) forgetBefore(l addr.Incarnation) {
	maps.DeleteFunc(n.removed, func(_ addr.Incarnation, e stamped[addr.Incarnation]) bool {
		return e.v.Node == l.Node && e.v.Generation < l.Generation
	})
}

func (m *resetAll) returned(i int, r *history.Record, b *history.Return, n *observer) {
	e, lost := n.removed[b.Peer]
	if !lost || b.Peer == (addr.Incarnation{}) {
		return
	}
	proof := []int{m.w.callOf[i], e.index, i}
	timedOut := b.Status == "ETIMEDOUT" && b.Deadline != 0 && b.Deadline <= r.At
	switch {
	case b.Began < e.at && r.At > e.at+m.w.order():
		m.fail(r.At, proof, "%s of %s towards %s was under way when NODE_REMOVED was delivered, and ended %s later", b.Name, r.Source, b.Peer, time.Duration(r.At-e.at))
		m.late(e.at, e.at+m.w.order(), r.At)
	case b.Began > e.at+m.w.order() && b.Status == "" && !slices.Contains(localCalls, b.Name):
		m.fail(r.At, proof, "%s of %s towards %s succeeds after NODE_REMOVED", b.Name, r.Source, b.Peer)
	case b.Status != "" && !timedOut && !slices.Contains(lossErrnos, b.Status):
		m.fail(r.At, proof, "%s of %s towards the lost incarnation %s fails with %s", b.Name, r.Source, b.Peer, b.Status)
	default:
		m.good()
	}
}

func (m *resetAll) finish() {
	for _, key := range inOrder(m.w.hanging) {
		i := m.w.hanging[key]
		r := m.w.records[i]
		call := r.Body.(*history.Call)
		if e, lost := m.of(key.source).removed[call.Peer]; lost && call.Began < e.at {
			late := e.at + m.w.within(endTime)
			m.unless(!m.w.alive(key.source, call.Began, late) || m.w.finish() <= late, e.at, []int{i, e.index},
				"%s of %s towards %s never ended, although NODE_REMOVED was delivered", call.Name, key.source, call.Peer)
		}
	}
	for _, c := range m.w.conns.list {
		for side := range c.ends {
			m.end(c, &c.ends[side])
		}
	}
}

// end holds the end of a connection to the end of its peer's incarnation.
func (m *resetAll) end(c *conn, e *connEnd) {
	all := m.of(e.source).all[e.remote]
	next := slices.IndexFunc(all, func(r stamped[addr.Incarnation]) bool { return e.opened <= r.at })
	if e.opened == never || next < 0 {
		return
	}
	r := all[next]
	late := r.at + m.w.within(endTime)
	if !m.w.alive(e.source, e.opened, late) || m.w.finish() <= late {
		return
	}
	m.inTime(r.at, late, e.closed, []int{e.openIndex, r.index, e.closeIndex},
		"connection %d of %s to %s is not ended %s after NODE_REMOVED%s", c.nonce, e.source, e.remote, endTime, until(e.closed, r.at))
}

// until returns how long after something an end came.
func until(closed, from int64) string {
	if closed == never {
		return ""
	}
	return fmt.Sprintf(": it ends after %s", time.Duration(closed-from))
}
