// Package guard prevents a panic of a goroutine that serves one peer from ending the process: the
// peer's link or session ends instead. In a test binary, and in a process with FABRICD_PANIC=crash
// in its environment, the panic propagates.
//
// If the link or session cannot be ended, because the panic has left a mutex locked, the process
// ends after all: a restart is better than a node that hangs.
package guard

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// caught counts the panics that ended a peer's link or session.
var caught atomic.Uint64

// Caught returns how many panics [Recover] has caught since the process began.
func Caught() uint64 { return caught.Load() }

// catches makes test binaries catch panics too.
var catches atomic.Bool

// goesOn reports whether panics propagate, as they do in every test. It looks up flags at the time
// of a panic: those of tests do not exist before main.
func goesOn() bool {
	return !catches.Load() && (flag.Lookup("test.v") != nil || os.Getenv("FABRICD_PANIC") == "crash")
}

// Catch makes [Recover] catch in a test binary too, until the test t is over. Tests that run
// concurrently must not panic.
func Catch(t interface{ Cleanup(func()) }) {
	catches.Store(true)
	t.Cleanup(func() { catches.Store(false) })
}

// patience bounds the time to end the link or session after a panic.
const patience = 10 * time.Second

// Recover catches a panic of the goroutine that defers it and passes it, with the stack, to end,
// which logs it and ends the peer's link or session. end runs on its own goroutine, and Recover
// waits for it. It must be deferred directly: defer guard.Recover(end).
func Recover(end func(err error, stack []byte)) {
	p := recover()
	if p == nil {
		return
	}
	if goesOn() {
		panic(p) // the first panic's stack is still there
	}
	caught.Add(1)
	stack, ended := debug.Stack(), make(chan struct{})
	go func() {
		defer close(ended)
		end(fmt.Errorf("internal error: %v", p), stack)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		panic(fmt.Sprintf("%v: what it struck did not end within %v. It came from\n%s", p, patience, stack))
	}
}
