package shm

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// tmpfsMagic is the file system of memfds. Hugetlb memfds have another, and
// with an empty pool fault however they are sealed.
const tmpfsMagic = 0x01021994

// Check reports whether f, a descriptor of unknown origin, is memory of exactly
// want bytes, at most limit, that can be mapped without a fault from a
// process that means harm: a memfd whose size is sealed and whose pages are
// allocated. The error says what is wrong, and is status.Fault, or
// status.NoMemory when only the limit is passed.
//
// The owner can still give pages back by punching holes. An access then takes
// a fresh page from this process's memory, so limits on the sum of all sizes
// stay needed.
func Check(f *os.File, want, limit int64) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fail("memory descriptor", err, status.BadFD)
	}
	if cerr := raw.Control(func(fd uintptr) { err = check(int(fd), want, limit) }); cerr != nil {
		return fail("memory descriptor", cerr, status.BadFD)
	}
	return err
}

// check asks for the seals first: only memory can have them, and a descriptor
// of a file system in user space is refused before anything asks that file
// system, which may never answer.
func check(fd int, want, limit int64) error {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("descriptor is not a memfd: %w (F_GET_SEALS: %w)", status.Fault, err)
	}
	if missing := sizeSeals &^ got; missing != 0 {
		return fmt.Errorf("memory is not sealed: %s missing: %w", sealNames(missing), status.Fault)
	}
	var fs unix.Statfs_t
	if err := fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("fstatfs: %w: %w", status.Fault, err)
	}
	if uint32(fs.Type) != tmpfsMagic {
		return fmt.Errorf("memory is on file system %#x, want tmpfs (%#x); hugetlb pages cannot be checked: %w",
			uint32(fs.Type), tmpfsMagic, status.Fault)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w: %w", status.Fault, err)
	}
	return checkSize(st.Size, st.Blocks, want, limit)
}

// checkSize judges a size in bytes and its allocation in blocks of 512 bytes.
func checkSize(size, blocks, want, limit int64) error {
	switch {
	case size <= 0:
		return fmt.Errorf("memory is empty: %w", status.Fault)
	case size%PageSize != 0:
		return fmt.Errorf("memory of %d bytes is not whole pages of %d: %w", size, PageSize, status.Fault)
	case size > MaxSize || size > limit:
		return fmt.Errorf("memory of %d bytes is over the limit of %d: %w", size, limit, status.NoMemory)
	case size != want:
		return fmt.Errorf("memory has %d bytes, announced were %d: %w", size, want, status.Fault)
	case blocks < size/512:
		return fmt.Errorf("memory of %d bytes has only %d allocated; its owner must populate it: %w",
			size, blocks*512, status.Fault)
	}
	return nil
}

func fstatfs(fd int, fs *unix.Statfs_t) error {
	for {
		if err := unix.Fstatfs(fd, fs); err != unix.EINTR {
			return err
		}
	}
}

// sealNames names the seals in set.
func sealNames(set int) string {
	names := ""
	for _, s := range []struct {
		bit  int
		name string
	}{{unix.F_SEAL_SHRINK, "SHRINK"}, {unix.F_SEAL_GROW, "GROW"}} {
		if set&s.bit == 0 {
			continue
		}
		if names != "" {
			names += ", "
		}
		names += s.name
	}
	return names
}
