package spin

import (
	"runtime"
	"syscall"
)

// GiveWay lets others run who wait for the caller's processor, threads of the machine and,
// if all, goroutines of this process: the caller may be looking for what one of them is
// about to do.
func GiveWay(all bool) {
	if all {
		runtime.Gosched()
	}
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it does not fail
}
