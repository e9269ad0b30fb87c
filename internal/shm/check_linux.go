//go:build !portable

package shm

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// tmpfsMagic is the file system of memfds. Hugetlb memfds have another, and
// with an empty pool fault however they are sealed.
const tmpfsMagic = 0x01021994

// check asks for the seals first: only memory can have them, and a descriptor
// of a file system in user space is refused before a call reaches that file
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
	if err := retried(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
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

// sealNames names the seals in set, which is a part of sizeSeals and not empty.
func sealNames(set int) string {
	switch set {
	case unix.F_SEAL_SHRINK:
		return "SHRINK"
	case unix.F_SEAL_GROW:
		return "GROW"
	}
	return "SHRINK, GROW"
}
