package workload

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// A Clock is the clock of one run: nanoseconds of CLOCK_MONOTONIC since the
// run's zero. All processes of a machine read the same.
type Clock struct {
	began time.Time // has a monotonic reading
	at    int64     // ns since the zero of the run, at began
}

// Monotonic returns CLOCK_MONOTONIC in nanoseconds.
func Monotonic() (int64, error) {
	const monotonic = 1
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0, fmt.Errorf("clock_gettime: %w", errno)
	}
	return ts.Nano(), nil
}

// NewClock returns a clock that is 0 at the moment at which CLOCK_MONOTONIC was zero, in ns.
func NewClock(zero int64) (*Clock, error) {
	// The two readings are not one; the narrower of several pairs is meant.
	best := &Clock{}
	narrow := time.Duration(1 << 62)
	for range 8 {
		before := time.Now()
		at, err := Monotonic()
		if err != nil {
			return nil, err
		}
		if wide := time.Since(before); wide < narrow {
			narrow, best.began, best.at = wide, before.Add(wide/2), at-zero
		}
	}
	return best, nil
}

// Now returns the time since the zero of the run.
func (c *Clock) Now() time.Duration { return time.Duration(c.at) + time.Since(c.began) }

// Wall returns when it was d since the zero of the run, with a monotonic
// reading, to wait for.
func (c *Clock) Wall(d time.Duration) time.Time { return c.began.Add(d - time.Duration(c.at)) }
