package check

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// resetAll (I3): when a source is told NODE_REMOVED, every call of it towards that incarnation has failed
// already, with an errno that says so; and afterwards nothing towards that incarnation succeeds but local
// calls (close, unregister, and recv of bytes that had arrived), no connection to it opens, and
// every connection to it ends within 500 ms, as its application notices.
//
// It needs removed events, and calls and connections that name their peer.
type resetAll struct {
	judge
	removed map[told]stamped[addr.Incarnation]   // since the source has its incarnation, which v is
	all     map[told][]stamped[addr.Incarnation] // ever
	known   map[told]bool                        // since the source has its incarnation
	renewed map[history.Source]int64             // since when it has that, if it had an earlier one
	self    map[history.Source]addr.Incarnation  // whose incarnation a source last had
	open    map[callKey]int                      // calls under way: their records
}

// A told is a notice: its source and the incarnation.
type told struct {
	source      history.Source
	incarnation addr.Incarnation
}

// A callKey is one call.
type callKey struct {
	source history.Source
	id     uint64
}

func newResetAll(w *world) *resetAll {
	return &resetAll{judge{w: w, j: Judgement{Name: "reset-all", Rows: "I3",
		Claim: "NODE_REMOVED comes only after every operation to that incarnation has failed, and nothing to it succeeds afterwards"}},
		map[told]stamped[addr.Incarnation]{}, map[told][]stamped[addr.Incarnation]{}, map[told]bool{}, map[history.Source]int64{},
		map[history.Source]addr.Incarnation{}, map[callKey]int{}}
}

// endTime is how long after the event an end of a connection may still look
// open.
const endTime = 500 * time.Millisecond

// lossErrnos are the errnos with which a call towards a lost incarnation may fail.
var lossErrnos = []string{"ECONNRESET", "ENODEV", "ENOTCONN", "EBADF", "ECANCELED", "EINTR", "EAGAIN", "ECONNREFUSED"}

// localCalls are those that may succeed towards a lost incarnation.
var localCalls = []string{"close", "unregister", "recv", "munmap", "poll", "connect", "accept", "bind", "listen", "attach", "open"}

func (m *resetAll) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Event:
		m.event(i, r, b)
	case *history.View:
		for _, member := range b.Live {
			m.known[told{r.Source, member.Incarnation}] = true
		}
	case *history.Call:
		m.open[callKey{r.Source, b.ID}] = i
	case *history.Return:
		m.returned(i, r, b)
	case *history.Opened:
		m.incarnations(r.Source, b.Local)
		if b.Local == m.self[r.Source] {
			m.known[told{r.Source, b.Remote}] = true
		}
		if e, ok := m.removed[told{r.Source, b.Remote}]; ok {
			m.unless(r.At <= e.at+m.w.order(), r.At, []int{e.index, i}, "%s has a new connection to %s, of whose end it was notified", r.Source, b.Remote)
		}
	case *history.Sent:
		m.sent(i, r, b)
	}
}

func (m *resetAll) event(i int, r *history.Record, b *history.Event) {
	switch b.What {
	case history.EventAdded:
		m.known[told{r.Source, b.Subject}] = true
	case history.EventRemoved:
		key := told{r.Source, b.Subject}
		if m.ofIncarnationBefore(r, key) {
			return
		}
		now := stamped[addr.Incarnation]{at: r.At, index: i, v: b.Observer}
		m.all[key] = append(m.all[key], now)
		if _, twice := m.removed[key]; !twice {
			m.removed[key] = now
		}
	case history.EventReset, history.EventSelf:
		// Its own connections have all ended, and to its next incarnation everybody is
		// new, also whom it gave up while it was cut off.
		if b.What == history.EventReset || m.self[r.Source] != b.Subject {
			maps.DeleteFunc(m.removed, func(k told, _ stamped[addr.Incarnation]) bool { return k.source == r.Source })
			maps.DeleteFunc(m.known, func(k told, _ bool) bool { return k.source == r.Source })
			if m.self[r.Source] != (addr.Incarnation{}) {
				m.renewed[r.Source] = r.At
			}
		}
		m.self[r.Source] = b.Subject
	}
}

// ofIncarnationBefore reports whether a removal was under way when the node got the incarnation that it has: an
// application sees that for itself, and may hear only then of an end before. It has not met the
// removed node in its new incarnation.
func (m *resetAll) ofIncarnationBefore(r *history.Record, key told) bool {
	since, renewed := m.renewed[r.Source]
	return renewed && r.Source.Role == history.RoleApp && !m.known[key] && r.At <= since+m.w.within(endTime)
}

// incarnations forgets the removals that a source was told while its node had an earlier incarnation than l. Its
// listeners outlive that: a connection may be the first that it hears of the next one.
func (m *resetAll) incarnations(source history.Source, l addr.Incarnation) {
	maps.DeleteFunc(m.removed, func(k told, e stamped[addr.Incarnation]) bool {
		return k.source == source && e.v.Node == l.Node && e.v.Generation < l.Generation
	})
}

func (m *resetAll) sent(i int, r *history.Record, b *history.Sent) {
	end := m.w.conns[b.Conn]
	if end == nil || b.From == b.To {
		return
	}
	if e, ok := m.removed[told{r.Source, end.ends[sideIndex(b.Side)].remote}]; ok {
		m.unless(r.At <= e.at+m.w.order(), r.At, []int{e.index, i}, "%s sends on connection %d to an incarnation of whose end it was notified", r.Source, b.Conn)
	}
}

func (m *resetAll) returned(i int, r *history.Record, b *history.Return) {
	began, known := m.open[callKey{r.Source, b.ID}]
	if !known {
		began = -1
	}
	delete(m.open, callKey{r.Source, b.ID})
	e, lost := m.removed[told{r.Source, b.Peer}]
	if !lost || b.Peer == (addr.Incarnation{}) {
		return
	}
	proof := []int{began, e.index, i}
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
	for _, key := range inOrder(m.open) {
		i := m.open[key]
		r := m.w.records[i]
		call := r.Body.(*history.Call)
		if e, lost := m.removed[told{key.source, call.Peer}]; lost && call.Began < e.at {
			late := e.at + m.w.within(endTime)
			m.unless(!m.w.alive(key.source, call.Began, late) || m.w.finish() <= late, e.at, []int{i, e.index},
				"%s of %s towards %s never ended, although NODE_REMOVED was delivered", call.Name, key.source, call.Peer)
		}
	}
	for _, c := range m.w.connList {
		for side := range c.ends {
			m.end(c, &c.ends[side])
		}
	}
}

// end holds the end of a connection to the end of its peer's incarnation.
func (m *resetAll) end(c *conn, e *connEnd) {
	all := m.all[told{e.source, e.remote}]
	next := slices.IndexFunc(all, func(r stamped[addr.Incarnation]) bool { return e.opened <= r.at })
	if e.opened == never || next < 0 {
		return
	}
	r := all[next]
	late := r.at + m.w.within(endTime)
	if !m.w.alive(e.source, e.opened, late) || m.w.finish() <= late {
		return
	}
	m.unless(e.closed <= late, r.at, []int{e.openIndex, r.index, e.closeIndex},
		"connection %d of %s to %s is not ended %s after NODE_REMOVED%s", c.nonce, e.source, e.remote, endTime, until(e.closed, r.at))
	m.late(r.at, late, e.closed)
}

// until says how long after something an end came.
func until(closed, from int64) string {
	if closed == never {
		return ""
	}
	return fmt.Sprintf(": it ends after %s", time.Duration(closed-from))
}
