package tcp

import (
	"fmt"
	"sync/atomic"
)

// An allowance is how much the peer may send, on all lanes together: a window beyond
// what has come and is held no more. Every frame changes it, and bulk connections
// are read beside the first one, so that it has no lock.
type allowance struct {
	window uint64
	limit  atomic.Uint64 // of came; it only grows
	came   atomic.Uint64
	freed  atomic.Uint64
}

func (a *allowance) begin(window uint64) {
	a.window = window
	a.limit.Store(window)
}

// add counts n bytes that have come, and checks that they were allowed.
func (a *allowance) add(n int) error {
	if a.came.Add(uint64(n)) > a.limit.Load() {
		return fmt.Errorf("%w: more bytes than the session's credit", errMalformed)
	}
	return nil
}

// takeBack takes back n bytes that were counted and did not come: they will be
// counted again.
func (a *allowance) takeBack(n int) { a.came.Add(-uint64(n)) }

// free counts n bytes as held no more, and returns the new limit if the peer should
// hear of one: in quarters of the window, else 0.
func (a *allowance) free(n int) uint64 {
	freed := a.freed.Add(uint64(n))
	for {
		limit := a.limit.Load()
		if freed+a.window < limit+a.window/4 {
			return 0
		}
		if a.limit.CompareAndSwap(limit, freed+a.window) {
			return freed + a.window
		}
	}
}
