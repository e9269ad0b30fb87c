package shm

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// HugePages says whether memory is to lie in huge pages, of which a processor
// remembers more at a time.
//
// They are those of tmpfs, which the kernel makes of small ones (MADV_COLLAPSE,
// Linux 6.1): such memory is sealed, counted, checked and given back like any
// other. Hugetlb pages are none of that: with an empty pool an access to sealed
// memory is a SIGBUS, and each process that shares it can empty the pool (see [Check]).
//
// They are no default. BenchmarkPages copied 1 MiB after the other, in turns in
// small pages and in huge ones, three runs on two processors, in MB/s:
//
//	memory copied over         small pages           huge pages            gain
//	2 MiB, in the caches       32035, 31223, 33557   34610, 32234, 34922   3 to 8 %
//	16 MiB                      8611, 10043,  9612   10029, 10789, 10178   6 to 16 %
//	64 MiB                      8981,  9089,  8804   10422, 10347, 10210   14 to 16 %
//
// Against that, such memory took 22 to 127 % longer to make (BenchmarkCreate: 2 MiB
// 1.6 to 1.9 ms, huge 2.3 to 3.5; 16 MiB 15.3 ms, huge 18.7 to 26.4). That is paid
// back when every byte has been copied twenty to eighty times, and in the caches
// some hundreds of times. Where free memory is in small parts the kernel moves pages
// about before it gives up, in the call that wants the memory, and a huge page
// counts for its cgroup before the small ones are given back. A window of less than
// a huge page has none, and a copy of 1 MiB runs as fast as memcpy of the C library
// does between the same pages.
type HugePages uint8

const (
	HugeOff     HugePages = iota // as the kernel likes
	HugeTry                      // where there are some
	HugeRequire                  // or no memory at all
)

var hugeNames = [...]string{HugeOff: "off", HugeTry: "try", HugeRequire: "require"}

// HugeAllowed names the values of [ParseHugePages].
const HugeAllowed = "off, try or require"

// ParseHugePages reads what String writes; false for anything else.
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

// Apply puts as much of r as fills huge pages into such ones, in the way that h
// says; the rest, and memory that is smaller than one, keeps small pages. r is
// fresh memory of this package with all its pages. With HugeTry, small says why
// that did not come about; with HugeRequire, the error does, which is
// status.NoMemory and names the limit, or status.NotSupp.
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

// collapseTries bounds how often the kernel is asked again when it says so: it
// does while a page is on its way between its own lists.
const collapseTries = 4

// collapse makes huge pages of all of mem that fills some.
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
		if err = unix.Madvise(mem[:whole], unix.MADV_COLLAPSE); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return hugeError(err, whole, size)
}

// hugeError says what the kernel's answer to a wish for huge pages means.
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
