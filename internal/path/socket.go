package path

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/rawio"
)

// A socket is a TCP socket that can be read and written with and without
// waiting. One goroutine reads and one writes at a time.
type socket struct {
	tcp *net.TCPConn
	raw syscall.RawConn

	// The arguments and results of the calls below, which are made once so that
	// none of them allocates.
	in, out         call
	readNow, read   func(fd uintptr) bool
	writeNow, write func(fd uintptr) bool
}

// A call is one call of the kernel.
type call struct {
	p   []byte
	n   int
	err error
}

// newSocket takes f, a TCP socket, in any case.
func newSocket(f *os.File) (*socket, error) {
	tcp, err := tcpOf(f)
	if err != nil {
		return nil, err
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		tcp.Close()
		return nil, err
	}
	s := &socket{tcp: tcp, raw: raw}
	s.read = func(fd uintptr) bool {
		s.in.n, s.in.err = rawio.Read(int(fd), s.in.p)
		return s.in.err != unix.EAGAIN
	}
	s.readNow = func(fd uintptr) bool { s.read(fd); return true }
	s.write = func(fd uintptr) bool {
		s.out.n, s.out.err = rawio.Write(int(fd), s.out.p)
		return s.out.err != unix.EAGAIN
	}
	s.writeNow = func(fd uintptr) bool { s.write(fd); return true }
	return s, nil
}

// tcpOf makes f, a TCP socket, a connection. It takes f in any case.
func tcpOf(f *os.File) (*net.TCPConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, errors.New("a path's descriptor is no TCP socket")
	}
	Tune(tcp) // net has set its own
	return tcp, nil
}

// errWait means that a call would have to wait. To crypto/tls it is a time-out,
// after which it goes on as if nothing had been.
var errWait net.Error = waitError{}

type waitError struct{}

func (waitError) Error() string   { return "the path has nothing, or no room" }
func (waitError) Timeout() bool   { return true }
func (waitError) Temporary() bool { return true }

// readSome reads the bytes at hand; io.EOF after the end. Without wait it returns
// errWait when there are none.
func (s *socket) readSome(p []byte, wait bool) (int, error) {
	s.in.p = p
	f := s.readNow
	if wait {
		f = s.read
	}
	err := s.raw.Read(f)
	s.in.p = nil
	switch {
	case err != nil: // the deadline, or closed
		return 0, err
	case s.in.err == unix.EAGAIN:
		return 0, errWait
	case s.in.err != nil:
		return 0, fmt.Errorf("path: read: %w", s.in.err)
	case s.in.n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return s.in.n, nil
}

// writeSome writes as many bytes as there is room for; without wait it returns
// errWait when there is none.
func (s *socket) writeSome(p []byte, wait bool) (int, error) {
	s.out.p = p
	f := s.writeNow
	if wait {
		f = s.write
	}
	err := s.raw.Write(f)
	s.out.p = nil
	switch {
	case err != nil:
		return 0, err
	case s.out.err == unix.EAGAIN:
		return 0, errWait
	case s.out.err != nil:
		return 0, fmt.Errorf("path: write: %w", s.out.err)
	}
	return s.out.n, nil
}

// ready reports whether bytes wait to be read, whether there is room, and whether the
// socket has ended.
func (s *socket) ready() (in, out, ended bool) {
	// It fails only when the socket is closed: then there is neither.
	_ = s.raw.Control(func(fd uintptr) {
		queued, err := unread(fd)
		in = err == nil && queued > 0
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT | hungUp}}
		_, err = unix.Poll(fds, 0)
		got := fds[0].Revents
		out = err == nil && got&unix.POLLOUT != 0
		ended = err == nil && got&hungUp != 0
	})
	return in, out, ended
}

// peerEnded reports whether the end that a read has found is the peer's, and not a shutdown
// at this machine, behind which bytes may have been lost.
func (s *socket) peerEnded() (is bool) {
	// It fails only when the socket is closed: then it is not.
	_ = s.raw.Control(func(fd uintptr) {
		info, err := infoOf(fd)
		is = err == nil && !slices.Contains([]uint8{established, finWait1, finWait2}, info.State)
	})
	return is
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)
