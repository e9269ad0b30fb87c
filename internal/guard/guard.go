// Package guard keeps a panic of a goroutine that serves one peer from ending the
// process: the peer's link or session ends instead. In a test binary, and in a
// process with FABRICD_PANIC=crash in its environment, the panic goes on.
package guard

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
)

// caught counts the panics that ended a peer's link or session.
var caught atomic.Uint64

// Caught returns how many panics [Recover] has caught since the process began.
func Caught() uint64 { return caught.Load() }

// crash says that a panic is to be seen: a failure in every test.
var crash = flag.Lookup("test.v") != nil || os.Getenv("FABRICD_PANIC") == "crash"

// Recover catches a panic of the goroutine that defers it and passes it, with
// the stack, to end, which logs it and ends what the peer has here. It must be
// deferred itself: defer guard.Recover(end).
func Recover(end func(err error, stack []byte)) {
	if crash {
		return
	}
	if p := recover(); p != nil {
		caught.Add(1)
		end(fmt.Errorf("internal error: %v", p), debug.Stack())
	}
}
