package spin

import (
	"runtime"
	"syscall"
)

// Yield yields to other threads and goroutines that wait for the caller's processor: the caller may
// be polling for a result of one of them.
func Yield() {
	runtime.Gosched()
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it does not fail
}
