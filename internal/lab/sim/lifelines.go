package sim

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A line is the lifeline between this node and one start of another.
type line struct {
	verdict.Line
	up    *tcpEnd   // nil: none
	alive time.Time // of the last keepalive or message on up
}

// maintainLines has the lifelines opened and closed that should be.
func (a *agent) maintainLines() {
	if !a.departed && !a.p.dead {
		a.lines.Maintain(a.w.time())
	}
}

// The methods from Wants on are those of [verdict.LineShell].

// Wants reports whether this node watches an incarnation.
func (a *agent) Wants(l addr.Incarnation) bool { return a.member.Watches(l) }

// Alive returns the time of the last keepalive or message on a line.
func (a *agent) Alive(l *line) time.Time { return l.alive }

// Kept reports that a line has no other connections.
func (a *agent) Kept(*line) bool { return false }

// CloseLine ends a lifeline that is not needed any more.
func (a *agent) CloseLine(l *line) { l.up.close() }

// SendDoubt notifies the others.
func (a *agent) SendDoubt(_ *line, n verdict.Node) { a.sendDoubt(n) }

// ReportLink passes evidence to the member.
func (a *agent) ReportLink(x verdict.Link) { a.feedMember(x) }

// DialLine opens the lifeline to n.
func (a *agent) DialLine(l *line, n verdict.Node) {
	self := a.member.Self().Incarnation
	a.reach(n.Contact(), a.w.timing.Silence, func(up *tcpEnd, met verdict.DialResult) {
		raise, report := a.lines.Dialed(l, up != nil, self != a.member.Self().Incarnation, a.w.time())
		if raise {
			had := l.up
			a.raise(l, up, true, n.Incarnation)
			if had != nil {
				had.abort()
			}
		} else {
			a.release(up)
		}
		if report {
			a.lines.Met(l, n, met, a.w.time())
		}
	})
}

// LookLine checks whether the incarnation of n is still there, and closes the lifeline of this
// check: the peer is to dial the one that stays.
func (a *agent) LookLine(l *line, n verdict.Node, limit time.Duration) {
	a.reach(n.Contact(), limit, func(up *tcpEnd, met verdict.DialResult) {
		a.release(up)
		a.lines.Looked(l, n, met, a.w.time())
	})
}

// keepLinesAlive sends a keepalive on every lifeline that this node has dialed.
func (a *agent) keepLinesAlive() {
	for _, l := range a.lines.Beats(a.w.time()) {
		a.sent++
		l.up.send(lineKeepalive{})
	}
}

// resetLineTimers gives every lifeline a fresh bound, after this process paused.
func (a *agent) resetLineTimers() {
	for _, l := range a.lines.All() {
		if l.up != nil {
			l.alive = a.w.time()
			l.ResetTimers(l.alive)
		}
	}
}

// closeLines ends the lifelines, on which this node shows an incarnation that is over.
func (a *agent) closeLines() {
	for _, l := range a.lines.All() {
		if l.up != nil {
			l.up.close()
		}
	}
}

// acceptLine takes a lifeline that a peer opened. One that is not needed is
// there to see that we are, unless the peer sends keepalives on it: then it has lost the one
// that we believe in.
func (a *agent) acceptLine(e *tcpEnd, peer controlEnd) {
	l := a.lines.At(verdict.Start{UUID: peer.uuid, Epoch: peer.epoch})
	if a.lines.Accepts(l, peer.incarnation) {
		a.raise(l, e, false, peer.incarnation)
		return
	}
	self := a.member.Self().Incarnation // that was shown to the peer
	e.ended = func(verdict.DownCause) {}
	e.received = func(m any) {
		if _, ok := m.(lineKeepalive); !ok || !a.lines.Promotes(l, peer.incarnation) {
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
// sends the keepalives.
func (a *agent) raise(l *line, e *tcpEnd, dialed bool, shown addr.Incarnation) {
	l.up, l.Up, l.Dialed, l.alive = e, true, dialed, a.w.time()
	l.Raise(shown)
	e.received = func(m any) {
		l.alive = a.w.time()
		if _, ok := m.(lineKeepalive); ok && !dialed {
			a.sent++
			e.send(lineKeepalive{})
		}
	}
	e.ended = func(cause verdict.DownCause) { a.lineDown(l, e) }
}

// lineDown redials at once when a lifeline ended, unless it was closed here.
func (a *agent) lineDown(l *line, e *tcpEnd) {
	if l.up == e {
		l.up = nil
		a.lines.Down(l, e.ending || a.departed)
	}
}
