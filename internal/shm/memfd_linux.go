//go:build !portable

package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// sizeSeals fix the size of memory, which makes it safe to map for a process that did
// not make it. They cannot be removed.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// seals are the seals of memory that accepts no more seals.
const seals = sizeSeals | unix.F_SEAL_SEAL

// memfd makes a memfd of size bytes, which are sealed, with all its pages.
func memfd(name string, size int64) (*os.File, error) {
	fd, err := memfdCreate(name)
	if err != nil {
		return nil, fail("memfd_create", err, status.NotSupp)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+name)
	if err := populate(fd, size); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// memfdCreate refuses executable mappings where the kernel can (6.3).
func memfdCreate(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		return unix.MemfdCreate(name, flags)
	}
	return fd, err
}

// populate gives fd its size, its pages and the seals of its size. Its mode lets every
// holder of a read-only descriptor open it for reading again, but only its
// owner for writing.
func populate(fd int, size int64) error {
	if err := unix.Ftruncate(fd, size); err != nil {
		return fail("ftruncate", err, status.NoMemory)
	}
	if err := allocate(fd, size); err != nil {
		return fail(fmt.Sprintf("allocate %d bytes of memory", size), err, status.NoMemory)
	}
	if err := unix.Fchmod(fd, 0o444); err != nil {
		return fail("fchmod", err, status.NotSupp)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals); err != nil {
		return fail("seal memory", err, status.NotSupp)
	}
	return nil
}

// allocate is fallocate, retried when a signal interrupts it. Allocated pages stay
// allocated.
func allocate(fd int, size int64) error {
	return retried(func() error { return unix.Fallocate(fd, 0, 0, size) })
}
