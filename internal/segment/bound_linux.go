package segment

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Bound bounds the segments, in bytes, of a socket that is not connected yet. Where that
// cannot be set, the connection is as any other.
func Bound(raw syscall.RawConn, bytes int) {
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, bytes) })
}
