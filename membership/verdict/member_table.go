package verdict

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// maxTable is the largest table: every ID that can be granted, and node 0.
const maxTable = int(addr.FirstReserved)

// table collects the parts of a table and, with the last, lives by it.
func (m *Member) table(now time.Time, t Table) {
	if t.First {
		m.parts = nil
	}
	if len(t.Entries) > MaxEntries || len(m.parts)+len(t.Entries) > maxTable {
		m.drop(now, "a table that is too large")
		return
	}
	m.parts = append(m.parts, t.Entries...)
	if !t.Last {
		return
	}
	entries := m.parts
	m.parts = nil
	m.version, m.synced, m.behind = t.Version, true, 0
	m.apply(now, entries)
}

// apply makes the view equal to the table: first removals, then new incarnations,
// each in order of ID.
func (m *Member) apply(now time.Time, entries []Entry) {
	listed := make(map[addr.NodeID]Entry, len(entries))
	for _, e := range entries {
		listed[e.Node.Incarnation.Node] = e
	}
	if own, ok := listed[m.self.Node]; !ok || own.Node.Incarnation != m.self || own.Node.State == Removed {
		m.reset(now, "the host's table does not have this incarnation")
		return
	}
	if m.contradicts(listed[addr.Host]) {
		m.reset(now, "the host's incarnation was reported to be over, and is not")
		return
	}
	m.host.alone = false
	at := len(m.out)
	for _, p := range m.sorted() {
		e, ok := listed[p.node.Incarnation.Node]
		if ok && e.Node.Incarnation == p.node.Incarnation && e.Node.State != Removed {
			continue
		}
		m.removePeer(p, endReason(p.node, e, ok))
	}
	for _, e := range entries {
		if e.Node.State == Removed {
			m.acknowledge(e.Node.Incarnation)
			continue
		}
		m.learn(e)
	}
	if m.unnotified { // without an incarnation it had no peers: all EventAdded so far are of this table
		m.unnotified = false
		m.out = slices.Insert(m.out, at, Action(Emit{Event{Kind: EventSelf, Node: m.Self(), Others: len(m.peers)}}))
	}
	m.emitHost(HostReachable)
}

// endReason returns why the incarnation of n is over when the table has e in its
// place, or nothing.
func endReason(n Node, e Entry, listed bool) Reason {
	switch {
	case listed && e.Node.State == Removed && e.Node.Incarnation == n.Incarnation && e.Reason != "":
		return e.Reason
	case listed && e.Node.Incarnation.Generation > n.Incarnation.Generation:
		return ReasonRestarted
	}
	return ReasonSilent
}

// contradicts reports whether the entry has an incarnation as alive that we announced as
// over. An end is never taken back.
func (m *Member) contradicts(e Entry) bool {
	l := e.Node.Incarnation
	return e.Node.State == Alive && l != m.self && l.Generation <= m.over[l.Node]
}

// delta applies changes of the table.
func (m *Member) delta(now time.Time, d Delta) {
	if !m.follow(d.Version) {
		return
	}
	for _, e := range d.Entries {
		switch l := e.Node.Incarnation; {
		case l == m.self:
		case l.Node == addr.Host && m.contradicts(e):
			m.reset(now, "the host's incarnation was reported to be over, and is not")
			return
		default:
			if p := m.peers[l.Node]; p != nil && p.node.Incarnation.Generation < l.Generation {
				m.removePeer(p, ReasonRestarted)
			}
			m.learn(e)
		}
	}
}

// follow moves to the version of a change, and reports whether the change is
// the next one. After a gap it asks for the table.
func (m *Member) follow(version uint64) bool {
	if !m.synced || version <= m.version {
		return false
	}
	if version > m.version+1 {
		m.synced = false
		m.send(Sync{})
		return false
	}
	m.version = version
	return true
}

// verdict takes the host's decision that an incarnation is over. It is taken whatever
// version it comes with: an end is final.
func (m *Member) verdict(now time.Time, v RemovedIncarnation) {
	if m.self != (addr.Incarnation{}) && v.Incarnation == m.self {
		if m.stage == departing {
			m.finish(Departed{})
			return
		}
		m.reset(now, "removed: "+string(v.Reason))
		return
	}
	if m.stage != serving {
		return // an answer to our request is under way, and the table with it
	}
	if v.Version != 0 {
		m.follow(v.Version)
	}
	p := m.peers[v.Incarnation.Node]
	if p != nil && p.node.Incarnation.Generation <= v.Incarnation.Generation {
		m.removePeer(p, v.Reason)
	}
	m.acknowledge(v.Incarnation)
	if v.Incarnation == m.host.incarnation && v.Reason == ReasonLeft {
		m.emitHost(HostLost)
		m.host.alone = true
	}
}

// learn adds an incarnation to the view, or updates it. An incarnation of an earlier term that is
// not resumed changes nothing: a member that has it keeps it, any other waits.
// An entry that contradicts an end that we announced stays out; the host decides
// which of the two nodes begins anew.
func (m *Member) learn(e Entry) {
	n, l := e.Node, e.Node.Incarnation
	switch {
	case l == m.self:
		if l.Node == addr.Host {
			m.host.incarnation = l
		}
		return
	case l.Generation == 0:
		return
	case m.contradicts(e):
		m.send(Report{About: l, Evidence: EndAnnounced})
		return
	}
	p := m.peers[l.Node]
	if n.State != Alive || (p != nil && p.node.Incarnation != l) {
		return
	}
	if p == nil {
		p = &peer{node: n}
		m.peers[l.Node], m.watched = p, nil
		if l.Node == addr.Host {
			m.host.incarnation, m.host.alone = l, false
		}
		m.emit(Event{Kind: EventAdded, Node: n})
		return
	}
	changed := !p.node.Claims.Equal(n.Claims) || !slices.Equal(p.node.Labels, n.Labels) || !p.node.Until.Equal(n.Until)
	n.State = p.node.State
	p.node = n
	if changed {
		m.emit(Event{Kind: EventUpdated, Node: n})
	}
}

// removePeer emits the end of an incarnation, once.
func (m *Member) removePeer(p *peer, why Reason) {
	l := p.node.Incarnation
	delete(m.peers, l.Node)
	m.watched = nil
	m.over[l.Node] = max(m.over[l.Node], l.Generation)
	m.pending[l] = true
	n := p.node
	n.State = Removed
	m.emit(Event{Kind: EventRemoved, Node: n, Reason: why})
}

// acknowledge answers a verdict, unless its handlers still run; then they
// answer when they return.
func (m *Member) acknowledge(l addr.Incarnation) {
	m.over[l.Node] = max(m.over[l.Node], l.Generation)
	if !m.pending[l] {
		m.send(Ack{Incarnation: l})
	}
}

func (m *Member) handled(l addr.Incarnation) {
	if !m.pending[l] {
		return
	}
	delete(m.pending, l)
	if m.stage == serving {
		m.send(Ack{Incarnation: l})
	}
}

// reset ends our own incarnation, because the others ended it, and asks for the next.
func (m *Member) reset(now time.Time, text string) {
	m.resetView(text)
	if m.session.up {
		m.ask(now)
	}
}

// resetView empties the view: to the next incarnation every peer is new.
func (m *Member) resetView(text string) {
	n := m.Self()
	n.State = Removed
	if m.unnotified {
		m.unnotified = false
		m.emit(Event{Kind: EventSelf, Node: n, Reason: ReasonPartitioned})
	}
	m.emit(Event{Kind: EventReset, Node: n, Reason: ReasonPartitioned, Detail: text})
	m.previous, m.self = m.self, addr.Incarnation{}
	m.host.forget()
	m.synced, m.version = false, 0
	clear(m.peers)
	m.watched = nil
	clear(m.over)
	clear(m.probes)
	clear(m.pending)
}
