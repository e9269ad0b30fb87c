package failpoint

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Process is the Actor of a node that is the whole process. The zero value is
// ready to use.
type Process struct {
	freezing sync.Mutex // held while the process stands still
}

var _ Actor = (*Process)(nil)

// Crash ends the process at once, without a message to any peer: by SIGKILL, or,
// where the kernel does not let a process do that to itself (the first one of a
// container), by an exit that runs nothing.
func (*Process) Crash() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // if it fails, the next line does it
	exit()
}

// Freeze makes the process stand still for d, and come back by itself. No Go code runs meanwhile:
// no timer fires, no socket is read, while the kernel goes on to queue arriving bytes, as it does
// for a process that SIGSTOP has stopped. Unlike SIGSTOP it also works for the first process of a
// container, and needs no SIGCONT.
//
// It takes all processors from the scheduler but the one it runs on, and sleeps
// there unseen by the scheduler.
func (p *Process) Freeze(d time.Duration) error {
	p.freezing.Lock()
	defer p.freezing.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := runtime.GOMAXPROCS(1)
	err := sleepUnseen(d)
	if os.Getenv("GOMAXPROCS") != "" {
		runtime.GOMAXPROCS(before)
	} else {
		runtime.SetDefaultGOMAXPROCS() // and follow the container's limit again
	}
	return err
}

// Starve lowers the process's limit on descriptors so that free more can be
// opened.
func (*Process) Starve(free int) (restore func() error, err error) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		return nil, err
	}
	open, err := descriptors()
	if err != nil {
		return nil, err
	}
	low := syscall.Rlimit{Cur: min(before.Cur, firstBeyond(open, free)), Max: before.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		return nil, err
	}
	return func() error { return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }, nil
}

// descriptors returns the numbers of those that are open, ascending.
func descriptors() ([]int, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	own := int(dir.Fd()) // free again in a moment
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	var open []int
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("/proc/self/fd has %q", name)
		}
		if fd != own {
			open = append(open, fd)
		}
	}
	slices.Sort(open)
	return open, nil
}

// firstBeyond returns the limit below which exactly free numbers are not open.
func firstBeyond(open []int, free int) uint64 {
	limit := 0
	for _, fd := range open {
		if fd-limit > free {
			break
		}
		free -= fd - limit
		limit = fd + 1
	}
	return uint64(limit + free)
}
