package verdict

import "time"

// soonest is the shortest time between two ticks, whatever is due: it bounds the
// cost of a deadline that no tick ends.
const soonest = 10 * time.Millisecond

// A Pace steps the machines of a process, and decides when its shell ticks. Every tick wakes
// up an idle process, so there are two kinds of them only: beats, Timing.Tick apart, and
// ticks for a deadline that comes before the next beat.
type Pace struct {
	host   *Host // nil on other nodes
	member *Member
	t      Timing

	origin time.Time // of the beats
	ticked time.Time // the last tick
	armed  time.Time // the next tick, as last returned; zero: not returned since the last one
	stale  bool      // something happened that may have a deadline
	lines  time.Time // when a lifeline will have been silent for too long; zero: none
	beats  time.Time // the next signs of life on lifelines
	doubt  time.Time // an incarnation is in doubt until then; zero: none is
}

// NewPace returns the pace of two machines, with beats that are counted from origin.
// The first tick is at once. host may be nil.
func NewPace(host *Host, member *Member, t Timing, origin, now time.Time) Pace {
	return Pace{host: host, member: member, t: t, origin: origin, ticked: now, armed: now}
}

// StepHost steps the host with an input.
func (p *Pace) StepHost(now time.Time, in HostInput) []Action {
	if doubtAtHost(in) {
		p.hurry(now)
	}
	p.stale = p.stale || !harmless(in)
	return p.urgently(now, p.host.Step(now, in))
}

// StepMember steps the member with an input.
func (p *Pace) StepMember(now time.Time, in MemberInput) []Action {
	if doubtAtMember(in) {
		p.hurry(now)
	}
	p.stale = true
	return p.urgently(now, p.member.Step(now, in))
}

func (p *Pace) urgently(now time.Time, actions []Action) []Action {
	for _, x := range actions {
		if urgent(x) {
			p.hurry(now)
		}
	}
	return actions
}

// hurry notes that an incarnation is in doubt. Lifelines are watched more closely then.
func (p *Pace) hurry(now time.Time) {
	if p.doubt.IsZero() {
		p.lines = now // look at them at once
	}
	p.doubt = now.Add(p.t.Check + p.t.Silence)
}

// Next returns when to tick, if that has changed since it was last asked.
func (p *Pace) Next(now time.Time) (at time.Time, changed bool) {
	if !p.stale {
		return p.armed, false
	}
	p.stale = false
	next := deadline{p.beat(now, p.t.Tick)}
	next.or(p.member.Next())
	if p.host != nil {
		next.or(p.host.Next())
	}
	if !p.lines.IsZero() {
		next.or(p.lines)
		next.or(p.beats)
	}
	at = later(next.Time, p.ticked.Add(soonest))
	changed = !at.Equal(p.armed)
	p.armed = at
	return at, changed
}

// Tick begins a tick. It reports whether this process stood still: then the silence of
// others is its own.
func (p *Pace) Tick(now time.Time) (stood bool) {
	stood = now.Sub(p.ticked) > p.t.Tick+p.t.Stall/2
	p.ticked, p.armed, p.stale = now, time.Time{}, true
	if now.After(p.doubt) {
		p.doubt = time.Time{}
	}
	return stood
}

// Beat reports whether to give a sign of life on the lifelines that this node has dialed,
// on all of them at once and at the time of a beat, so that an idle process wakes up once
// for all.
func (p *Pace) Beat(now time.Time) bool {
	every := p.beatEvery()
	if now.Before(p.beats) && p.beats.Sub(now) <= every { // else a doubt has begun
		return false
	}
	p.beats = p.beat(now, every)
	return true
}

// beat returns the first beat after now.
func (p *Pace) beat(now time.Time, every time.Duration) time.Time {
	return p.origin.Add(now.Sub(p.origin).Truncate(every) + every)
}

// beatEvery returns the time between two signs of life. While all is well a
// lifeline bears the same pause as a control session (Silence - Heartbeat). In
// doubt, and without a host, three come within the bound.
func (p *Pace) beatEvery() time.Duration {
	if p.doubtful() {
		return max((p.t.Silence / 3).Truncate(p.t.Tick/2), p.t.Tick/2)
	}
	return max((p.t.Check + p.t.Heartbeat).Truncate(p.t.Tick), p.t.Tick)
}

// doubtful reports whether any incarnation is in doubt, the host's included.
func (p *Pace) doubtful() bool { return !p.doubt.IsZero() || p.member.Alone() }
