package spin

import (
	"runtime"
	"syscall"
)

// Yield lets others run that wait for the caller's processor, threads of the machine and
// goroutines of this process: the caller may be looking for what one of them is about to do.
func Yield() {
	runtime.Gosched()
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it does not fail
}
