package shm

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// HugePages selects whether memory is put into huge pages, with which the processor's
// TLB covers more memory.
//
// They are those of tmpfs, which the kernel makes of small ones (MADV_COLLAPSE,
// Linux 6.1): such memory is sealed, counted, checked and given back like any
// other. Hugetlb pages are none of that: with an empty pool an access to sealed
// memory is a SIGBUS, and each process that shares it can empty the pool (see [Check]).
//
// They are no default: copies over more memory than the caches hold are 6 to 16 % faster
// (BenchmarkPages), but the memory takes 22 to 127 % longer to make (BenchmarkCreate), which
// is paid back when every byte has been copied twenty to eighty times. Where free memory is
// in small parts the kernel moves pages about first, in the call that wants the memory, and
// a huge page counts for its cgroup before the small ones are given back. A window of less
// than a huge page has none.
type HugePages uint8

const (
	HugeOff     HugePages = iota // as the kernel decides
	HugeTry                      // where there are some
	HugeRequire                  // or no memory at all
)

var hugeNames = [...]string{HugeOff: "off", HugeTry: "try", HugeRequire: "require"}

// HugeAllowed names the values of [ParseHugePages].
const HugeAllowed = "off, try or require"

// ParseHugePages parses the result of String; false for any other text.
func ParseHugePages(text string) (HugePages, bool) {
	for h, name := range hugeNames {
		if text == name {
			return HugePages(h), true
		}
	}
	return HugeOff, false
}

// Valid reports whether h is one of the three.
func (h HugePages) Valid() bool { return int(h) < len(hugeNames) }

// String returns off, try or require.
func (h HugePages) String() string {
	if !h.Valid() {
		return fmt.Sprintf("huge pages %d", uint8(h))
	}
	return hugeNames[h]
}

// HugePageSize returns the bytes of a huge page of shared memory, a power of two;
// 0 where the kernel has none.
var HugePageSize = sync.OnceValue(func() int64 {
	n, ok := readNumber("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	if !ok || n <= PageSize || n&(n-1) != 0 || n > 1<<30 {
		return 0
	}
	return n
})

// Apply puts as much of r as fills huge pages into such pages, according to h. The
// rest, and memory that is smaller than one, keeps small pages. r is fresh memory of
// this package with all its pages. On failure, small is the reason with HugeTry;
// with HugeRequire the error is, which is status.NoMemory and names the limit, or
// status.NotSupp.
func (h HugePages) Apply(r *Region) (small string, err error) {
	if h == HugeOff {
		return "", nil
	}
	err = collapse(r.mem)
	switch {
	case err == nil:
		return "", nil
	case h == HugeRequire:
		return "", fmt.Errorf("huge pages are required: %w", err)
	}
	return "small pages: " + err.Error(), nil
}

// madvCollapse is MADV_COLLAPSE of Linux: only there is a HugePageSize.
const madvCollapse = 25

// collapseTries bounds how often an EAGAIN of the kernel is retried: it returns that
// while a page moves between its own lists.
const collapseTries = 4

// collapse puts the part of mem that fills whole huge pages into such pages.
func collapse(mem []byte) error {
	size := HugePageSize()
	if size == 0 {
		return fmt.Errorf("this kernel has no huge pages (/sys/kernel/mm/transparent_hugepage): %w", status.NotSupp)
	}
	whole := int64(len(mem)) &^ (size - 1)
	if whole == 0 {
		return nil
	}
	var err error
	for range collapseTries {
		if err = unix.Madvise(mem[:whole], madvCollapse); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return hugeError(err, whole, size)
}

// hugeError returns the error for the kernel's answer to a request for huge pages.
func hugeError(err error, bytes, size int64) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("this kernel makes no huge pages of shared memory (Linux 6.1 does, unless shmem_enabled in "+
			"/sys/kernel/mm/transparent_hugepage is deny): %w: %w", status.NotSupp, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%d bytes in pages of %d: the kernel has too few free ones in a row (/proc/buddyinfo; writing 1 to "+
			"/proc/sys/vm/compact_memory makes more): %w: %w", bytes, size, status.NoMemory, err)
	case errors.Is(err, unix.EBUSY):
		limit := "the limit of its memory cgroup"
		if room, name, ok := groupAvailable(); ok {
			limit = fmt.Sprintf("%s, with %d left", name, room)
		}
		return fmt.Errorf("%d bytes in pages of %d: this process is at %s: %w: %w", bytes, size, limit, status.NoMemory, err)
	}
	return fail(fmt.Sprintf("make huge pages of %d bytes", bytes), err, status.NoMemory)
}
