// Package spin decides how long a reader busy-polls before it sleeps. A wake-up costs microseconds
// and system calls on both sides; polling costs a processor. Polling pays if the peer answers at
// once, but not on a busy machine or with a slow peer: a Budget adapts to that.
package spin

import (
	"runtime"
	"time"
)

// Processors returns how many processors this process may use. The Go runtime respects the quota of
// the control group, unless GOMAXPROCS is set: then at least processors beyond the machine's do not
// count.
func Processors() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// OtherRan is the least time that Yield takes if another busy-polling goroutine ran meanwhile. If none
// did, it takes less than half a microsecond.
const OtherRan = 1500 * time.Nanosecond

// firstShare: a Budget starts, and restarts after a pause, with the largest budget divided by
// firstShare.
const firstShare = 8

// pause is how many waits pass without polling after a Budget has dropped to 0.
const pause = 64

// A Budget is how many polls the next wait may take. It doubles if a wait ended within its polls
// and halves if it did not; once it is 0 it stays so for pause waits. It belongs to one waiter at a
// time. The zero Budget never polls.
type Budget struct {
	polls, most int
	passed      int // waits since polls became 0
}

// New returns a Budget of at most most polls. At 0 it never polls.
func New(most int) Budget { return Budget{polls: (most + firstShare - 1) / firstShare, most: most} }

// Polls returns how many polls the next wait may take.
func (b *Budget) Polls() int {
	if b.polls > 0 || b.most == 0 {
		return b.polls
	}
	if b.passed++; b.passed < pause {
		return 0
	}
	b.passed = 0
	b.polls = (b.most + firstShare - 1) / firstShare
	return b.polls
}

// Ended reports the end of a wait with polls: whether the event came meanwhile.
func (b *Budget) Ended(saw bool) {
	if saw {
		b.polls = min(2*b.polls, b.most)
		return
	}
	b.polls /= 2
}
