package trust

import (
	"sync"
	"time"
)

const (
	// clockSlack is how far the wall clock may be from its expected time, and clockPatience how
	// long it has to stay so to be believed.
	clockSlack    = 5 * time.Second
	clockPatience = 30 * time.Second
)

// A Clock returns the time of day by which certificates and tokens begin and end. It
// goes with the monotonic clock, so that a wall clock that jumps and is set right soon
// ends nothing and renews nothing; one that stays where it is, is right.
type Clock struct {
	source func() time.Time // the wall clock

	mu       sync.Mutex // guards the fields below
	wall, at time.Time  // of the wall clock and of the monotonic one, at one moment
	off      time.Time  // since when the wall clock has been elsewhere; zero: it is not
	jump     Jump       // the last that was believed
}

// A Jump is one of the wall clock: by how much, and when it was believed, by the clock of the
// process. The zero Jump is none.
type Jump struct {
	By time.Duration
	At time.Time
}

// Off returns how far the wall clock is from Now, and its last jump that was believed.
func (c *Clock) Off() (time.Duration, Jump) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := c.source().Round(0)
	return wall.Sub(c.now(wall, time.Now())), c.jump
}

// NewClock returns the clock that goes by the wall clock that source reads.
func NewClock(source func() time.Time) *Clock { return &Clock{source: source} }

// Now returns the time of day, without a monotonic reading.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now(c.source().Round(0), time.Now())
}

// now returns the time of day, where the clocks are at wall and at. A monotonic reading
// in wall would hide its jumps from Sub.
func (c *Clock) now(wall, at time.Time) time.Time {
	if c.at.IsZero() {
		c.wall, c.at = wall, at
	}
	steady := c.wall.Add(at.Sub(c.at))
	switch off := wall.Sub(steady).Abs() > clockSlack; {
	case !off:
		c.wall, c.at, c.off = wall, at, time.Time{}
		return wall
	case c.off.IsZero():
		c.off = at
	case at.Sub(c.off) >= clockPatience:
		c.jump = Jump{By: wall.Sub(steady), At: at}
		c.wall, c.at, c.off = wall, at, time.Time{}
		return wall
	}
	return steady
}
