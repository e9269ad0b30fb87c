package verdict

import (
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// known returns the peer of an incarnation, or nil.
func (m *Member) known(l addr.Incarnation) *peer {
	if p := m.peers[l.Node]; p != nil && p.node.Incarnation == l {
		return p
	}
	return nil
}

// linkSays takes the evidence of our own link to an incarnation.
func (m *Member) linkSays(now time.Time, in Link) {
	p := m.known(in.Incarnation)
	if p == nil {
		return
	}
	switch in.Evidence {
	case LinkAlive:
		p.link, p.failed, p.doubted = 0, false, false
		if p.reported != 0 && p.reported != DeadInGossip && m.stage == serving {
			m.send(Report{About: in.Incarnation, Evidence: LinkAlive})
		}
		p.reported = 0
	case LinkSilent, LinkReset, LinkFenced, LinkRefused:
		p.link = in.Evidence
		if in.Evidence == LinkFenced && m.stage == serving {
			m.ping(now) // our own incarnation may be over; the host's answer decides
		}
	default:
		return
	}
	m.showState(p)
	m.consider(now, p)
}

// takeGossip takes the gossip state of an incarnation.
func (m *Member) takeGossip(now time.Time, in Gossip) {
	p := m.known(in.Incarnation)
	if p == nil || in.State > GossipDead {
		return
	}
	p.gossip = in.State
	m.showState(p)
	m.consider(now, p)
}

// bad returns the strongest evidence against the peer, 0 if there is none.
func (p *peer) bad() Evidence {
	if p.link != 0 {
		return p.link
	}
	if p.gossip == GossipDead {
		return DeadInGossip
	}
	return 0
}

// showState emits an event when a peer becomes suspected or is so no more.
func (m *Member) showState(p *peer) {
	s := Alive
	if p.bad() != 0 || p.gossip == GossipSuspect {
		s = Suspect
	}
	if p.node.State != s {
		p.node.State = s
		m.emit(Event{Kind: EventUpdated, Node: p.node})
	}
}

// judge considers every peer.
func (m *Member) judge(now time.Time) {
	for _, p := range m.sorted() {
		m.consider(now, p)
	}
}

// consider turns evidence into a report to the host, or, alone, into a verdict
// of our own.
func (m *Member) consider(now time.Time, p *peer) {
	switch {
	case p.node.Incarnation.Node == addr.Host:
		// judged by tickHost, by its own session
	case m.host.alone:
		m.considerAlone(now, p)
	case m.stage == serving && m.synced:
		m.considerReport(now, p)
	}
}

// considerReport reports new evidence to the host, and repeats bad evidence that
// stays. After a stall it reports nothing before the host has confirmed us.
func (m *Member) considerReport(now time.Time, p *peer) {
	bad := p.bad()
	if bad == 0 || m.host.confirm != 0 {
		return
	}
	m.probeWithHost(now, p)
	if p.reported == bad && now.Sub(p.reportedAt) < m.t.Silence {
		return
	}
	p.reported, p.reportedAt = bad, now
	m.send(Report{About: p.node.Incarnation, Evidence: bad})
}

// considerAlone removes a peer on two independent grounds: a dead link and gossip that
// calls it dead, or a dead link and a probe that failed, or such gossip and probes that
// failed for as long as a link may be silent; a watcher's doubt makes us probe as gossip
// does. A peer that only paused for a second answers in time, whatever its gossip state.
func (m *Member) considerAlone(now time.Time, p *peer) {
	if p.bad() == 0 && !p.doubted {
		p.failed = false
		return
	}
	if now.Before(m.host.judgeFrom) {
		return
	}
	if p.deadByTwo() || (p.failed && now.Sub(p.asked) >= m.t.Silence) {
		why := ReasonSilent
		if p.link == LinkRefused || p.link == LinkReset {
			why = ReasonCrashed
		}
		m.removePeer(p, why)
		return
	}
	if p.probe == 0 {
		m.startProbe(now, p)
	}
}

// deadByTwo reports whether our link to the peer is dead and something else
// agrees.
func (p *peer) deadByTwo() bool {
	return p.link != 0 && (p.failed || p.gossip == GossipDead)
}

// startProbe asks the shell for another path to the peer.
func (m *Member) startProbe(now time.Time, p *peer) {
	if len(m.probes) >= maxProbes {
		return
	}
	m.probed++
	if !p.failed {
		p.asked = now
	}
	p.probe = m.probed
	m.probes[m.probed] = probe{incarnation: p.node.Incarnation, deadline: now.Add(m.t.Check)}
	m.out.add(Probe{Nonce: m.probed, Contact: p.node.Contact()})
}

// check looks at an incarnation for the host. Our own needs no look: the answer is it.
func (m *Member) check(now time.Time, c Check) {
	if c.Incarnation == m.self {
		m.send(CheckResult{Nonce: c.Nonce, Target: c.Incarnation, Reached: true})
		return
	}
	if len(m.probes) >= maxProbes || len(c.Challenge) > MaxChallenge {
		return
	}
	m.probed++
	m.probes[m.probed] = probe{incarnation: c.Incarnation, deadline: now.Add(m.t.Check), check: c.Nonce}
	m.out.add(Probe{Nonce: m.probed, Contact: c.Contact, Challenge: c.Challenge})
}

func (m *Member) probeSays(now time.Time, in Probed) {
	q, ok := m.probes[in.Nonce]
	if !ok {
		return
	}
	delete(m.probes, in.Nonce)
	m.probeEnded(now, q, in)
}

// tickProbes gives up on probes that were not answered in time.
func (m *Member) tickProbes(now time.Time) {
	for _, nonce := range slices.Sorted(maps.Keys(m.probes)) {
		q := m.probes[nonce]
		if !now.Before(q.deadline) {
			delete(m.probes, nonce)
			m.probeEnded(now, q, Probed{Nonce: nonce})
		}
	}
}

// probeEnded passes the result on to the host or to our own judgement.
func (m *Member) probeEnded(now time.Time, q probe, in Probed) {
	reached := in.Reached
	if q.check != 0 {
		if m.stage == serving {
			m.send(CheckResult{Nonce: q.check, Target: q.incarnation, Reached: reached, Proof: in.Proof})
		}
		return
	}
	p := m.known(q.incarnation)
	if p == nil || p.probe != in.Nonce {
		return
	}
	p.probe, p.failed, p.tried = 0, !reached, now
	switch {
	case q.incarnation.Node == addr.Host && reached:
		m.hostReached(now)
	case reached && m.host.alone:
		p.link, p.gossip, p.doubted = 0, GossipUnknown, false
		m.showState(p)
	case reached: // the host decides, and we go on reporting the link to it
	default:
		m.consider(now, p)
	}
}

// hostReached ends the doubt about a silent host: it lives, but our session to
// it does not. Another one is due.
func (m *Member) hostReached(now time.Time) {
	if now.Sub(m.host.lastSeen) > m.t.Silence {
		m.drop(now, "silent")
		m.session.dialAt = now
	}
	m.host.lastSeen = now
}
