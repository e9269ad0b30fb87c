//go:build !portable

package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// Shared returns a sealed memfd of n bytes, whole pages, for other processes to
// share. Its pages are not allocated: [Adopt] does that in the process that maps
// them, and pays.
func Shared(name string, n int64) (*os.File, error) {
	if n <= 0 || n > MaxSize || n%PageSize != 0 {
		return nil, fmt.Errorf("memory of %d bytes: %w", n, status.Invalid)
	}
	fd, err := memfdCreate(name)
	if err != nil {
		return nil, fail("memfd_create", err, status.NotSupp)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+name)
	if err = unix.Ftruncate(fd, n); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		f.Close()
		return nil, fail("make shared memory", err, status.NoMemory)
	}
	return f, nil
}

// Adopt allocates the pages of f, memory of [Shared] with n bytes, checks it as
// [Check] does and maps it. It takes ownership of f in any case. Missing memory is
// status.NoMemory here, and never a fault later.
func Adopt(f *os.File, n int64) (*Region, error) {
	r, err := adopt(f, n)
	if err != nil {
		f.Close()
	}
	return r, err
}

func adopt(f *os.File, n int64) (*Region, error) {
	if n <= 0 || n > MaxSize || n%PageSize != 0 {
		return nil, fmt.Errorf("memory of %d bytes: %w", n, status.Invalid)
	}
	if err := fitsHere(n); err != nil {
		return nil, err
	}
	if err := withDescriptor(f, func(fd int) error { return grow(fd, n) }); err != nil {
		return nil, err
	}
	if err := Check(f, n, n); err != nil {
		return nil, err
	}
	return Map(f, 0, n, true)
}

// grow allocates the pages of sealed memory. Memory without the seals, or of another
// size, breaks the promise of its maker and is left alone.
func grow(fd int, n int64) error {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return fmt.Errorf("shared memory is not sealed: %w", status.Fault)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != n {
		return fmt.Errorf("shared memory has %d bytes, announced were %d: %w", st.Size, n, status.Fault)
	}
	if err := allocate(fd, n); err != nil {
		return fail(fmt.Sprintf("allocate %d bytes of memory", n), err, status.NoMemory)
	}
	return nil
}
