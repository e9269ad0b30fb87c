//go:build !portable

package path

import "golang.org/x/sys/unix"

// Absent returns why this system's kernel does not report the socket state that a path's
// node needs; nil: it does.
func Absent() error { return nil }

// hungUp are the events of a poll that report that a socket, or its peer's direction, has ended.
const hungUp = unix.POLLERR | unix.POLLHUP | unix.POLLRDHUP

// A tcpInfo is the kernel's state of a TCP socket.
type tcpInfo = unix.TCPInfo

func infoOf(fd uintptr) (*tcpInfo, error) {
	return unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
}

// unread and unacknowledged return how many bytes wait at a socket to be read, and how many
// of those written to it the peer's kernel has not acknowledged.

func unread(fd uintptr) (int, error)         { return unix.IoctlGetInt(int(fd), unix.SIOCINQ) }
func unacknowledged(fd uintptr) (int, error) { return unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }

// poke makes the kernel ask for a sign of life now, unless it waits for an answer anyway: an
// idle time that has passed is over when it is set.
func poke(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1) }
