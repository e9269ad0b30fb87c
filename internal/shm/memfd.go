package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// sizeSeals are what makes memory safe to map for a process that did not make it:
// its size is fixed. They cannot be taken back.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// seals are those of memory that gets no more of them.
const seals = sizeSeals | unix.F_SEAL_SEAL

// Create returns n bytes of zeroed memory, rounded up to whole pages, in a
// memfd of its own whose size is sealed; see [SealWriting] for more seals. Every page is allocated, and charged to this
// process, before Create returns: memory that is missing is status.NoMemory
// here and never a fault later. name shows in /proc/*/maps.
func Create(name string, n int64) (*Region, error) {
	if n <= 0 || n > MaxSize {
		return nil, fmt.Errorf("memory of %d bytes: %w", n, status.Invalid)
	}
	if err := fitsHere(Align(n)); err != nil {
		return nil, err
	}
	f, err := memfd(name, Align(n))
	if err != nil {
		return nil, err
	}
	r, err := Map(f, 0, Align(n), true)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.direct = true // the pages are allocated, and only this process could take them away
	return r, nil
}

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

// allocate is fallocate, begun again when a signal interrupts it; what is
// already allocated stays so.
func allocate(fd int, size int64) error {
	for {
		if err := unix.Fallocate(fd, 0, 0, size); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Exhausted reports whether err says that the process or machine has run
// out of something.
func Exhausted(err error) bool {
	for _, e := range []error{unix.ENOMEM, unix.ENOSPC, unix.EMFILE, unix.ENFILE, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
