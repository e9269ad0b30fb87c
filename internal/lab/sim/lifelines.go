package sim

import (
	"bytes"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A line is the lifeline between this node and one start of another.
type line struct {
	verdict.Lifeline
	key     incarnationKey
	up      *tcpEnd // nil: none
	dialed  bool    // up was dialed here
	dialing bool
	retryAt time.Duration
	alive   time.Time // when up last gave a sign of life
}

// heard reports whether there is a lifeline that is not silent.
func (l *line) heard() bool { return l.up != nil && !l.Silent() }

func (a *agent) line(k incarnationKey) *line {
	l := a.lines[k]
	if l == nil {
		l = &line{key: k}
		a.lines[k] = l
		a.order = append(a.order, l)
	}
	return l
}

// weDial reports whether this node dials the lifeline: the lower UUID does.
func (a *agent) weDial(k incarnationKey) bool { return bytes.Compare(a.self.uuid[:], k.uuid[:]) < 0 }

// lineRetry is the pause between two attempts to open a lifeline.
const lineRetry = time.Second

// tendLines opens the lifelines that should be there, closes those that need not,
// reports live and silent nodes to the member, and forgets the lines of incarnations that are
// gone.
func (a *agent) tendLines() {
	if a.departed || a.p.dead {
		return
	}
	nodes := a.member.Nodes()
	living := make(map[incarnationKey]bool, len(nodes))
	a.pace.BeginLines()
	for _, n := range nodes {
		if n.Incarnation.Node == addr.Host || a.host != nil {
			continue // the control session is the lifeline
		}
		k := incarnationKey{n.UUID, n.Epoch}
		living[k] = true
		wanted := a.member.Watches(n.Incarnation)
		if !wanted && a.lines[k] == nil {
			continue
		}
		l := a.line(k)
		if l.up != nil {
			e, doubt := a.pace.Heard(&l.Lifeline, n.Incarnation, l.alive, a.w.time())
			a.tell(n, e, doubt)
		}
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

// tell passes on the evidence about an incarnation, if there is any, and a doubt.
func (a *agent) tell(n verdict.Node, e verdict.Evidence, doubt bool) {
	if doubt {
		a.tellDoubt(n)
	}
	if e != 0 {
		a.feedMember(verdict.Link{Incarnation: n.Incarnation, Evidence: e})
	}
}

// beatLines gives a sign of life on every lifeline that this node has dialed.
func (a *agent) beatLines() {
	if !a.pace.Beat(a.w.time()) {
		return
	}
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
			l.alive = a.w.time()
			l.Excuse(l.alive)
		}
	}
}

func (a *agent) dialLine(l *line, n verdict.Node) {
	l.dialing = true
	self := a.member.Self().Incarnation
	a.reach(n.Contact(), a.w.timing.Silence, func(up *tcpEnd, met verdict.Sight) {
		l.dialing = false
		l.retryAt = a.w.now + lineRetry
		had := l.up
		switch {
		case up != nil && self != a.member.Self().Incarnation: // it was shown another incarnation
			a.release(up)
			return
		case up != nil && !l.heard():
			a.raise(l, up, true, n.Incarnation)
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

// look checks whether the incarnation of n is still there, and closes the lifeline of this
// check: the peer is to dial the one that stays.
func (a *agent) look(l *line, n verdict.Node, limit time.Duration) {
	l.dialing = true
	a.reach(n.Contact(), limit, func(up *tcpEnd, met verdict.Sight) {
		l.dialing = false
		l.retryAt = a.w.now + lineRetry
		a.release(up)
		a.tellMet(l, n, met)
	})
}

// tellMet feeds the member the result of reach.
func (a *agent) tellMet(l *line, n verdict.Node, met verdict.Sight) {
	e, doubt := a.pace.Met(&l.Lifeline, n.Incarnation, met, a.w.time())
	a.tell(n, e, doubt)
}

// endIncarnations ends the lifelines on which this node showed an incarnation that is over.
func (a *agent) endIncarnations() {
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
	k := incarnationKey{peer.uuid, peer.epoch}
	l := a.line(k)
	if l.up == nil && !a.weDial(k) && peer.incarnation != (addr.Incarnation{}) {
		a.raise(l, e, false, peer.incarnation)
		return
	}
	self := a.member.Self().Incarnation // that was shown to the peer
	e.ended = func(verdict.DownCause) {}
	e.received = func(m any) {
		if _, ok := m.(lineBeat); !ok || a.weDial(k) || peer.incarnation == (addr.Incarnation{}) {
			return
		}
		if self != a.member.Self().Incarnation {
			a.release(e)
			return
		}
		had := l.up
		a.raise(l, e, false, peer.incarnation)
		e.received(m)
		if had != nil {
			had.abort()
		}
	}
}

// raise makes e the lifeline of l, on which the peer shows an incarnation. dialed: this node
// sends the beats.
func (a *agent) raise(l *line, e *tcpEnd, dialed bool, shown addr.Incarnation) {
	l.up, l.dialed, l.alive = e, dialed, a.w.time()
	l.Raise(shown)
	e.received = func(m any) {
		l.alive = a.w.time()
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
	case !ok, e.ending, a.departed, !a.member.Watches(node.Incarnation):
	case !a.weDial(l.key):
		a.look(l, node, a.w.timing.Redial)
	case !l.dialing:
		a.dialLine(l, node)
	}
}
