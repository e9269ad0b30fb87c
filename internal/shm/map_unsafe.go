package shm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapShared maps [off, off+n) of a file. A piece in which a huge page fits lies
// at an address that is like its offset, counted in huge pages: only so can the
// processor use one.
func mapShared(fd int, off, n int64, prot int) ([]byte, error) {
	huge := HugePageSize()
	if huge == 0 || n < huge {
		at, err := unix.MmapPtr(fd, off, nil, uintptr(n), prot, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		return unsafe.Slice((*byte)(at), n), nil
	}
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(n+huge), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := (off - int64(uintptr(base))) & (huge - 1)
	at := unsafe.Add(base, before)
	if _, err := unix.MmapPtr(fd, off, at, uintptr(n), prot, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		unix.MunmapPtr(base, uintptr(n+huge)) // a range of ours: it cannot fail
		return nil, err
	}
	if before > 0 {
		unix.MunmapPtr(base, uintptr(before))
	}
	unix.MunmapPtr(unsafe.Add(at, n), uintptr(huge-before))
	return unsafe.Slice((*byte)(at), n), nil
}

// replace maps the beginning of f over mem, in one step.
func replace(f *os.File, mem []byte) error {
	return withDescriptor(f, func(fd int) error {
		_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		return err
	})
}

// unmap ends a mapping of either.
func unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}
