// Package steady tells the time of day by which certificates expire.
package steady

import "time"

const (
	// clockSlack is how far the wall clock may be from what it should be, and
	// clockPatience how long it has to stay so to be believed.
	clockSlack    = 5 * time.Second
	clockPatience = 30 * time.Second
)

// A Clock tells the time of day. It goes with the monotonic clock, so that a wall
// clock that jumps and is set right soon ends nothing and renews nothing; one that
// stays where it is, is right. The zero Clock begins with its first use. One
// goroutine at a time uses it.
type Clock struct {
	wall, at time.Time // of the wall clock and of the monotonic one, at one moment
	off      time.Time // since when the wall clock has been elsewhere; zero: it is not
}

// Now returns the time of day, where the wall clock says wall and the monotonic
// one at.
func (c *Clock) Now(wall, at time.Time) time.Time {
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
		c.wall, c.at, c.off = wall, at, time.Time{}
		return wall
	}
	return steady
}
