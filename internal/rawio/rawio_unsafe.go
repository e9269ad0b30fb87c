//go:build linux && !race

package rawio

import (
	"syscall"
	"unsafe"
)

func rawRead(fd int, p []byte) (int, error) { return rawCall(syscall.SYS_READ, fd, p) }

func rawWrite(fd int, p []byte) (int, error) { return rawCall(syscall.SYS_WRITE, fd, p) }

// rawCall needs no alignment of p, which lives until the call has ended.
func rawCall(trap uintptr, fd int, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
