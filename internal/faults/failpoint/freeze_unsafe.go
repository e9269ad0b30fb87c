//go:build linux

package failpoint

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// From linux/time.h and asm-generic/signal-defs.h.
const (
	clockMonotonic = 1
	timerAbsolute  = 1
	sigSetMask     = 2
	sigSetSize     = 8
)

// sleepUnseen sleeps for d in a system call that the scheduler does not see,
// so that it does not give this goroutine's processor to another one. All
// signals are blocked on this thread meanwhile: the one with which the scheduler
// asks for the processor would end the sleep early. Those for the process reach
// its other threads.
func sleepUnseen(d time.Duration) error {
	var until syscall.Timespec
	if errno := clockGettime(&until); errno != 0 {
		return fmt.Errorf("freeze: %w", errno)
	}
	until = syscall.NsecToTimespec(until.Nano() + int64(d))
	all, before := ^uint64(0), uint64(0)
	if errno := setSignals(&all, &before); errno != 0 {
		return fmt.Errorf("freeze: %w", errno)
	}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_CLOCK_NANOSLEEP, clockMonotonic, timerAbsolute,
		uintptr(unsafe.Pointer(&until)), 0, 0, 0)
	if restored := setSignals(&before, nil); errno == 0 {
		errno = restored
	}
	if errno != 0 {
		return fmt.Errorf("freeze: %w", errno)
	}
	return nil
}

func clockGettime(ts *syscall.Timespec) syscall.Errno {
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(ts)), 0)
	return errno
}

// setSignals sets this thread's blocked signals and returns those before.
func setSignals(mask, before *uint64) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetMask,
		uintptr(unsafe.Pointer(mask)), uintptr(unsafe.Pointer(before)), sigSetSize, 0, 0)
	return errno
}

// exit ends the process at once. It runs nothing, unlike os.Exit.
func exit() { syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 128+uintptr(syscall.SIGKILL), 0, 0) }
