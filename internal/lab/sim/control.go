package sim

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

// The items that open a control session or a lifeline, and answer it.
type (
	controlHello struct {
		lifeline bool
		from     controlEnd
		to       verdict.Start // the incarnation that is meant; zero: any
	}
	controlWelcome struct{ from controlEnd }
	controlRefuse  struct{ fenced bool }
	lineKeepalive  struct{}
)

// hostTimeout bounds one attempt to reach the host.
const hostTimeout = time.Second

func (a *agent) end() controlEnd {
	e := a.self
	e.incarnation, e.lease = a.member.Self().Incarnation, a.member.Lease()
	return e
}

// accept takes a TCP connection that a node has opened. Its first item states its
// purpose.
func (a *agent) accept(e *tcpEnd) {
	e.received = func(m any) {
		h, ok := m.(controlHello)
		if !ok {
			return
		}
		if !a.admits(h) {
			e.send(controlRefuse{fenced: h.lifeline && a.over[h.from.incarnation.Node] >= h.from.incarnation.Generation && h.from.incarnation.Generation > 0})
			e.close()
			return
		}
		e.send(controlWelcome{a.end()})
		if h.lifeline {
			a.acceptLine(e, h.from)
		} else {
			a.attach(e, h.from, true)
		}
	}
}

// admits decides about an opening: is this node meant, and is the opener's incarnation not over?
func (a *agent) admits(h controlHello) bool {
	switch {
	case a.departed, a.banned[h.from.uuid], h.from.uuid == a.self.uuid && h.from.epoch == a.self.epoch,
		h.to.UUID != (addr.UUID{}) && h.to.UUID != a.self.uuid:
		return false
	case !h.lifeline:
		return a.host != nil
	case h.from.incarnation == (addr.Incarnation{}):
		return true
	}
	l, ok := decodeLease(h.from.lease)
	if !ok || l.UUID != h.from.uuid || l.Incarnation != h.from.incarnation || l.Epoch != h.from.epoch {
		return false
	}
	return a.over[h.from.incarnation.Node] < h.from.incarnation.Generation && !a.outdated(h.from, l)
}

// outdated reports a lease of an earlier term that the host's table does not
// bear out.
func (a *agent) outdated(peer controlEnd, l grantLease) bool {
	if l.Term >= a.member.Term() || peer.incarnation == (addr.Incarnation{}) || a.hostText != verdict.HostReachable {
		return false
	}
	for _, n := range a.member.Nodes() {
		if n.Incarnation == peer.incarnation && n.UUID == peer.uuid && n.Epoch == peer.epoch {
			return false
		}
	}
	return true
}

// open dials m and opens a control session or a lifeline to the node that to names.
// done gets the end and the peer's identity. On failure the end is nil, and fenced
// reports that the peer holds our incarnation to be over.
func (a *agent) open(m *machine, lifeline bool, to verdict.Start, limit time.Duration, done func(e *tcpEnd, peer controlEnd, fenced bool)) {
	began := a.w.now
	a.w.dialTCP(a.p, m, limit, func(e *tcpEnd) {
		if e == nil {
			done(nil, controlEnd{}, false)
			return
		}
		finish := once(func(answer any) {
			switch x := answer.(type) {
			case controlWelcome:
				done(e, x.from, false)
			case controlRefuse:
				e.shut()
				done(nil, controlEnd{}, x.fenced)
			}
		})
		e.ended = func(verdict.DownCause) { finish(controlRefuse{}) }
		a.p.after(limit-(a.w.now-began), func() { finish(controlRefuse{}) })
		e.received = finish
		e.send(controlHello{lifeline: lifeline, from: a.end(), to: to})
	})
}

// attach gives a session its ID. Its messages go to the host's machine or to the
// member.
func (a *agent) attach(e *tcpEnd, peer controlEnd, atHost bool) verdict.SessionID {
	a.lastID++
	id := a.lastID
	a.sessions[id], a.peers[id] = e, peer
	e.received = func(m any) {
		msg, ok := m.(verdict.Message)
		if !ok {
			return
		}
		if msg, ok = prove(msg, peer); !ok {
			e.close()
			return
		}
		in := verdict.Received{Session: id, Message: msg}
		if _, asks := msg.(verdict.Join); asks && a.banned[peer.uuid] {
			e.close() // its end was reported to it
			return
		}
		if atHost {
			if !a.heardAtHost(msg) {
				return
			}
			a.feedHost(in)
			return
		}
		a.feedMember(in)
	}
	e.ended = func(cause verdict.DownCause) {
		delete(a.sessions, id)
		delete(a.peers, id)
		in := verdict.Down{Session: id, Cause: cause}
		if atHost {
			a.feedHost(in)
		} else {
			a.feedMember(in)
		}
	}
	return id
}

// heardAtHost marks the steps of the protocol at the host. It reports false if
// the process crashed there.
func (a *agent) heardAtHost(m verdict.Message) bool {
	switch m.(type) {
	case verdict.Ack:
		return a.p.step(failpoint.RemovalAcked)
	case verdict.Resume:
		return a.p.step(failpoint.ResumeArrived)
	}
	return true
}

// send carries a message between the two machines of a host, or to a session.
func (a *agent) send(x verdict.Send, fromHost bool) {
	if g, ok := x.Message.(verdict.Grant); ok {
		g.Lease = grantLease{g.UUID, g.Epoch, g.Incarnation, g.Term}.encode()
		x.Message = g
		a.w.watch.granted(a, x.Session, g)
	}
	if a.host != nil && x.Session == verdict.LocalSession {
		if in := verdict.Received(x); fromHost {
			a.feedMember(in)
		} else {
			a.feedHost(in)
		}
		return
	}
	e := a.sessions[x.Session]
	if e == nil {
		return
	}
	a.sent++
	e.send(x.Message)
	switch x.Message.(type) {
	case verdict.Grant:
		a.p.step(failpoint.GrantSent)
	case verdict.RemovedIncarnation:
		a.p.step(failpoint.RemovalSent)
	case verdict.Join:
		a.p.step(failpoint.LeaseAsked)
	case verdict.Resume:
		a.p.step(failpoint.ResumeSent)
	}
}

// dialHost opens a session to the host.
func (a *agent) dialHost() {
	if a.host != nil {
		a.feedMember(verdict.Connected{Session: verdict.LocalSession})
		return
	}
	a.open(a.w.machines[0], false, verdict.Start{}, hostTimeout, func(e *tcpEnd, peer controlEnd, _ bool) {
		if e == nil {
			a.feedMember(verdict.DialFailed{Text: "no host"})
			return
		}
		a.feedMember(verdict.Connected{Session: a.attach(e, peer, false)})
	})
}

// machineAt returns the machine of an address.
func (w *world) machineAt(addresses []string) *machine {
	if len(addresses) == 0 {
		return nil
	}
	return w.byAddress[addresses[0]]
}

// reach opens a lifeline to exactly the incarnation that n names, and reports the result.
func (a *agent) reach(n verdict.Contact, limit time.Duration, done func(up *tcpEnd, met verdict.DialResult)) {
	m := a.w.machineAt(n.Addresses())
	if m == nil {
		done(nil, verdict.DialUnanswered)
		return
	}
	a.open(m, true, verdict.Start{UUID: n.UUID, Epoch: n.Epoch}, limit, func(e *tcpEnd, peer controlEnd, fenced bool) {
		switch {
		case fenced:
			done(nil, verdict.DialFenced)
		case e == nil:
			done(nil, verdict.DialUnanswered)
		default:
			if met := a.sees(n, peer); met != verdict.DialAlive {
				a.release(e)
				done(nil, met)
				return
			}
			done(e, verdict.DialAlive)
		}
	})
}

// sees compares the node that answered with the one that was meant.
func (a *agent) sees(n verdict.Contact, peer controlEnd) verdict.DialResult {
	met := n.Answer(peer.epoch, peer.incarnation)
	if l, _ := decodeLease(peer.lease); met == verdict.DialAlive && a.outdated(peer, l) {
		return verdict.DialUnanswered
	}
	return met
}

// release ends a lifeline that was opened to probe whether a node is there.
func (a *agent) release(e *tcpEnd) {
	if e != nil {
		e.received, e.ended = func(any) {}, func(verdict.DownCause) {}
		e.close()
	}
}

// redial checks for the host whether the process of an incarnation is still there.
func (a *agent) redial(x verdict.Redial) {
	a.reach(x.Contact, a.w.timing.Redial, func(up *tcpEnd, met verdict.DialResult) {
		a.release(up)
		a.feedHost(verdict.Redialed{Incarnation: x.Incarnation, Outcome: met.Outcome()})
	})
}

// probe checks whether an incarnation answers on the data path.
func (a *agent) probe(x verdict.Probe) {
	answer := once(func(reached bool) { a.feedMember(verdict.Probed{Nonce: x.Nonce, Reached: reached}) })
	a.p.after(a.w.timing.Check, func() { answer(false) })
	a.p.node.ping(x.Incarnation.Node, answer)
}
