package membership

import (
	"time"

	"github.com/fabricd/fabricd/membership/verdict"
)

// soonest is the shortest time between two ticks, whatever is due: it bounds
// what a deadline costs that no tick ends.
const soonest = 10 * time.Millisecond

// A pace says when the loop ticks. Every tick wakes up an idle process, so
// there are two kinds of them only: beats, Timing.Tick apart and at the same
// times as gossip's own work, and ticks for what has a deadline before the next
// beat.
type pace struct {
	timer  *time.Timer
	origin time.Time // of the beats
	armed  time.Time // when timer goes off
	stale  bool      // something happened that may have a deadline
	lines  time.Time // when a lifeline will have been silent for too long; zero: none
	doubt  time.Time // somebody's life is in doubt until then; zero: nobody's
}

// beat returns the first beat after now.
func (p *pace) beat(now time.Time, every time.Duration) time.Time {
	return p.origin.Add(now.Sub(p.origin).Truncate(every) + every)
}

// startPace makes the timer. The first tick is at once.
func (a *Agent) startPace() {
	a.ticked = time.Now()
	a.pace.armed = a.ticked
	a.pace.timer = time.NewTimer(0)
}

// arm sets the timer for the next tick, if that may have changed.
func (a *Agent) arm() {
	if !a.pace.stale {
		return
	}
	a.pace.stale = false
	now := time.Now()
	next := a.pace.beat(now, a.timing.Tick)
	sooner := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	sooner(a.member.Next())
	if a.host != nil {
		sooner(a.host.Next())
	}
	if !a.pace.lines.IsZero() {
		sooner(a.pace.lines)
		sooner(a.beatAt)
	}
	if first := a.ticked.Add(soonest); next.Before(first) {
		next = first
	}
	if !next.Equal(a.pace.armed) {
		a.pace.armed = next
		a.pace.timer.Reset(next.Sub(now))
	}
}

// hurry notes that somebody's life is in doubt. Lifelines are watched more
// closely then.
func (a *Agent) hurry(now time.Time) {
	if a.pace.doubt.IsZero() {
		a.pace.lines = now // look at them at once
	}
	a.pace.doubt = now.Add(a.timing.Check + a.timing.Silence)
}

// slowDown ends the hurry when nothing happened for long enough.
func (a *Agent) slowDown(now time.Time) {
	if now.After(a.pace.doubt) {
		a.pace.doubt = time.Time{}
	}
}

// harmless reports whether a step can bring no deadline nearer: most of what a
// host hears. To find the next deadline costs a look at every node.
func harmless(s step) bool {
	in, ok := s.host.(verdict.Received)
	if !ok {
		return false
	}
	_, ping := in.Message.(verdict.Ping)
	return ping
}

// urgentInput reports whether a step makes somebody's life doubtful.
func urgentInput(s step) bool {
	switch in := s.host.(type) {
	case verdict.Down:
		return true
	case verdict.Received:
		_, report := in.Message.(verdict.Report)
		return report
	}
	switch in := s.member.(type) {
	case verdict.Down, verdict.DialFailed:
		return true
	case verdict.Link:
		return in.Evidence != verdict.LinkAlive
	case verdict.Gossip:
		return in.Rumour != verdict.RumouredAlive
	}
	return false
}

// urgentAction reports whether an action begins something that has a deadline.
func urgentAction(x verdict.Action) bool {
	switch x := x.(type) {
	case verdict.Redial, verdict.Probe, verdict.DialHost:
		return true
	case verdict.Send:
		_, check := x.Message.(verdict.Check)
		return check
	}
	return false
}
