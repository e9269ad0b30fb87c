package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// Pair returns the two ends of a byte stream: one to use here, one to pass on.
// Both are non-blocking and closed on exec.
func Pair() (*net.UnixConn, *os.File, error) {
	a, far, err := socketPair(unix.SOCK_STREAM, "stream")
	if err != nil {
		return nil, nil, err
	}
	near, err := Conn(a)
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// Conn makes f, a Unix socket, a connection. It takes f in any case.
func Conn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fail("Unix socket", err, status.Protocol)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("descriptor is not a Unix socket: %w", status.Protocol)
	}
	return u, nil
}

// Watcher returns a second connection on c's socket, for [WatchRead] and [WatchWrite]
// beside blocked calls on c. The caller closes it. It is not made from c.File, because
// [net.FileConn] makes the socket, which c shares, blocking for a moment. A Write of c
// would then wait in the kernel, where no deadline ends it.
func Watcher(c *net.UnixConn) (*net.UnixConn, error) {
	f, err := derive(c, "stream", "duplicate socket", duplicate)
	if err != nil {
		return nil, err
	}
	return Conn(f)
}

// TryRead reads the available bytes: status.Again if there are none, io.EOF after
// the last byte. It may be called beside a blocked Read.
func TryRead(c *net.UnixConn, p []byte) (int, error) {
	n, err := once(c, func(fd int) (int, error) { return unix.Read(fd, p) })
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// TryWrite writes as many bytes as fit now: status.Again if none fits. It may be
// called beside a blocked Write.
func TryWrite(c *net.UnixConn, p []byte) (int, error) {
	return once(c, func(fd int) (int, error) {
		return unix.SendmsgN(fd, p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// once does one call on c's descriptor without waiting for readiness.
func once(c *net.UnixConn, call func(fd int) (int, error)) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		for {
			if n, err = call(int(fd)); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	if cerr != nil {
		return 0, cerr
	}
	if errors.Is(err, unix.EAGAIN) {
		return 0, status.Again
	}
	return max(n, 0), err
}

// Readiness is the set of operations that a stream socket is ready for.
type Readiness struct {
	In  bool // bytes wait to be read
	Out bool // bytes can be written
	// RdHup: the other end has shut down writing; the end follows the waiting bytes.
	// Hup: this end cannot write either.
	RdHup, Hup bool
}

// Ready returns the readiness of c now.
func Ready(c *net.UnixConn) (Readiness, error) {
	var r Readiness
	_, err := once(c, func(fd int) (int, error) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | hungUp}}
		if n, err := unix.Poll(fds, 0); err != nil {
			return n, err
		}
		got := fds[0].Revents
		r.RdHup, r.Hup = got&(hungUp|unix.POLLHUP) != 0, got&unix.POLLHUP != 0
		r.Out = got&unix.POLLOUT != 0
		// The end of the stream polls as readable too; only queued bytes count.
		queued, err := unread(fd)
		r.In = queued > 0
		return 0, err
	})
	return r, err
}

// Duplicate returns a descriptor of its own for the memory behind f, which the
// caller closes.
func Duplicate(f *os.File) (*os.File, error) {
	return derive(f, f.Name(), "duplicate memory descriptor", duplicate)
}

func duplicate(old uintptr) (int, error) { return unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }

// ReadOnly is Duplicate with a descriptor through which the memory cannot be
// written.
func ReadOnly(f *os.File) (*os.File, error) {
	if err := Absent(); err != nil {
		return nil, err
	}
	return derive(f, f.Name(), "open memory read-only", func(old uintptr) (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", old), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
}

// derive returns the descriptor that do makes from that of f, as a file called name.
func derive(f syscall.Conn, name, what string, do func(old uintptr) (int, error)) (*os.File, error) {
	var fd int
	err := withDescriptor(f, func(old int) (err error) {
		fd, err = do(uintptr(old))
		return err
	})
	if err != nil {
		return nil, fail(what, err, status.NotSupp)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// WaitRead waits until c may be readable, its read deadline has passed or it
// is closed.
func WaitRead(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | hungUp}}
		n, err := unix.Poll(fds, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
}

// WatchRead calls changed whenever c may have become readable, and once at the
// beginning, until c is closed or its read deadline passes.
func WatchRead(c syscall.Conn, changed func()) {
	watch(c, changed, syscall.RawConn.Read)
}

// WatchWrite is WatchRead for writing.
func WatchWrite(c syscall.Conn, changed func()) {
	watch(c, changed, syscall.RawConn.Write)
}

// watch waits for edges. Each wait is armed before changed is called, so that
// a change after the check that changed causes is another edge.
func watch(c syscall.Conn, changed func(), wait func(syscall.RawConn, func(uintptr) bool) error) {
	raw, err := c.SyscallConn()
	for err == nil {
		armed := false
		err = wait(raw, func(uintptr) bool {
			if armed {
				return true
			}
			armed = true
			changed()
			return false
		})
	}
}
