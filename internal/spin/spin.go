// Package spin decides how long a reader looks for what it waits for before it
// sleeps. To be woken costs microseconds and system calls on both sides; to look
// costs a processor. Looking pays where the peer answers at once, and not on a
// machine that is busy or where the peer is slow: a Budget finds out.
package spin

import (
	"runtime"
	"time"
)

// Processors is how many this process may keep busy. The runtime has looked at the
// quota of the control group, unless somebody has set GOMAXPROCS: then at least what
// is more than the machine has does not count.
func Processors() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// Turn is the least that Yield takes if another busy-polling goroutine ran meanwhile. If
// none did, it takes less than half a microsecond.
const Turn = 1500 * time.Nanosecond

// firstShare of the largest budget is what a Budget begins with, and begins again
// with after a pause.
const firstShare = 8

// pause is how many waits a Budget that has come to nothing lets pass.
const pause = 64

// A Budget is how many looks the next wait may take. It doubles when a wait ended
// within its looks, halves when it did not, and is nothing for a while when it has
// come to nothing. It belongs to one waiter at a time. The zero Budget never
// looks.
type Budget struct {
	looks, most int
	passed      int // waits since looks became nothing
}

// New returns a Budget of at most most looks. At 0 it never looks.
func New(most int) Budget { return Budget{looks: (most + firstShare - 1) / firstShare, most: most} }

// Looks returns how many looks the wait that begins may take.
func (b *Budget) Looks() int {
	if b.looks > 0 || b.most == 0 {
		return b.looks
	}
	if b.passed++; b.passed < pause {
		return 0
	}
	b.passed = 0
	b.looks = (b.most + firstShare - 1) / firstShare
	return b.looks
}

// Ended tells how a wait ended that took looks: whether it saw what it waited
// for.
func (b *Budget) Ended(saw bool) {
	if saw {
		b.looks = min(2*b.looks, b.most)
		return
	}
	b.looks /= 2
}
