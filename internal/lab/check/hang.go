package check

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// hang (I4): no call outlives the longest of its deadline and the time of
// detection by more than a second, whatever happens:
//
//   - a call with a deadline ends by it;
//   - a call about an incarnation that is lost, or of an incarnation that is lost, ends within
//     the time of detection; so does one between nodes that a fault cuts from
//     each other for longer than that;
//   - a call that neither waits for a peer's doing (idle) nor has a deadline
//     ends within the time of detection while nothing is broken.
//
// Standing still oneself does not count, and a call of a process that was ended
// has ended. It needs call and return records.
type hang struct{ judge }

func (m *hang) see(i int, r *history.Record) {
	b, ok := r.Body.(*history.Return)
	if !ok {
		return
	}
	limit, why := m.limit(&b.Call, r.Source, r.At)
	m.unless(r.At <= limit, r.At, []int{m.w.callOf[i], i}, "%s of %s took %s%s", b.Name, r.Source, time.Duration(r.At-b.Began), why)
	m.late(b.Began, limit, r.At)
}

func (m *hang) finish() {
	for _, key := range inOrder(m.w.hanging) {
		i := m.w.hanging[key]
		r := m.w.records[i]
		call := r.Body.(*history.Call)
		end := m.w.finish()
		if p := m.w.procs.get(key.source); p != nil && p.end != never {
			continue
		}
		limit, why := m.limit(call, key.source, end)
		m.unless(end <= limit, call.Began, []int{i}, "%s of %s has not returned after %s%s", call.Name, key.source, time.Duration(end-call.Began), why)
	}
}

// limit returns until when a call may last, and why.
func (m *hang) limit(c *history.Call, source history.Source, at int64) (limit int64, why string) {
	detect := m.w.within(m.w.bound.Silence + time.Second)
	limit = never
	least := func(from int64, because string) {
		if from == never {
			return
		}
		if t := max(from, c.Began) + detect; t < limit {
			limit, why = t, because
		}
	}
	if c.Deadline > 0 {
		limit, why = c.Deadline+m.w.within(time.Second), ", beyond its deadline"
	}
	peer := -1
	if c.Peer != (addr.Incarnation{}) {
		peer = m.w.nodeOf(c.Peer)
		least(m.w.lossOf(source, c.Peer, c.Began), ", although its peer was lost")
	}
	// A call that waits for no particular peer, as a listener's, goes on with the next incarnation.
	if own := m.ownIncarnation(c, source); own != nil && c.Peer != (addr.Incarnation{}) {
		least(own.gone, ", although its own node was lost")
	}
	least(m.cutSince(source.Node, peer, c.Began, at, detect), ", although a fault cuts it off")
	if !c.Idle && c.Deadline == 0 && limit == never {
		if from, calm := m.calmSince(c.Began, at); calm {
			least(from, ", although nothing is broken")
		}
	}
	if limit != never {
		limit += m.w.stood(source.Node, c.Began, at)
	}
	return limit, why
}

// ownIncarnation returns the incarnation that a call was made by: that of its connection, else
// the one that the source had said to have.
func (m *hang) ownIncarnation(c *history.Call, source history.Source) *incarnation {
	if e := m.w.connEnd(history.ConnEnd{Conn: c.Conn, Side: c.Side}); c.Side != "" && e.opened != never {
		return m.w.incarnations.get(e.local)
	}
	s := m.w.sessions.get(source)
	if s == nil {
		return nil
	}
	for _, own := range slices.Backward(s.self) {
		if own.at <= c.Began {
			return m.w.incarnations.get(own.v)
		}
	}
	return nil
}

// cutSince returns when a fault began that cuts two nodes from each other from
// before a call to after it, for long enough to be noticed; never: none did. One
// that itself stood still notices nothing.
func (m *hang) cutSince(own, peer int, began, at, detect int64) int64 {
	if peer < 0 || peer == own {
		return never
	}
	first := never
	for _, f := range m.w.faults {
		if f.Cut && f.Harm != history.HarmNone && !f.idle() && !f.onNode(own) && (f.onNode(peer) || f.onWay(own, peer)) &&
			f.begin <= at && f.end >= max(f.begin, began)+detect && f.end >= began {
			first = min(first, f.begin)
		}
	}
	return first
}

// calmSince returns since when no fault is in place at a time, and whether that
// is so.
func (m *hang) calmSince(began, at int64) (from int64, calm bool) {
	for _, f := range m.w.faults {
		if f.begin <= at && f.end >= at {
			return 0, false
		}
		if f.begin <= at && f.end >= began {
			from = max(from, f.end)
		}
	}
	return from, true
}
