package verdict

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// connected asks the host for an incarnation, or for ours to go on.
func (m *Member) connected(now time.Time, s SessionID) {
	m.session.dialing = false
	if m.session.up || m.stage == departing {
		m.out.add(CloseSession{Session: s, Text: "not needed any more"})
		return
	}
	m.session.id, m.session.up = s, true
	m.host.redial = time.Time{} // its process answers
	if !m.host.alone {
		m.host.lastSeen = now
	}
	m.ask(now)
}

// ask sends the request on the open session.
func (m *Member) ask(now time.Time) {
	m.stage, m.synced, m.parts = asking, false, nil
	m.session.askAt, m.session.deadline = time.Time{}, now.Add(m.t.Silence)
	if m.self == (addr.Incarnation{}) {
		m.send(Join{Identity: m.cfg.Self, Previous: m.previous, Term: m.term, Lease: m.lease, Want: m.cfg.Want})
		return
	}
	m.send(Resume{Identity: m.cfg.Self, Incarnation: m.self, Term: m.term, HostOver: m.over[addr.Host], Lease: m.lease})
}

func (m *Member) dialFailed(now time.Time, in DialFailed) {
	m.session.dialing = false
	m.session.dialAt = now.Add(m.t.Redials)
	if in.Refused == "" {
		m.serveLocal()
	} else {
		m.endLocal(in.Refused)
		if m.self != (addr.Incarnation{}) { // the refusal is because that incarnation is over
			m.resetView(in.Refused)
		}
		m.emitHost(HostLost + ": " + in.Refused)
		m.session.dialAt = now.Add(m.t.Resend)
	}
	if !m.host.redial.IsZero() {
		m.hostEnded(ReasonCrashed)
	}
}

// serveLocal shows our last incarnation to the applications of this machine, which need no
// host to use each other's services. To the others we have no incarnation: the host
// gives us the next one, and ends that which they may still know.
func (m *Member) serveLocal() {
	if m.local || m.unwanted || m.cfg.Want != 0 && m.cfg.Want != m.previous.Node || m.self != (addr.Incarnation{}) || !m.since.IsZero() || m.previous.Generation == 0 {
		return // an incarnation that this process had may have been ended by the others
	}
	m.local = true
	m.emit(Event{Kind: EventLocal, Node: m.cfg.Self.node(m.previous), Detail: "no host has answered since this start"})
}

// endLocal takes back the incarnation that serveLocal has shown: the host refuses this node.
func (m *Member) endLocal(text string) {
	m.unwanted = true
	if !m.local {
		return
	}
	m.local = false
	n := m.cfg.Self.node(m.previous)
	n.State = Removed
	m.emit(Event{Kind: EventReset, Node: n, Reason: ReasonPartitioned, Detail: text})
}

// down takes note that the session ended. An end of file makes the host's incarnation
// doubtful until a redial answers; anything else leaves it to silence.
func (m *Member) down(now time.Time, in Down) {
	if !m.session.up || in.Session != m.session.id {
		return
	}
	if m.stage == departing {
		m.finish(Departed{})
		return
	}
	m.session.dialAt = now
	if m.stage != serving {
		m.session.dialAt = now.Add(m.t.Redials)
	}
	m.lose()
	if (in.Cause == DownEnded || in.Cause == DownReset) && m.canDoubt() {
		m.host.redial, m.session.dialAt = now.Add(m.t.Redial), now
	}
	m.dial(now)
}

// dial begins to dial the host if it is time for that.
func (m *Member) dial(now time.Time) {
	if m.session.mayDial() && !now.Before(m.session.dialAt) {
		m.session.dialing = true
		m.out.add(DialHost{})
	}
}

// lose forgets the session.
func (m *Member) lose() {
	m.session.lose()
	m.stage, m.synced, m.parts = seeking, false, nil
	m.host.confirm = 0
}

// drop closes the session from our side; the next dial is after a pause.
func (m *Member) drop(now time.Time, text string) {
	if !m.session.up {
		return
	}
	m.out.add(CloseSession{Session: m.session.id, Text: text})
	m.lose()
	m.session.dialAt = now.Add(m.t.Redials)
}

// canDoubt reports whether there is an incarnation of the host that could end.
func (m *Member) canDoubt() bool {
	return m.host.incarnation != (addr.Incarnation{}) && m.host.incarnation != m.self && !m.host.alone
}

// receive takes a message from the host.
func (m *Member) receive(now time.Time, in Received) {
	if !m.session.up || in.Session != m.session.id {
		return
	}
	if msg, ok := in.Message.(interface{ hostTerm() uint64 }); ok && !m.accept(now, msg.hostTerm()) {
		return
	}
	m.host.lastSeen = now
	m.reportHostAlive()
	switch msg := in.Message.(type) {
	case Grant:
		m.granted(now, msg)
	case Refused:
		m.refused(now, msg)
	case RemovedIncarnation:
		m.verdict(now, msg)
	}
	if m.stage != serving {
		return
	}
	switch msg := in.Message.(type) {
	case Table:
		m.table(now, msg)
	case Delta:
		m.delta(now, msg)
	case Check:
		m.check(now, msg)
	case Pong:
		m.pong(msg)
	}
}

// reportHostAlive takes back our report that the host is silent.
func (m *Member) reportHostAlive() {
	p := m.peers[addr.Host]
	if p == nil {
		return
	}
	p.failed = false
	if p.reported != 0 && m.stage == serving {
		p.reported = 0
		m.send(Report{About: p.node.Incarnation, Evidence: LinkAlive})
	}
}

// accept reports whether the term may speak to us. A higher one than before is
// remembered when it grants, a lower one is a host that must step down.
func (m *Member) accept(now time.Time, term uint64) bool {
	if term < m.term {
		m.note("a host of term %d is ignored: term %d is known", term, m.term)
		m.drop(now, "a newer host is known")
		return false
	}
	if term > m.term && m.stage == serving {
		m.term = term
		m.out.add(Remember{Incarnation: m.self, Term: m.term, Lease: m.lease})
	}
	return true
}

// granted takes the incarnation that the host gives, or confirms.
func (m *Member) granted(now time.Time, g Grant) {
	valid := g.Incarnation.Generation > 0 && g.Incarnation.Node < addr.FirstReserved && g.Term > 0
	if m.stage == serving && g.Incarnation == m.self {
		m.lease = g.Lease // of a new term
		m.out.add(Remember{Incarnation: m.self, Term: m.term, Lease: m.lease})
		return
	}
	if m.stage != asking || !valid {
		return
	}
	if m.cfg.Want != 0 && g.Incarnation.Node != m.cfg.Want {
		m.finish(Halt{Code: RefusedInvalid, Text: fmt.Sprintf("node-id %d: the host has granted the ID %d instead", m.cfg.Want, g.Incarnation.Node)})
		return
	}
	if m.self != (addr.Incarnation{}) && m.self != g.Incarnation {
		m.resetView("the host gave another incarnation")
	}
	fresh := m.self != g.Incarnation
	m.stage, m.session.deadline, m.session.pinged = serving, time.Time{}, now
	m.lease = g.Lease
	if fresh || g.Term != m.term {
		m.self, m.term = g.Incarnation, g.Term
		m.out.add(Remember{Incarnation: m.self, Term: m.term, Lease: m.lease})
	}
	if fresh {
		m.since, m.unnotified, m.local, m.unwanted = now, true, false, false
	}
}

// refused acts on a refusal by its code.
func (m *Member) refused(now time.Time, r Refused) {
	if m.stage != asking {
		return
	}
	switch r.Code {
	case RefusedFenced:
		if m.self == (addr.Incarnation{}) {
			m.drop(now, "a join cannot be fenced")
			return
		}
		m.reset(now, r.Text)
	case RefusedDuplicate, RefusedInvalid:
		m.finish(Halt{Code: r.Code, Text: r.Text})
	case RefusedBusy:
		m.session.askAt, m.session.deadline = now.Add(m.t.Redials), time.Time{}
	case RefusedFull, RefusedStorage:
		m.emitHost(HostLost + ": " + r.Code.String() + ": " + r.Text)
		m.session.askAt, m.session.deadline = now.Add(m.t.Stall), time.Time{}
	case RefusedBanned:
		m.endLocal(r.Text)
		m.emitHost(HostLost + ": " + r.Code.String() + ": " + r.Text)
		m.drop(now, "refused")
		m.session.dialAt = now.Add(m.t.Resend)
	default:
		m.emitHost(HostLost + ": " + r.Code.String() + ": " + r.Text)
		m.drop(now, "refused")
		m.session.dialAt = now.Add(m.t.Stall)
	}
}

// tickRequest gives up on a request or a leave that is not answered.
func (m *Member) tickRequest(now time.Time) {
	switch {
	case m.stage == departing && due(m.session.deadline, now):
		m.finish(Departed{})
	case m.stage == asking && due(m.session.askAt, now):
		m.ask(now)
	case m.stage == asking && due(m.session.deadline, now):
		m.drop(now, "no answer")
	}
}

// tickHost judges the host's incarnation by time.
func (m *Member) tickHost(now time.Time) {
	if m.self != (addr.Incarnation{}) && m.self.Node == addr.Host {
		return
	}
	if due(m.host.redial, now) {
		m.hostEnded(ReasonCrashed)
		return
	}
	if !m.hostSilent(now) {
		return
	}
	m.emitHost(HostLost)
	if !m.canDoubt() {
		if m.stage == serving {
			m.drop(now, "silent")
		}
		return
	}
	p := m.peers[addr.Host]
	switch {
	case p == nil || p.probe != 0:
	case !p.failed || now.Sub(p.tried) >= m.t.Silence:
		m.sendLossReport(now, p)
		m.startProbe(now, p)
		m.probeSilent(now)
	case p.gossip != GossipAlive || m.cutOff():
		m.hostEnded(ReasonSilent)
	case m.session.up:
		// Gossip reaches it: we have lost only our own paths to it. The table
		// stays as it is, and we dial and probe on until gossip agrees.
		m.drop(now, "silent")
	}
}

// hostSilent reports whether nothing has come from the host for too long.
func (m *Member) hostSilent(now time.Time) bool {
	return m.host.redial.IsZero() && !now.Before(m.host.silentAt(m.t))
}

// sendLossReport reports to the host that nothing of it arrives here: ours may still arrive there, and
// would take us for well until we give it up. Where packets are lost on one way only
// the session does not bring it in time: earlier messages are not acknowledged
// either, and are sent again first. So it is sent beside the session too.
func (m *Member) sendLossReport(now time.Time, p *peer) {
	if m.stage == serving {
		p.reported, p.reportedAt = LinkSilent, now
		m.send(Report{About: p.node.Incarnation, Evidence: LinkSilent})
		m.out.add(SendLossReport{Session: m.session.id, Host: p.node.UUID, Epoch: p.node.Epoch})
	}
}

// cutOff reports whether most of the host and the incarnations that we watch are silent on
// their links to us. Then more than our paths to the host are lost, and there is no
// need to wait until gossip has found out too.
func (m *Member) cutOff() bool {
	lost, all := 1, 1 // the host
	for id, p := range m.peers {
		if id != addr.Host && m.Watches(p.node.Incarnation) {
			all++
			if p.link != 0 {
				lost++
			}
		}
	}
	return lost > 1 && 2*lost > all
}

// probeSilent asks for other paths to the peers whose links are silent, so that
// it is known by the time the host is judged.
func (m *Member) probeSilent(now time.Time) {
	for _, p := range m.sorted() {
		if p.node.Incarnation.Node != addr.Host {
			m.probeWithHost(now, p)
		}
	}
}

// probeWithHost asks for another path to a peer if both its link and the host are
// silent.
func (m *Member) probeWithHost(now time.Time, p *peer) {
	if p.link != 0 && p.probe == 0 && now.Sub(p.tried) >= m.t.Silence && m.hostSilent(now) && m.canDoubt() {
		m.startProbe(now, p)
	}
}

// hostEnded is our own verdict about the host: from here on we are alone.
func (m *Member) hostEnded(why Reason) {
	m.host.redial = time.Time{}
	if !m.canDoubt() {
		return
	}
	m.emitHost(HostLost)
	if m.session.up {
		m.out.add(CloseSession{Session: m.session.id, Text: "the host is lost"})
		m.lose()
	}
	m.host.alone = true
	if p := m.peers[addr.Host]; p != nil {
		m.removePeer(p, why)
	}
}

// emitHost emits an EventHost if its detail is new.
func (m *Member) emitHost(detail string) {
	if m.host.detail == detail || detail == HostLost && !m.host.reachable() {
		return // the last detail is more precise; and a host that was never reached cannot be lost
	}
	m.host.detail = detail
	n := Node{Incarnation: m.host.incarnation}
	if p := m.peers[addr.Host]; p != nil {
		n = p.node
	} else if m.self.Generation != 0 && m.self.Node == addr.Host {
		n = m.Self()
	}
	m.emit(Event{Kind: EventHost, Node: n, Detail: detail})
}

// ping gives a sign of life.
func (m *Member) ping(now time.Time) {
	m.send(Ping{Incarnation: m.self, Nonce: m.session.ping(now), Version: m.version})
}

// maxBehind is how many pongs in a row may know a newer version than ours
// before we ask for the table: pongs may overtake the changes they know of.
const maxBehind = 4

func (m *Member) pong(p Pong) {
	if p.Nonce >= m.host.confirm {
		m.host.confirm = 0
	}
	if !m.synced || p.Version <= m.version {
		m.behind = 0
		return
	}
	if m.behind++; m.behind >= maxBehind {
		m.behind = 0
		m.send(Sync{})
	}
}
