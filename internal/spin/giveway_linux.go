package spin

import (
	"runtime"
	"syscall"
)

// GiveWay lets others run who wait for the caller's processor, goroutines of this process
// and threads of the machine: the caller may be looking for what one of them is about to
// do. Where there is nobody it costs less than a microsecond.
func GiveWay() {
	runtime.Gosched()
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it does not fail
}
