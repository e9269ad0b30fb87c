//go:build linux && !race

package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// brief is how many bytes the kernel sends in a few microseconds.
const brief = 8 << 10

// receive and send are recv(2) and send(2) of a socket that does not block, which cost 0.1
// µs less than read and write.
func receive(fd uintptr, p []byte) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
	return outcome(n, errno)
}

// glimpse is receive, again while there is nothing, up to most times, and without a word to
// the scheduler, which costs as much again: who looks is back before anybody else could
// have used the processor.
func glimpse(fd uintptr, p []byte, most int) (int, error) {
	for i := 1; ; i++ {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EAGAIN || i >= most {
			return outcome(n, errno)
		}
	}
}

func send(fd uintptr, p []byte) (int, error) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if len(p) <= brief {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
		return outcome(n, errno)
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
	return outcome(n, errno)
}

func outcome(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
