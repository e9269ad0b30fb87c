package membership

import (
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

// A line is the lifeline between this node and one start of another. The loop
// owns it, except for alive.
type line struct {
	verdict.Line
	up    *control.Lifeline   // nil: none
	extra []*control.Lifeline // others that the peer has opened, for a check, and those that end
	alive *atomic.Int64       // when up last gave a sign of life, Unix nanoseconds
}

func lineOf(l *line) *verdict.Line { return &l.Line }

// connections returns all that the line has.
func (l *line) connections() []*control.Lifeline {
	if l.up == nil {
		return l.extra
	}
	return append(l.extra[:len(l.extra):len(l.extra)], l.up)
}

// A lineShell performs what a.lines decides. Its methods run on the loop.
type lineShell struct{ a *Agent }

// Wants reports whether this node is to have a lifeline to an incarnation.
func (s lineShell) Wants(l addr.Incarnation) bool { return s.a.watched[l] || s.a.member.Watches(l) }

func (s lineShell) Alive(l *line) time.Time { return time.Unix(0, l.alive.Load()) }

func (s lineShell) Kept(l *line) bool { return len(l.extra) > 0 }

func (s lineShell) CloseLine(l *line) { l.up.Close("no link in use, and not watched") }

func (s lineShell) SendDoubt(l *line, n Node) { s.a.sendDoubt(l, n) }

func (s lineShell) ReportLink(x verdict.Link) { s.a.feedMember(x) }

// DialLine opens the lifeline to n.
func (s lineShell) DialLine(l *line, n Node) {
	a := s.a
	a.dialProbe(n.Contact(), a.timing.Silence, func(_ context.Context, up *control.Lifeline, met verdict.DialResult) {
		if !a.post(func() { a.lineDialed(l, n, up, met) }) && up != nil {
			up.Abort()
		}
	})
}

// LookLine sees whether the incarnation of n is still there, and ends the lifeline with which
// it looks.
func (s lineShell) LookLine(l *line, n Node, limit time.Duration) {
	a := s.a
	a.dialProbe(n.Contact(), limit, func(_ context.Context, up *control.Lifeline, met verdict.DialResult) {
		a.post(func() { a.lines.Looked(l, n, met, time.Now()) })
		a.release(up)
	})
}

// maintainLines has the lifelines opened and closed that should be.
func (a *Agent) maintainLines(now time.Time) {
	if !a.hasDeparted() {
		a.lines.Maintain(now)
	}
}

// living returns the incarnation of a start of a node, if the table has it.
func (a *Agent) living(k gossip.Key) (Node, bool) { return a.lines.Living(verdict.Start(k)) }

// beatLines gives a sign of life on every lifeline that this node has dialed.
func (a *Agent) beatLines(now time.Time) {
	for _, l := range a.lines.Beats(now) {
		l.up.Beat()
	}
}

// resetLineTimers gives every lifeline a fresh bound, after this process paused.
func (a *Agent) resetLineTimers(now time.Time) {
	for _, l := range a.lines.All() {
		if l.up != nil {
			l.alive.Store(now.UnixNano())
			l.ResetTimers(now)
		}
	}
}

// lineDialed takes the result of a dial.
func (a *Agent) lineDialed(l *line, n Node, up *control.Lifeline, met verdict.DialResult) {
	outlived := up != nil && a.outlived(up)
	raise, report := a.lines.Dialed(l, up != nil, outlived, time.Now())
	switch {
	case raise:
		had := l.up
		a.raise(l, up, true)
		a.giveUp(l, had)
	case outlived:
		a.wg.Go(func() { a.release(up) })
	case up != nil:
		a.addExtra(l, up)
		up.Close("there is another")
	}
	if report {
		a.lines.Met(l, n, met, time.Now())
	}
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
	for _, l := range a.lines.All() {
		for _, up := range l.connections() {
			up.Close(text)
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
		a.wg.Go(func() { a.reject(up, errors.New("this node has another incarnation by now")) })
		return
	}
	l := a.lines.At(verdict.Start{UUID: p.UUID, Epoch: p.Epoch})
	if a.lines.Accepts(l, p.Incarnation) {
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
	if i < 0 || !a.lines.Promotes(l, up.Peer().Incarnation) {
		return
	}
	l.extra = slices.Delete(l.extra, i, i+1)
	had := l.up
	l.up, l.Up, l.Dialed, l.alive = up, true, false, alive
	l.Raise(up.Peer().Incarnation)
	a.published = false
	a.giveUp(l, had)
}

// raise makes up the lifeline of l. dialed: this node sends the keepalives.
func (a *Agent) raise(l *line, up *control.Lifeline, dialed bool) {
	alive := new(atomic.Int64)
	alive.Store(time.Now().UnixNano())
	l.up, l.Up, l.Dialed, l.alive = up, true, dialed, alive
	l.Raise(up.Peer().Incarnation)
	a.published = false
	up.Start(func() { alive.Store(time.Now().UnixNano()) },
		func(_ verdict.DownCause, err error) {
			a.post(func() { a.lineDown(l, up, err) })
		})
}

// lineDown takes the end of a lifeline.
func (a *Agent) lineDown(l *line, up *control.Lifeline, err error) {
	if l.up != up {
		if i := slices.Index(l.extra, up); i >= 0 {
			l.extra = slices.Delete(l.extra, i, i+1)
		}
		return
	}
	l.up = nil
	a.published = false
	a.log.Debug().Err(err).Stringer("peer", l.UUID).Msg("lifeline ended")
	var closed *control.ClosedError
	closedHere := errors.As(err, &closed) && !closed.Remote
	a.lines.Down(l, closedHere || a.hasDeparted())
}

// endLine ends a line with the agent.
func (a *Agent) endLine(l *line) {
	for _, up := range l.connections() {
		if a.hasDeparted() {
			up.Close("left")
		} else {
			up.Abort()
		}
	}
}

// linesOf counts the lifelines that one node has open here, under all epochs.
func (a *Agent) linesOf(u addr.UUID) (n int) {
	for _, l := range a.lines.All() {
		if l.UUID == u {
			n += len(l.connections())
		}
	}
	return n
}

// linesUp counts the lifelines.
func (a *Agent) linesUp() (n int) {
	for _, l := range a.lines.All() {
		if l.up != nil {
			n++
		}
	}
	return n
}
