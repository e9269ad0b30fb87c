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
	key     gossip.Key
	up      *control.Lifeline   // nil: none
	extra   []*control.Lifeline // others that the peer has opened, for a check, and those that end
	dialed  bool                // up was dialed here
	dialing bool
	retryAt time.Time
	shown   addr.Life // that the peer showed on the last lifeline; the zero Life before the first
	denied  denial    // the first of the last looks in a row that did not find a life

	alive  *atomic.Int64 // when up last gave a sign of life, Unix nanoseconds
	told   int64         // the value of alive last reported to the member
	silent time.Time     // when silence was last reported to it; zero: it is not silent

	doubted time.Time // when this node last sent its doubt to the others
}

// A denial is when a peer was first found not to be a life.
type denial struct {
	life addr.Life
	at   time.Time
}

// heard reports whether there is a lifeline that is not silent. One that is may
// stay so long after the network is back: its kernel waits ever longer before it
// sends again, or the other end has given it up and could not say so.
func (l *line) heard() bool { return l.up != nil && l.silent.IsZero() }

// tendLines opens the lifelines that should be there, closes those that need not,
// reports to the member which lives are alive or silent, and forgets the lines of lives
// that are gone. Without a host it also dials nodes that should dial and do not: a node
// that has no life any more dials no other.
func (a *Agent) tendLines(now time.Time) {
	nodes := a.member.Nodes()
	if a.hasDeparted() {
		return
	}
	living := make(map[gossip.Key]bool, len(nodes))
	a.pace.lines = time.Time{}
	for _, n := range nodes {
		if n.Life.Node == addr.Host || a.host != nil {
			continue // the control session is the lifeline
		}
		k := gossip.Key{UUID: n.UUID, Epoch: n.Epoch}
		living[k] = true
		l := a.lines[k]
		if l == nil {
			if !a.wants(n.Life) {
				continue
			}
			l = a.line(k)
		}
		a.tellLine(l, n, now)
		switch {
		case !a.wants(n.Life):
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

// wants reports whether this node is to have a lifeline to a life.
func (a *Agent) wants(l addr.Life) bool { return a.watched[l] || a.member.Watches(l) }

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

// tellLine turns the lifeline's state since the last tick into evidence.
func (a *Agent) tellLine(l *line, n Node, now time.Time) {
	if l.up == nil {
		return
	}
	life, at := n.Life, l.alive.Load()
	due, doubt := time.Unix(0, at).Add(a.lineBound()), time.Unix(0, at).Add(a.timing.Silence/2)
	if !now.Before(doubt) && l.shown == life {
		a.tellDoubt(l, n, now)
	}
	switch {
	case at != l.told && now.Before(due):
		l.told, l.silent = at, time.Time{}
		a.tellAlive(l, life)
	case !now.Before(due) && now.Sub(l.silent) >= a.timing.Silence:
		l.silent = now
		if l.shown == life {
			a.feedMember(verdict.Link{Life: life, Evidence: verdict.LinkSilent})
		}
	}
	if !l.silent.IsZero() {
		due = l.silent.Add(a.timing.Silence)
	} else if a.member.Alone() && now.Before(doubt) {
		due = doubt
	}
	if a.pace.lines.IsZero() || due.Before(a.pace.lines) {
		a.pace.lines = due
	}
}

// tellAlive reports a sign of life. The lifeline may speak for another life of the
// same process: for an earlier one, then it is about to be closed, or for a later
// one, which proves that life is over.
func (a *Agent) tellAlive(l *line, life addr.Life) {
	switch {
	case l.shown == life:
		a.feedMember(verdict.Link{Life: life, Evidence: verdict.LinkAlive})
	case l.shown.Node == life.Node && l.shown.Generation > life.Generation:
		a.feedMember(verdict.Link{Life: life, Evidence: verdict.LinkFenced})
	}
}

// beatLines gives a sign of life on every lifeline that this node has dialed,
// on all of them at once and at the time of a beat, so that an idle process
// wakes up once for all.
func (a *Agent) beatLines(now time.Time) {
	every := a.beatEvery()
	if now.Before(a.beatAt) && a.beatAt.Sub(now) <= every { // else a doubt has begun
		return
	}
	a.beatAt = a.pace.beat(now, every)
	for _, l := range a.lines {
		if l.up != nil && l.dialed {
			l.up.Beat()
		}
	}
}

// beatEvery returns the time between two signs of life. While all is well a
// lifeline bears the same pause as a control session (Silence - Heartbeat). In
// doubt, and without a host, three come within the bound.
func (a *Agent) beatEvery() time.Duration {
	t := a.timing
	if a.doubtful() {
		return max((t.Silence / 3).Truncate(t.Tick/2), t.Tick/2)
	}
	return max((t.Check + t.Heartbeat).Truncate(t.Tick), t.Tick)
}

// lineBound returns how long a lifeline may be silent. While all is well the
// host is the one to notice a silent node, by its session, and a lifeline that
// falls silent shows a pair that has lost only each other: that may take as long
// as the loss of a silent node, known only after a check. In doubt, and without a
// host, lifelines are the only evidence.
func (a *Agent) lineBound() time.Duration {
	if a.doubtful() {
		return a.timing.Silence
	}
	return a.timing.Silence + a.timing.Check
}

// doubtful reports whether any life is in doubt, the host's included.
func (a *Agent) doubtful() bool { return !a.pace.doubt.IsZero() || a.member.Alone() }

// excuseLines gives every lifeline a fresh bound, after this process paused.
func (a *Agent) excuseLines(now time.Time) {
	for _, l := range a.lines {
		if l.up != nil {
			l.alive.Store(now.UnixNano())
			l.told, l.silent = now.UnixNano(), time.Time{}
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

// look sees whether the life of n is still there, and ends the lifeline with which
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
func (a *Agent) lineDialed(l *line, n Node, up *control.Lifeline, met sight) {
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

// outlived reports whether this node is not the life that it showed when up was
// opened. Without one it does not speak for any.
func (a *Agent) outlived(up *control.Lifeline) bool {
	shown := up.Self().Life
	return shown == noLife || shown != a.member.Self().Life
}

// endLives ends the lifelines on which this node showed a life that is over. The
// others learn by it, from this node itself, that it is not that life any more.
func (a *Agent) endLives(over addr.Life) {
	text := "life " + over.String() + " is over"
	for _, l := range a.lines {
		for _, up := range l.extra {
			up.Close(text)
		}
		if l.up != nil {
			l.up.Close(text)
		}
	}
}

// tellMet feeds the member the result of reach. A node that does not show the life may
// not have its grant yet: it is fenced if it has shown that life before, or does
// not show it for as long as it might be silent.
func (a *Agent) tellMet(l *line, n Node, met sight) {
	denied := l.denied
	l.denied = denial{}
	switch met {
	case sawAlive:
		a.feedMember(verdict.Link{Life: n.Life, Evidence: verdict.LinkAlive})
	case sawNewer:
		a.feedMember(verdict.Link{Life: n.Life, Evidence: verdict.LinkReset})
	case sawFence:
		a.feedMember(verdict.Link{Life: n.Life, Evidence: verdict.LinkFenced})
	case sawNobody:
		a.tellDoubt(l, n, time.Now())
		a.feedMember(verdict.Link{Life: n.Life, Evidence: verdict.LinkRefused})
	case sawNoSuchLife:
		if denied.life != n.Life {
			denied = denial{n.Life, time.Now()}
		}
		if l.denied = denied; l.shown == n.Life || time.Since(denied.at) >= a.timing.Silence {
			a.feedMember(verdict.Link{Life: n.Life, Evidence: verdict.LinkFenced})
		}
	}
}

// acceptLine takes a lifeline that a peer opened.
func (a *Agent) acceptLine(up *control.Lifeline) {
	p := up.Peer()
	if a.linesOf(p.UUID) >= maxPerPeer || a.keptOut(p.UUID) != nil {
		up.Abort()
		return
	}
	if a.outlived(up) {
		a.wg.Go(func() { a.reject(up, errors.New("this node has another life by now")) })
		return
	}
	l := a.line(gossip.Key{UUID: p.UUID, Epoch: p.Epoch})
	if l.up == nil && !a.weDial(l.key) && p.Life != noLife {
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
	if i < 0 || a.weDial(l.key) || up.Peer().Life == noLife {
		return
	}
	l.extra = slices.Delete(l.extra, i, i+1)
	had := l.up
	l.up, l.dialed, l.alive, l.told, l.silent, l.shown = up, false, alive, 0, time.Time{}, up.Peer().Life
	a.published = false
	a.giveUp(l, had)
}

// raise makes up the lifeline of l. dialed says that this node beats.
func (a *Agent) raise(l *line, up *control.Lifeline, dialed bool) {
	alive := new(atomic.Int64)
	alive.Store(time.Now().UnixNano())
	l.up, l.dialed, l.alive, l.told, l.silent, l.shown = up, dialed, alive, 0, time.Time{}, up.Peer().Life
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
	a.log.Debug().Err(err).Stringer("life", n.Life).Msg("lifeline ended")
	var closed *control.ClosedError
	closedHere := errors.As(err, &closed) && !closed.Remote
	switch {
	case !ok, closedHere, a.hasDeparted(), !a.wants(n.Life):
	case !a.weDial(l.key):
		a.look(l, n, a.timing.Redial)
	case !l.dialing:
		a.dialLine(l, n)
	}
}

// living returns the life of a start of a node, if the table has it.
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
