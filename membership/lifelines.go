package membership

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

// lineRetry is the pause between two attempts to open a lifeline.
const lineRetry = time.Second

// A line is the lifeline between this node and one start of another. The loop
// owns it, except for alive.
type line struct {
	verdict.Lifeline
	key     gossip.Key
	up      *control.Lifeline   // nil: none
	extra   []*control.Lifeline // others that the peer has opened, for a check, and those that end
	dialed  bool                // up was dialed here
	dialing bool
	retryAt time.Time
	alive   *atomic.Int64 // when up last gave a sign of life, Unix nanoseconds
}

// heard reports whether there is a lifeline that is not silent.
func (l *line) heard() bool { return l.up != nil && !l.Silent() }

// tendLines opens the lifelines that should be there, closes those that need not,
// reports to the member which lives are alive or silent, and forgets the lines of incarnations
// that are gone. Without a host it also dials nodes that should dial and do not: a node
// that has no incarnation any more dials no other.
func (a *Agent) tendLines(now time.Time) {
	nodes := a.member.Nodes()
	if a.hasDeparted() {
		return
	}
	living := make(map[gossip.Key]bool, len(nodes))
	a.pace.BeginLines()
	for _, n := range nodes {
		if n.Incarnation.Node == addr.Host || a.host != nil {
			continue // the control session is the lifeline
		}
		k := gossip.Key{UUID: n.UUID, Epoch: n.Epoch}
		living[k] = true
		l := a.lines[k]
		if l == nil {
			if !a.wants(n.Incarnation) {
				continue
			}
			l = a.line(k)
		}
		if l.up != nil {
			e, doubt := a.pace.Heard(&l.Lifeline, n.Incarnation, time.Unix(0, l.alive.Load()), now)
			a.tell(l, n, e, doubt)
		}
		switch {
		case !a.wants(n.Incarnation):
			if l.up != nil && l.dialed {
				l.up.Close("no link in use, and not watched")
			}
		case l.heard() || l.dialing || now.Before(l.retryAt):
		case a.weDial(k):
			a.dialLine(l, n)
		case a.member.Alone():
			a.look(l, n, a.timing.Silence)
		}
	}
	for k, l := range a.lines {
		if !living[k] && l.up == nil && len(l.extra) == 0 && !l.dialing {
			delete(a.lines, k)
		}
	}
}

// wants reports whether this node is to have a lifeline to an incarnation.
func (a *Agent) wants(l addr.Incarnation) bool { return a.watched[l] || a.member.Watches(l) }

// weDial reports whether this node dials the lifeline: the lower UUID does.
func (a *Agent) weDial(k gossip.Key) bool {
	return bytes.Compare(a.self.UUID[:], k.UUID[:]) < 0
}

// line returns the line to k, a new one if there is none.
func (a *Agent) line(k gossip.Key) *line {
	l := a.lines[k]
	if l == nil {
		l = &line{key: k}
		a.lines[k] = l
	}
	return l
}

// tell passes on the evidence about an incarnation, if there is any, and a doubt.
func (a *Agent) tell(l *line, n Node, e verdict.Evidence, doubt bool) {
	if doubt {
		a.tellDoubt(l, n)
	}
	if e != 0 {
		a.feedMember(verdict.Link{Incarnation: n.Incarnation, Evidence: e})
	}
}

// beatLines gives a sign of life on every lifeline that this node has dialed.
func (a *Agent) beatLines(now time.Time) {
	if !a.pace.Beat(now) {
		return
	}
	for _, l := range a.lines {
		if l.up != nil && l.dialed {
			l.up.Beat()
		}
	}
}

// excuseLines gives every lifeline a fresh bound, after this process paused.
func (a *Agent) excuseLines(now time.Time) {
	for _, l := range a.lines {
		if l.up != nil {
			l.alive.Store(now.UnixNano())
			l.Excuse(now)
		}
	}
}

// dialLine opens the lifeline to n.
func (a *Agent) dialLine(l *line, n Node) {
	l.dialing = true
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, a.timing.Silence)
		defer cancel()
		up, met := a.reach(ctx, n.Contact(), nil)
		if !a.post(func() { a.lineDialed(l, n, up, met) }) && up != nil {
			up.Abort()
		}
	})
}

// look sees whether the incarnation of n is still there, and ends the lifeline with which
// it looks: the peer is to dial the one that stays.
func (a *Agent) look(l *line, n Node, limit time.Duration) {
	l.dialing = true
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, limit)
		defer cancel()
		up, met := a.reach(ctx, n.Contact(), nil)
		a.post(func() {
			l.dialing = false
			l.retryAt = time.Now().Add(lineRetry)
			a.tellMet(l, n, met)
		})
		a.release(up)
	})
}

// lineDialed takes the result of dialLine.
func (a *Agent) lineDialed(l *line, n Node, up *control.Lifeline, met verdict.Sight) {
	l.dialing = false
	l.retryAt = time.Now().Add(lineRetry)
	had := l.up
	switch {
	case up != nil && a.outlived(up):
		a.wg.Go(func() { a.release(up) })
		return
	case up != nil && !l.heard():
		a.raise(l, up, true)
		a.giveUp(l, had)
	case up != nil:
		a.addExtra(l, up)
		up.Close("there is another")
	case had != nil:
		return // its silence has been reported
	}
	a.tellMet(l, n, met)
}

// giveUp ends the lifeline that another one replaces, if there was one.
func (a *Agent) giveUp(l *line, up *control.Lifeline) {
	if up != nil {
		l.extra = append(l.extra, up)
		up.Abort()
	}
}

// outlived reports whether this node is not the incarnation that it showed when up was
// opened. Without one it does not speak for any.
func (a *Agent) outlived(up *control.Lifeline) bool {
	shown := up.Self().Incarnation
	return shown == noIncarnation || shown != a.member.Self().Incarnation
}

// endIncarnations ends the lifelines on which this node showed an incarnation that is over. The
// others learn by it, from this node itself, that it is not that incarnation any more.
func (a *Agent) endIncarnations(over addr.Incarnation) {
	text := "incarnation " + over.String() + " is over"
	for _, l := range a.lines {
		for _, up := range l.extra {
			up.Close(text)
		}
		if l.up != nil {
			l.up.Close(text)
		}
	}
}

// tellMet feeds the member the result of reach.
func (a *Agent) tellMet(l *line, n Node, met verdict.Sight) {
	e, doubt := a.pace.Met(&l.Lifeline, n.Incarnation, met, time.Now())
	a.tell(l, n, e, doubt)
}

// acceptLine takes a lifeline that a peer opened.
func (a *Agent) acceptLine(up *control.Lifeline) {
	p := up.Peer()
	if a.linesOf(p.UUID) >= maxPerPeer || a.keptOut(p.UUID) != nil {
		up.Abort()
		return
	}
	if a.outlived(up) {
		a.wg.Go(func() { a.reject(up, errors.New("this node has another incarnation by now")) })
		return
	}
	l := a.line(gossip.Key{UUID: p.UUID, Epoch: p.Epoch})
	if l.up == nil && !a.weDial(l.key) && p.Incarnation != noIncarnation {
		a.raise(l, up, false)
		return
	}
	a.addExtra(l, up)
}

// addExtra starts a lifeline that is no evidence when it ends: the peer only
// verifies that we are here. If the peer beats on it, it is not an extra one: the
// peer has lost the one that we use.
func (a *Agent) addExtra(l *line, up *control.Lifeline) {
	l.extra = append(l.extra, up)
	alive := new(atomic.Int64)
	up.Start(func() {
		if alive.Swap(time.Now().UnixNano()) == 0 {
			a.post(func() { a.promote(l, up, alive) })
		}
	}, func(_ verdict.DownCause, err error) {
		a.post(func() { a.lineDown(l, up, err) })
	})
}

// promote makes an extra lifeline, on which the peer beats, the one that counts.
func (a *Agent) promote(l *line, up *control.Lifeline, alive *atomic.Int64) {
	i := slices.Index(l.extra, up)
	if i < 0 || a.weDial(l.key) || up.Peer().Incarnation == noIncarnation {
		return
	}
	l.extra = slices.Delete(l.extra, i, i+1)
	had := l.up
	l.up, l.dialed, l.alive = up, false, alive
	l.Raise(up.Peer().Incarnation)
	a.published = false
	a.giveUp(l, had)
}

// raise makes up the lifeline of l. dialed says that this node beats.
func (a *Agent) raise(l *line, up *control.Lifeline, dialed bool) {
	alive := new(atomic.Int64)
	alive.Store(time.Now().UnixNano())
	l.up, l.dialed, l.alive = up, dialed, alive
	l.Raise(up.Peer().Incarnation)
	a.published = false
	up.Start(func() { alive.Store(time.Now().UnixNano()) },
		func(_ verdict.DownCause, err error) {
			a.post(func() { a.lineDown(l, up, err) })
		})
}

// lineDown redials at once when a lifeline ended, unless it was closed here:
// the peer's last message may be out of date, and whether it answers is not.
// Both ends do: each of them has then its own evidence.
func (a *Agent) lineDown(l *line, up *control.Lifeline, err error) {
	if l.up != up {
		if i := slices.Index(l.extra, up); i >= 0 {
			l.extra = slices.Delete(l.extra, i, i+1)
		}
		return
	}
	l.up = nil
	a.published = false
	n, ok := a.living(l.key)
	a.log.Debug().Err(err).Stringer("incarnation", n.Incarnation).Msg("lifeline ended")
	var closed *control.ClosedError
	closedHere := errors.As(err, &closed) && !closed.Remote
	switch {
	case !ok, closedHere, a.hasDeparted(), !a.wants(n.Incarnation):
	case !a.weDial(l.key):
		a.look(l, n, a.timing.Redial)
	case !l.dialing:
		a.dialLine(l, n)
	}
}

// living returns the incarnation of a start of a node, if the table has it.
func (a *Agent) living(k gossip.Key) (Node, bool) {
	for _, n := range a.member.Nodes() {
		if n.UUID == k.UUID && n.Epoch == k.Epoch {
			return n, true
		}
	}
	return Node{}, false
}

// endLine ends a line with the agent.
func (a *Agent) endLine(l *line) {
	for _, up := range append(l.extra, l.up) {
		if up == nil {
			continue
		}
		if a.hasDeparted() {
			up.Close("left")
		} else {
			up.Abort()
		}
	}
}

// linesOf counts the lifelines that one node has open here, under all epochs.
func (a *Agent) linesOf(u addr.UUID) (n int) {
	for k, l := range a.lines {
		if k.UUID != u {
			continue
		}
		n += len(l.extra)
		if l.up != nil {
			n++
		}
	}
	return n
}

// linesUp counts the lifelines.
func (a *Agent) linesUp() (n int) {
	for _, l := range a.lines {
		if l.up != nil {
			n++
		}
	}
	return n
}
