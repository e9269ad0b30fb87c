package sim

import (
	"bytes"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

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
	told    time.Duration // the value of alive that was last reported to the member
	silent  time.Duration // when silence was last reported to it; 0: it is not silent
	doubted time.Duration // when this node last sent the others its doubt of the life; 0: never
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

// doubtful reports whether any life is in doubt, the host's included.
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
// reports live and silent nodes to the member, and forgets the lines of lives that are
// gone.
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

// tellLine turns the signs of life on the lifeline since the last tick into evidence.
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

// tellAlive reports a sign of life, if the lifeline belongs to that life, or that the
// peer is a later one.
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
			return // its silence has been reported
		}
		a.tellMet(l, n, met)
	})
}

// look checks whether the life of n is still there, and closes the lifeline of this
// check: the peer is to dial the one that stays.
func (a *agent) look(l *line, n verdict.Node, limit time.Duration) {
	l.dialing = true
	a.reach(n.Contact(), limit, func(up *tcpEnd, met sight) {
		l.dialing = false
		l.retryAt = a.w.now + lineRetry
		a.release(up)
		a.tellMet(l, n, met)
	})
}

// tellMet feeds the member the result of reach. A node that does not show the life may
// not have its grant yet: it is fenced if it has shown that life before, or does not
// show it for as long as it might be silent.
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

// raise makes e the lifeline of l, on which the peer shows a life. dialed: this node
// sends the beats.
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
