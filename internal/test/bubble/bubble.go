// Package bubble runs tests in testing/synctest's bubbles.
//
// It is synctest.Test, and with the race detector a way around a fault of Go's
// runtime (golang/go#78156, seen in 1.26.8): goroutines of one bubble that receive
// from channels of timers which are due share one context of ThreadSanitizer, and
// two of them at once corrupt it. The process then ends with "CHECK failed" or a
// SIGSEGV in __tsan::SlotLock that names no line of ours. On one processor no two
// of them run at once (TestTimersThatAreDue). The race detector checks the order of
// accesses, not whether they ran at the same moment, so little is lost.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test runs f in a bubble, as synctest.Test does; with the race detector the
// process has one processor until the last bubble has ended. It may be called by
// tests that run in parallel.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if raceEnabled {
		processors.toOne()
		defer processors.widen()
	}
	synctest.Test(t, f)
}

// processors is how many the process had before the first of the bubbles that run.
var processors limit

type limit struct {
	mu      sync.Mutex
	bubbles int
	before  int
}

func (l *limit) toOne() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bubbles == 0 {
		l.before = runtime.GOMAXPROCS(1)
	}
	l.bubbles++
}

func (l *limit) widen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bubbles--
	if l.bubbles == 0 {
		runtime.GOMAXPROCS(l.before)
	}
}
