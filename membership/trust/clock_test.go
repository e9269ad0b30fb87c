package trust

import (
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestTheSteadyClockBearsJumps(t *testing.T) {
	var c Clock
	start, mono := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Now()
	at := func(after, jump time.Duration) time.Duration {
		return c.now(start.Add(after+jump), mono.Add(after)).Sub(start)
	}
	for _, x := range []struct{ after, jump, want time.Duration }{
		{0, 0, 0},
		{time.Second, time.Second, 2 * time.Second}, // set right by a little
		{10 * time.Second, 24 * time.Hour, 11 * time.Second},
		{30 * time.Second, 24 * time.Hour, 31 * time.Second},
		{31 * time.Second, 0, 31 * time.Second},
		{32 * time.Second, -24 * time.Hour, 32 * time.Second},
		{61 * time.Second, -24 * time.Hour, 61 * time.Second},
		{62 * time.Second, -24 * time.Hour, 62*time.Second - 24*time.Hour}, // it stays there
		{63 * time.Second, -24 * time.Hour, 63*time.Second - 24*time.Hour},
	} {
		if got := at(x.after, x.jump); got != x.want {
			t.Errorf("after %v, the wall clock off by %v: %v, want %v", x.after, x.jump, got, x.want)
		}
	}
}

// A jump is seen while it is not believed, and for good when it is.
func TestTheClockSaysThatTheWallClockIsOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ahead := time.Duration(0)
		c := NewClock(func() time.Time { return time.Now().Add(ahead) })
		c.Now()
		for _, x := range []struct {
			ahead, pass, off, jump time.Duration
		}{
			{0, time.Second, 0, 0},
			{2 * time.Hour, 0, 2 * time.Hour, 0},
			{2 * time.Hour, 29 * time.Second, 2 * time.Hour, 0},
			{0, time.Second, 0, 0},
			{-time.Hour, 0, -time.Hour, 0},
			{-time.Hour, clockPatience, 0, -time.Hour},
		} {
			ahead = x.ahead
			time.Sleep(x.pass)
			off, jump := c.Off()
			if off != x.off || jump.By != x.jump || jump.At.IsZero() == (x.jump != 0) {
				t.Errorf("%v ahead: off by %v, jumped %v; want %v, %v", x.ahead, off, jump, x.off, x.jump)
			}
		}
	})
}

// A wall clock that is set differently jumps in a time's wall part alone, which Sub does
// not look at while there is a monotonic reading: the clock must see times without one.
func TestClockHasNoMonotonicReading(t *testing.T) {
	c := NewClock(time.Now)
	for range 2 {
		if now := c.Now(); strings.Contains(now.String(), "m=") {
			t.Errorf("%v has a monotonic reading", now)
		}
	}
	if strings.Contains(c.wall.String(), "m=") {
		t.Errorf("%v, which the next time is compared with, has a monotonic reading", c.wall)
	}
}
