// Package shm is memory and descriptors that processes share: memfds with
// seals, mappings whose faults are errors, and descriptors passed over Unix
// sockets. It is the only user of golang.org/x/sys/unix.
//
// Memory of another process is hostile until [Check] has accepted it.
// Every error has a status.Code in its chain.
package shm

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/fabricd/fabricd/internal/status"
)

// PageSize is the granularity of memory in bytes: the kernel's page size, which
// on every supported machine is a multiple of 4096.
var PageSize = int64(os.Getpagesize())

// Align returns n rounded up to whole pages; n is not negative and at most
// MaxSize.
func Align(n int64) int64 { return (n + PageSize - 1) &^ (PageSize - 1) }

// MaxSize bounds one piece of memory in bytes. It is far above any limit and keeps
// sums of offsets from overflowing.
const MaxSize = int64(1) << 46

// fail returns an error for a system call that failed, with a code of our own:
// memory and descriptors that ran out are NoMemory and name the limit, refusals
// Access, the rest is code.
func fail(call string, err error, code status.Code) error {
	switch status.Of(err) {
	case status.NoMemory, status.NoSpace, status.NoBufs:
		code = status.NoMemory
	case status.Access:
		code = status.Access
	}
	if Exhausted(err) {
		code = status.NoMemory
	}
	if limit := limitOf(err); limit != "" {
		return fmt.Errorf("%s: %w: %w (%s)", call, code, err, limit)
	}
	return fmt.Errorf("%s: %w: %w", call, code, err)
}

// retried calls do until no signal interrupts it.
func retried(do func() error) error {
	for {
		if err := do(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// withDescriptor calls do with f's descriptor, which stays open meanwhile. It is
// status.BadFD where f is closed.
func withDescriptor(f syscall.Conn, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fail("descriptor", err, status.BadFD)
	}
	var derr error
	if err := raw.Control(func(fd uintptr) { derr = do(int(fd)) }); err != nil {
		return fail("descriptor", err, status.BadFD)
	}
	return derr
}
