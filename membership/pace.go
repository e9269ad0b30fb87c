package membership

import (
	"time"
)

// soonest is the shortest time between two ticks, whatever is due: it bounds the
// cost of a deadline that no tick ends.
const soonest = 10 * time.Millisecond

// A pace says when the loop ticks. Every tick wakes up an idle process, so
// there are two kinds of them only: beats, Timing.Tick apart and at the same
// times as gossip's own work, and ticks for a deadline that comes before the next
// beat.
type pace struct {
	timer  *time.Timer
	origin time.Time // of the beats
	armed  time.Time // when timer goes off
	stale  bool      // something happened that may have a deadline
	lines  time.Time // when a lifeline will have been silent for too long; zero: none
	doubt  time.Time // a life is in doubt until then; zero: none is
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

// hurry notes that a life is in doubt. Lifelines are watched more
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
