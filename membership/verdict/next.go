package verdict

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A deadline is the earliest of several times.
type deadline struct{ time.Time }

func (d *deadline) or(at time.Time) {
	if at.Before(d.Time) {
		d.Time = at
	}
}

// Next returns when the next Tick is due: at the earliest time at which one
// would do more than let time pass, and [Timing].Tick after the last one at the
// latest. It may be over. Every Step may change it.
func (h *Host) Next() time.Time {
	next := deadline{h.clock.next(h.t)}
	if h.stopped {
		return next.Time
	}
	for _, n := range h.nodes[1:] {
		switch {
		case n.phase == unclaimed:
			next.or(h.unclaimedUntil(n))
		case n.phase == live:
			next.or(h.goodUntil(n))
		}
	}
	if len(h.changes.nodes) > 0 {
		next.or(h.changes.due())
	}
	if !h.settle.IsZero() {
		next.or(h.settle)
	}
	for _, e := range h.ended {
		if len(e.pending) > 0 {
			next.or(e.sent.Add(h.t.Resend))
		} else {
			next.or(e.since.Add(h.t.Quarantine))
		}
	}
	if len(h.records.failed) > 0 {
		next.or(h.records.retry)
	}
	return next.Time
}

// unclaimedUntil returns when judgeUnclaimed ends the incarnation of n.
func (h *Host) unclaimedUntil(n *hostNode) time.Time {
	until := deadline{h.grace}
	if n.waiting != nil {
		until.or(h.started.Add(h.t.Silence))
	}
	return until.Time
}

// goodUntil returns when judge has to do something about n, if nothing is
// received from it.
func (h *Host) goodUntil(n *hostNode) time.Time {
	switch {
	case !n.redial.IsZero():
		return n.redial
	case n.check != nil:
		return n.check.deadline
	}
	until := deadline{n.lastSeen.Add(h.t.Silence)}
	if h.cfg.Partial != PartialEvict {
		return until.Time
	}
	if !n.up && !n.gone.IsZero() {
		until.or(n.gone.Add(h.partialBound()))
	}
	for id, since := range n.complaints {
		if by := h.find(id); by != nil && by.phase == live {
			until.or(since.Add(h.partialBound()))
		}
	}
	return until.Time
}

// Next returns when the next Tick is due: at the earliest time at which one
// would do more than ping, and [Timing].Tick after the last one at the latest.
// It may be over. Every Step may change it.
func (m *Member) Next() time.Time {
	next := deadline{m.clock.next(m.t)}
	if m.stage == done {
		return next.Time
	}
	if (m.stage == departing || m.stage == asking) && !m.session.deadline.IsZero() {
		next.or(m.session.deadline)
	}
	if m.stage == asking && !m.session.askAt.IsZero() {
		next.or(m.session.askAt)
	}
	for _, q := range m.probes {
		next.or(q.deadline)
	}
	if at, ok := m.hostGoodUntil(); ok {
		next.or(at)
	}
	for _, p := range m.peers {
		if at, ok := m.goodUntil(p); ok {
			next.or(at)
		}
	}
	if m.session.mayDial() && m.stage != departing {
		next.or(m.session.dialAt)
	}
	return next.Time
}

// hostGoodUntil returns when tickHost has to do something, if nothing arrives
// of the host; ok is false if it has not, or waits for a probe.
func (m *Member) hostGoodUntil() (at time.Time, ok bool) {
	switch {
	case m.self != (addr.Incarnation{}) && m.self.Node == addr.Host:
		return at, false
	case !m.host.redial.IsZero():
		return m.host.redial, true
	}
	at = m.host.silentAt(m.t)
	if !m.canDoubt() {
		return at, m.stage == serving || m.host.reachable()
	}
	p := m.peers[addr.Host]
	switch {
	case p == nil || p.probe != 0:
		return at, m.host.reachable()
	case !p.failed:
		return at, len(m.probes) < maxProbes || m.host.reachable()
	case p.gossip != GossipAlive || m.session.up || m.cutOff():
		return at, true
	}
	return later(at, p.tried.Add(m.t.Silence)), len(m.probes) < maxProbes
}

// goodUntil returns when consider has to do something about p if nothing new
// arrives from it; ok is false if it has not, or waits for a probe.
func (m *Member) goodUntil(p *peer) (at time.Time, ok bool) {
	bad := p.bad()
	switch {
	case p.node.Incarnation.Node == addr.Host || bad == 0 && !(m.host.alone && p.doubted):
		return at, false
	case m.host.alone:
		return m.aloneUntil(p)
	case m.stage != serving || !m.synced || m.host.confirm != 0:
		return at, false
	case p.reported != bad:
		return m.clock.last, true
	}
	return p.reportedAt.Add(m.t.Silence), true
}

// aloneUntil is goodUntil of a peer that considerAlone has bad evidence of.
func (m *Member) aloneUntil(p *peer) (at time.Time, ok bool) {
	switch {
	case p.deadByTwo(), p.probe == 0 && len(m.probes) < maxProbes:
		return m.host.judgeFrom, true
	case p.failed:
		return later(m.host.judgeFrom, p.asked.Add(m.t.Silence)), true
	}
	return at, false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
