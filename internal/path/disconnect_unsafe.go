package path

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disconnect makes fd a socket without a connection, which the peer sees as a reset: connect
// with an address of no family. Package unix has no such address.
func disconnect(fd uintptr) {
	none := unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}}
	_, _, _ = syscall.Syscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4)
}
