package verdict

import "time"

// A Timing holds every bound that the machines use. All nodes of a cluster use
// the same.
//
// Silence is judged in two steps, and an incarnation is over only after both:
//
//	seen -- Silence --> check -- Check, no node reaches it --> removed
//	  ^                    |
//	  '---- a node reaches it
//
// so the end of a silent incarnation is known everywhere after at most
// Silence + Check + one way, and the delays of the shells.
type Timing struct {
	// Tick is the longest time between two Ticks. An idle process wakes up for
	// each, so it is as long as a Heartbeat: for an earlier deadline Next asks
	// for a Tick of its own.
	Tick time.Duration
	// Heartbeat is the time between two Pings of a member, which come with
	// Ticks: up to half a Tick earlier or later.
	Heartbeat time.Duration
	Silence   time.Duration // of a control link, before a check; > 2 Heartbeat
	Check     time.Duration // within which a node must reach the incarnation
	Redial    time.Duration // within which an ended session must be redialed
	// Stall is how late a Tick has to be for this process to have stood still.
	// A shorter pause is not noticed, so together with the heartbeat that was
	// due before it, it must not look like silence to any node.
	Stall   time.Duration
	Redials time.Duration // between two dials of a lost host
	Resend  time.Duration // between two deliveries of an unacknowledged verdict

	// Grace is how long a host that starts waits for the nodes of its table to
	// resume; those that do not are removed.
	Grace time.Duration

	// Quarantine is how long the ID of a removed incarnation is given to no other node.
	Quarantine time.Duration
}

// TimingOf returns the bounds of a detection profile.
func TimingOf(profile string) Timing {
	switch profile {
	case "fast":
		return Fast()
	case "calm":
		return Calm()
	}
	return Normal()
}

// Fast detects a silent loss within 2 s and survives pauses of 1 s, which are a
// silence of 1.2 s at most. The 0.6 s from there to the verdict are for machines on
// which a process that may run again does not run at once.
func Fast() Timing {
	return Timing{
		Tick:      200 * time.Millisecond,
		Heartbeat: 200 * time.Millisecond,
		Silence:   1300 * time.Millisecond,
		Check:     500 * time.Millisecond,
		Grace:     5 * time.Second,
	}.withDefaults()
}

// Normal detects a silent loss within 3 s and survives pauses of 1.5 s.
func Normal() Timing {
	return Timing{
		Tick:      800 * time.Millisecond,
		Heartbeat: 800 * time.Millisecond,
		Silence:   1800 * time.Millisecond,
		Check:     900 * time.Millisecond,
		Grace:     10 * time.Second,
	}.withDefaults()
}

// Calm detects a silent loss within 10 s and survives pauses of 5 s.
func Calm() Timing {
	return Timing{
		Tick:      time.Second,
		Heartbeat: time.Second,
		Silence:   6 * time.Second,
		Check:     3 * time.Second,
		Grace:     30 * time.Second,
	}.withDefaults()
}

// withDefaults fills in the fields that are zero: bounds that do not depend on
// the profile, and all of Fast for the zero Timing.
func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&t.Heartbeat, 200*time.Millisecond)
	set(&t.Tick, t.Heartbeat)
	set(&t.Silence, 1300*time.Millisecond)
	set(&t.Check, 500*time.Millisecond)
	set(&t.Redial, 100*time.Millisecond)
	set(&t.Stall, min(time.Second, max(t.Silence-t.Heartbeat-t.Tick, t.Tick/2)))
	set(&t.Redials, 250*time.Millisecond)
	set(&t.Resend, 2*time.Second)
	set(&t.Grace, 5*time.Second)
	set(&t.Quarantine, 10*time.Minute)
	return t
}

// A stallClock finds out that its process stood still.
type stallClock struct{ last time.Time }

// late returns by how much now is later than the next Tick should have been,
// and 0 if that is within the bound. It must be asked on every input, since
// after a pause a message may be read before the Tick.
func (c *stallClock) late(now time.Time, t Timing) time.Duration {
	if c.last.IsZero() {
		c.last = now
	}
	by := now.Sub(c.last) - t.Tick
	if by <= t.Stall {
		return 0
	}
	c.last = now
	return by
}

// tick records that a Tick arrived.
func (c *stallClock) tick(now time.Time) { c.last = now }

// next returns by when the next Tick has to arrive.
func (c *stallClock) next(t Timing) time.Time { return c.last.Add(t.Tick) }
