package sim

import (
	"bytes"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

// What opens a control session or a lifeline, and answers it.
type (
	controlHello struct {
		lifeline bool
		from     controlEnd
		to       lifeKey // the life that is meant; zero: any
	}
	controlWelcome struct{ from controlEnd }
	controlRefuse  struct{ fenced bool }
	lineBeat       struct{}
)

// hostTimeout bounds one attempt to reach the host.
const hostTimeout = time.Second

func (a *agent) end() controlEnd {
	e := a.self
	e.life, e.term, e.lease = a.member.Self().Life, a.member.Term(), a.member.Lease()
	return e
}

// accept takes a TCP connection that somebody has opened. Its first item says
// what it is for.
func (a *agent) accept(e *tcpEnd) {
	e.received = func(m any) {
		h, ok := m.(controlHello)
		if !ok {
			return
		}
		if !a.admits(h) {
			e.send(controlRefuse{fenced: h.lifeline && a.over[h.from.life.Node] >= h.from.life.Generation && h.from.life.Generation > 0})
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

// admits decides about an opening: who is meant, and whose life is over.
func (a *agent) admits(h controlHello) bool {
	switch {
	case a.departed, a.banned[h.from.uuid], h.from.uuid == a.self.uuid && h.from.epoch == a.self.epoch,
		h.to.uuid != (addr.UUID{}) && h.to.uuid != a.self.uuid:
		return false
	case !h.lifeline:
		return a.host != nil
	case h.from.life == (addr.Life{}):
		return true
	}
	l, ok := decodeLease(h.from.lease)
	if !ok || l.uuid != h.from.uuid || l.life != h.from.life || l.epoch != h.from.epoch {
		return false
	}
	return a.over[h.from.life.Node] < h.from.life.Generation && !a.outdated(h.from, l)
}

// outdated reports a lease of an earlier term that the host's table does not
// bear out.
func (a *agent) outdated(peer controlEnd, l grantLease) bool {
	if l.term >= a.member.Term() || peer.life == (addr.Life{}) || a.hostText != verdict.HostReachable {
		return false
	}
	for _, n := range a.member.Nodes() {
		if n.Life == peer.life && n.UUID == peer.uuid && n.Epoch == peer.epoch {
			return false
		}
	}
	return true
}

// open dials m and opens a control session or a lifeline to the node that to
// names. done gets the end and what the other said; on failure the end is nil,
// and fenced says that our life is over there.
func (a *agent) open(m *machine, lifeline bool, to lifeKey, limit time.Duration, done func(e *tcpEnd, peer controlEnd, fenced bool)) {
	over := false
	finish := func(e *tcpEnd, peer controlEnd, fenced bool) {
		if !over {
			over = true
			done(e, peer, fenced)
		}
	}
	began := a.w.now
	a.w.dialTCP(a.p, m, limit, func(e *tcpEnd, r dialResult) {
		if e == nil {
			finish(nil, controlEnd{}, false)
			return
		}
		e.ended = func(verdict.DownCause) { finish(nil, controlEnd{}, false) }
		a.p.after(limit-(a.w.now-began), func() {
			if !over {
				e.shut()
				finish(nil, controlEnd{}, false)
			}
		})
		e.received = func(x any) {
			switch x := x.(type) {
			case controlWelcome:
				finish(e, x.from, false)
			case controlRefuse:
				e.shut()
				finish(nil, controlEnd{}, x.fenced)
			}
		}
		e.send(controlHello{lifeline: lifeline, from: a.end(), to: to})
	})
}

// attach gives a session its ID. What it delivers goes to the host's machine or
// to the member.
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
			e.close() // it has heard of its end
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
		return a.p.step(failpoint.ResumeHeard)
	}
	return true
}

// send carries a message between the two machines of a host, or to a session.
func (a *agent) send(x verdict.Send, fromHost bool) {
	if g, ok := x.Message.(verdict.Grant); ok {
		g.Lease = grantLease{uuid: g.UUID, epoch: g.Epoch, life: g.Life, term: g.Term}.encode()
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
	case verdict.RemovedLife:
		a.p.step(failpoint.RemovalTold)
	case verdict.Join:
		a.p.step(failpoint.LeaseAsked)
	case verdict.Resume:
		a.p.step(failpoint.ResumeSent)
	}
}

// dialHost looks for the host at every place where it may be, at once.
func (a *agent) dialHost() {
	if a.host != nil {
		a.feedMember(verdict.Connected{Session: verdict.LocalSession})
		return
	}
	var places []*machine
	for _, m := range a.w.machines {
		if m.host && m != a.at {
			places = append(places, m)
		}
	}
	waiting, found := len(places), false
	for _, m := range places {
		a.open(m, false, lifeKey{}, hostTimeout, func(e *tcpEnd, peer controlEnd, _ bool) {
			waiting--
			switch {
			case e != nil && found:
				e.abort()
			case e != nil:
				found = true
				id := a.attach(e, peer, false)
				a.feedMember(verdict.Connected{Session: id})
			case waiting == 0 && !found:
				a.feedMember(verdict.DialFailed{Text: "no host"})
			}
		})
	}
}

// machineAt returns the machine of an address.
func (w *world) machineAt(addresses []string) *machine {
	if len(addresses) == 0 {
		return nil
	}
	return w.byAddress[addresses[0]]
}

// A sight is what reach met.
type sight uint8

const (
	sawNobody     sight = iota // nobody answered
	sawFence                   // it said that our life is over
	sawNewer                   // another start of it answered
	sawNoSuchLife              // it answered, and is not that life: it is another one, or none
	sawAlive                   // it answered
)

// reach opens a lifeline to exactly the life that n names, and says what it met.
func (a *agent) reach(n verdict.Contact, limit time.Duration, done func(up *tcpEnd, met sight)) {
	m := a.w.machineAt(n.Addresses())
	if m == nil {
		done(nil, sawNobody)
		return
	}
	a.open(m, true, lifeKey{uuid: n.UUID, epoch: n.Epoch}, limit, func(e *tcpEnd, peer controlEnd, fenced bool) {
		switch {
		case fenced:
			done(nil, sawFence)
		case e == nil:
			done(nil, sawNobody)
		default:
			if met := a.sees(n, peer); met != sawAlive {
				a.release(e)
				done(nil, met)
				return
			}
			done(e, sawAlive)
		}
	})
}

// sees compares who answered with who was meant.
func (a *agent) sees(n verdict.Contact, peer controlEnd) sight {
	l, _ := decodeLease(peer.lease)
	switch {
	case peer.epoch != n.Epoch:
		return sawNewer
	case peer.life != n.Life:
		return sawNoSuchLife
	case a.outdated(peer, l):
		return sawNobody
	}
	return sawAlive
}

// release ends a lifeline that was opened to see whether somebody is there.
func (a *agent) release(e *tcpEnd) {
	if e != nil {
		e.received, e.ended = func(any) {}, func(verdict.DownCause) {}
		e.close()
	}
}

// redial sees for the host whether the process of a life is still there.
func (a *agent) redial(x verdict.Redial) {
	a.reach(x.Contact, a.w.timing.Redial, func(up *tcpEnd, met sight) {
		outcome := verdict.RedialFailed
		switch met {
		case sawAlive, sawNoSuchLife: // the process is there, and asks for a life again
			outcome = verdict.RedialAlive
		case sawNewer:
			outcome = verdict.RedialNewer
		}
		a.release(up)
		a.feedHost(verdict.Redialed{Life: x.Life, Outcome: outcome})
	})
}

// probe sees whether a life answers on the data path.
func (a *agent) probe(x verdict.Probe) {
	answered := false
	answer := func(reached bool) {
		if !answered {
			answered = true
			a.feedMember(verdict.Probed{Nonce: x.Nonce, Reached: reached})
		}
	}
	a.p.after(a.w.timing.Check, func() { answer(false) })
	a.p.node.ping(x.Life.Node, answer)
}

// A line is the lifeline between this node and one start of another.
type line struct {
	key     lifeKey
	up      *tcpEnd // nil: none
	dialed  bool    // up was dialed here
	dialing bool
	retryAt time.Duration
	shown   addr.Life     // that the peer showed on the last lifeline
	denied  denial        // the first of the last looks in a row that did not find a life
	alive   time.Duration // when up last gave a sign of life
	told    time.Duration // the value of alive that the member was told of
	silent  time.Duration // when it was last told of silence; 0: it is not silent
	doubted time.Duration // when the others were last told that this node doubts the life; 0: never
}

// A denial is when a peer was first found not to be a life.
type denial struct {
	life addr.Life
	at   time.Duration
}

// heard reports whether there is a lifeline that is not silent.
func (l *line) heard() bool { return l.up != nil && l.silent == 0 }

func (a *agent) line(k lifeKey) *line {
	l := a.lines[k]
	if l == nil {
		l = &line{key: k, told: -1}
		a.lines[k] = l
		a.order = append(a.order, l)
	}
	return l
}

// weDial reports whether this node dials the lifeline: the lower UUID does.
func (a *agent) weDial(k lifeKey) bool { return bytes.Compare(a.self.uuid[:], k.uuid[:]) < 0 }

// lineBound returns how long a lifeline may be silent.
func (a *agent) lineBound() time.Duration {
	if a.doubtful() {
		return a.w.timing.Silence
	}
	return a.w.timing.Silence + a.w.timing.Check
}

// doubtful reports whether somebody's life is in doubt, the host's included.
func (a *agent) doubtful() bool { return a.pace.doubt != 0 || a.member.Alone() }

// beatEvery returns the time between two signs of life on lifelines.
func (a *agent) beatEvery() time.Duration {
	t := a.w.timing
	if a.doubtful() {
		return max((t.Silence / 3).Truncate(t.Tick/2), t.Tick/2)
	}
	return max((t.Check + t.Heartbeat).Truncate(t.Tick), t.Tick)
}

// lineRetry is the pause between two attempts to open a lifeline.
const lineRetry = time.Second

// tendLines opens the lifelines that should be there, closes those that need not,
// tells the member who is alive and who silent, and forgets the lines of lives that
// are gone.
func (a *agent) tendLines() {
	if a.departed || a.p.dead {
		return
	}
	nodes := a.member.Nodes()
	living := make(map[lifeKey]bool, len(nodes))
	a.pace.lines = 0
	for _, n := range nodes {
		if n.Life.Node == addr.Host || a.host != nil {
			continue // the control session is the lifeline
		}
		k := lifeKey{n.UUID, n.Epoch}
		living[k] = true
		wanted := a.member.Watches(n.Life)
		if !wanted && a.lines[k] == nil {
			continue
		}
		l := a.line(k)
		a.tellLine(l, n)
		switch {
		case !wanted:
			if l.up != nil && l.dialed {
				l.up.close()
			}
		case l.heard() || l.dialing || a.w.now < l.retryAt:
		case a.weDial(k):
			a.dialLine(l, n)
		case a.member.Alone():
			a.look(l, n, a.w.timing.Silence)
		}
	}
	kept := a.order[:0]
	for _, l := range a.order {
		if !living[l.key] && l.up == nil && !l.dialing {
			delete(a.lines, l.key)
			continue
		}
		kept = append(kept, l)
	}
	a.order = kept
}

// tellLine turns what the lifeline gave since the last tick into evidence.
func (a *agent) tellLine(l *line, n verdict.Node) {
	if l.up == nil {
		return
	}
	life, now := n.Life, a.w.now
	due, doubt := l.alive+a.lineBound(), l.alive+a.w.timing.Silence/2
	if now >= doubt && l.shown == life {
		a.tellDoubt(l, n)
	}
	switch {
	case l.alive != l.told && now < due:
		l.told, l.silent = l.alive, 0
		a.tellAlive(l, life)
	case now >= due && now-l.silent >= a.w.timing.Silence:
		l.silent = now
		if l.shown == life {
			a.feedMember(verdict.Link{Life: life, Evidence: verdict.LinkSilent})
		}
	}
	if l.silent != 0 {
		due = l.silent + a.w.timing.Silence
	} else if a.member.Alone() && now < doubt {
		due = doubt
	}
	if a.pace.lines == 0 || due < a.pace.lines {
		a.pace.lines = due
	}
}

// tellAlive tells of a sign of life, if the lifeline speaks for that life, or that
// the peer is a later one.
func (a *agent) tellAlive(l *line, life addr.Life) {
	switch {
	case l.shown == life:
		a.feedMember(verdict.Link{Life: life, Evidence: verdict.LinkAlive})
	case l.shown.Node == life.Node && l.shown.Generation > life.Generation:
		a.feedMember(verdict.Link{Life: life, Evidence: verdict.LinkFenced})
	}
}

// beatLines gives a sign of life on every lifeline that this node has dialed.
func (a *agent) beatLines() {
	now, every := a.w.now, a.beatEvery()
	if now < a.beatAt && a.beatAt-now <= every { // else a doubt has begun
		return
	}
	a.beatAt = a.pace.beat(now, every)
	for _, l := range a.order {
		if l.up != nil && l.dialed {
			a.sent++
			l.up.send(lineBeat{})
		}
	}
}

// excuseLines gives every lifeline a fresh bound, after this process paused.
func (a *agent) excuseLines() {
	for _, l := range a.order {
		if l.up != nil {
			l.alive, l.told, l.silent = a.w.now, a.w.now, 0
		}
	}
}

func (a *agent) dialLine(l *line, n verdict.Node) {
	l.dialing = true
	self := a.member.Self().Life
	a.reach(n.Contact(), a.w.timing.Silence, func(up *tcpEnd, met sight) {
		l.dialing = false
		l.retryAt = a.w.now + lineRetry
		had := l.up
		switch {
		case up != nil && self != a.member.Self().Life: // it was shown another life
			a.release(up)
			return
		case up != nil && !l.heard():
			a.raise(l, up, true, n.Life)
			if had != nil {
				had.abort()
			}
		case up != nil:
			a.release(up)
		case had != nil:
			return // its silence has been told
		}
		a.tellMet(l, n, met)
	})
}

// look sees whether the life of n is still there, and ends the lifeline with which
// it looks: the peer is to dial the one that stays.
func (a *agent) look(l *line, n verdict.Node, limit time.Duration) {
	l.dialing = true
	a.reach(n.Contact(), limit, func(up *tcpEnd, met sight) {
		l.dialing = false
		l.retryAt = a.w.now + lineRetry
		a.release(up)
		a.tellMet(l, n, met)
	})
}

// tellMet feeds the member what reach met. A node that does not show the life may
// not have its grant yet: it is fenced if it has shown that life before, or does
// not show it for as long as it might be silent.
func (a *agent) tellMet(l *line, n verdict.Node, met sight) {
	denied := l.denied
	l.denied = denial{}
	said := verdict.LinkAlive
	switch met {
	case sawNewer:
		said = verdict.LinkReset
	case sawFence:
		said = verdict.LinkFenced
	case sawNobody:
		a.tellDoubt(l, n)
		said = verdict.LinkRefused
	case sawNoSuchLife:
		if denied.life != n.Life {
			denied = denial{n.Life, a.w.now}
		}
		if l.denied = denied; l.shown != n.Life && a.w.now-denied.at < a.w.timing.Silence {
			return
		}
		said = verdict.LinkFenced
	}
	a.feedMember(verdict.Link{Life: n.Life, Evidence: said})
}

// endLives ends the lifelines on which this node showed a life that is over.
func (a *agent) endLives() {
	for _, l := range a.order {
		if l.up != nil {
			l.up.close()
		}
	}
}

// acceptLine takes a lifeline that a peer opened. One that is not needed is
// there to see that we are, unless the peer beats on it: then it has lost the one
// that we believe in.
func (a *agent) acceptLine(e *tcpEnd, peer controlEnd) {
	k := lifeKey{peer.uuid, peer.epoch}
	l := a.line(k)
	if l.up == nil && !a.weDial(k) && peer.life != (addr.Life{}) {
		a.raise(l, e, false, peer.life)
		return
	}
	self := a.member.Self().Life // that was shown to the peer
	e.ended = func(verdict.DownCause) {}
	e.received = func(m any) {
		if _, ok := m.(lineBeat); !ok || a.weDial(k) || peer.life == (addr.Life{}) {
			return
		}
		if self != a.member.Self().Life {
			a.release(e)
			return
		}
		had := l.up
		a.raise(l, e, false, peer.life)
		e.received(m)
		if had != nil {
			had.abort()
		}
	}
}

// raise makes e the lifeline of l, on which the peer shows a life. dialed says that
// this node beats.
func (a *agent) raise(l *line, e *tcpEnd, dialed bool, shown addr.Life) {
	l.up, l.dialed, l.alive, l.told, l.silent, l.shown = e, dialed, a.w.now, -1, 0, shown
	e.received = func(m any) {
		l.alive = a.w.now
		if _, ok := m.(lineBeat); ok && !dialed {
			a.sent++
			e.send(lineBeat{})
		}
	}
	e.ended = func(cause verdict.DownCause) { a.lineDown(l, e) }
}

// lineDown redials at once when a lifeline ended, unless it was closed here.
func (a *agent) lineDown(l *line, e *tcpEnd) {
	if l.up != e {
		return
	}
	l.up = nil
	node, ok := a.living(l.key)
	switch {
	case !ok, e.ending, a.departed, !a.member.Watches(node.Life):
	case !a.weDial(l.key):
		a.look(l, node, a.w.timing.Redial)
	case !l.dialing:
		a.dialLine(l, node)
	}
}
