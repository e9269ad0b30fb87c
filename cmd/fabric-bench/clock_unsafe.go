//go:build linux

package main

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// runTime returns how long the threads of a process, also those that have ended,
// were running: the process's own clock, to the nanosecond.
func runTime(pid int) (time.Duration, error) {
	if pid <= 0 || pid >= 1<<28 { // it would not fit into the clock's number
		return 0, fmt.Errorf("process %d: %w", pid, syscall.ESRCH)
	}
	clock := uintptr(^pid)<<3 | 2 // clock_getcpuclockid(3): CPUCLOCK_SCHED of a process
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return cpuTime(pid)
	}
	return time.Duration(ts.Nano()), nil
}
