package tcp

import (
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options that Linux has from 6.15 on.
const (
	tcpRTOMax = 44 // TCP_RTO_MAX_MS
	tcpRTOMin = 45 // TCP_RTO_MIN_US
)

const (
	// unsentSmall bounds what the kernel keeps unsent of a first connection, in
	// bytes: a heartbeat does not wait behind more.
	unsentSmall = 256 << 10
	// mostWait is the longest that the kernel waits before it sends again what was
	// lost, in milliseconds, the least that it takes. By itself it waits twice as long
	// each time, so that a way that was cut for 1.5 s is tried again after 3: a link
	// would be given up before.
	mostWait = 1000
	// leastWait is how long it waits at least beyond a round trip, in microseconds: more
	// than the 40 ms for which a peer that has nothing to say usually puts off its
	// acknowledgement. By itself it waits for 200 ms, and twice as long each time: where a
	// fifth of all packets is lost, nothing came through for 2.5 s often enough, and the
	// link was given up.
	leastWait = 50_000
)

// tune tells the kernel how long it may wait for the peer's, how often it is to
// try, and how much it may queue. What it does not know it ignores: the connection
// works without.
func tune(c net.Conn, patience time.Duration, small bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		set := func(option, value int) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) }
		set(unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
		set(tcpRTOMax, mostWait)
		set(tcpRTOMin, leastWait)
		set(unix.TCP_THIN_LINEAR_TIMEOUTS, 1) // while little is under way, again and again after the same time
		if small {
			set(unix.TCP_NOTSENT_LOWAT, unsentSmall)
		}
	})
}

// infoOf asks the kernel about a connection, if it is one of TCP.
func infoOf(c net.Conn) (w way, ok bool) {
	raw := rawConn(c)
	if raw == nil {
		return w, false
	}
	err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if ok = err == nil; ok {
			w = way{segment: int(info.Snd_mss), unheard: info.Unacked > 0, retries: int(info.Retransmits), holed: info.Data_segs_in > 0 && info.Bytes_received == 0}
		}
	})
	return w, ok && err == nil
}

// rawConn returns how to write to c without waiting, nil if there is no way.
func rawConn(c net.Conn) syscall.RawConn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// writeNow writes to a socket that does not block. n is 0 if it has no room.
func writeNow(fd uintptr, p []byte) (n int, err error) {
	for {
		n, err = send(fd, p)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, nil
		}
		return max(n, 0), err
	}
}

// readNow reads from a socket that does not block. n is 0 without an error if
// there is nothing.
func readNow(fd uintptr, p []byte) (int, error) {
	for {
		if n, err := receive(fd, p); err != syscall.EINTR {
			return cameOf(n, err)
		}
	}
}

// lookNow is readNow of who expects nothing, and tries it up to most times.
func lookNow(fd uintptr, p []byte, most int) (int, error) {
	for {
		if n, err := glimpse(fd, p, most); err != syscall.EINTR {
			return cameOf(n, err)
		}
	}
}

func cameOf(n int, err error) (int, error) {
	switch {
	case err == nil && n > 0:
		return n, nil
	case err == nil:
		return 0, io.EOF
	case err == syscall.EAGAIN:
		return 0, nil
	}
	return 0, err
}

// A pollSet is sockets of which one call tells those that have something.
type pollSet struct{ fd int }

// newPollSet returns a set without sockets, nil if the kernel has no descriptor for it.
func newPollSet() *pollSet {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	return &pollSet{fd}
}

// add adds a socket, until it is closed, and reports whether that went well.
func (p *pollSet) add(fd uintptr, key uint64) bool {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{
		Events: unix.EPOLLIN, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}) == nil
}

// readable sets keys to those of sockets that have something to read, or have ended, and
// returns how many they are. If there are more, the others come next time.
func (p *pollSet) readable(keys *[mostRoused]uint64) int {
	var events [mostRoused]unix.EpollEvent
	n, err := unix.EpollWait(p.fd, events[:], 0)
	if err != nil {
		return 0
	}
	for i, e := range events[:n] {
		keys[i] = uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
	}
	return n
}
