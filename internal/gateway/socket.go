package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/fabricd/fabricd/internal/rawio"
)

// A socket is a TCP or Unix connection of this machine. One goroutine reads and one writes at
// a time.
type socket struct {
	halves
	raw syscall.RawConn

	// The arguments and results of the calls below, which are made once so that none of
	// them allocates.
	in, out     call
	read, write func(fd uintptr) bool
}

// halves has the methods that *net.TCPConn and *net.UnixConn share.
type halves interface {
	net.Conn
	CloseWrite() error
}

// A call is one call of the kernel.
type call struct {
	p   []byte
	n   int
	err error
}

func newSocket(c halves, raw syscall.RawConn) *socket {
	s := &socket{halves: c, raw: raw}
	s.read = func(fd uintptr) bool {
		s.in.n, s.in.err = rawio.Read(int(fd), s.in.p)
		return s.in.err != syscall.EAGAIN
	}
	s.write = func(fd uintptr) bool {
		s.out.n, s.out.err = rawio.Write(int(fd), s.out.p)
		return s.out.err != syscall.EAGAIN
	}
	return s
}

// SetLinger does nothing over a Unix socket, which the kernel cannot reset: its peer sees an end.
func (s *socket) SetLinger(sec int) error {
	if t, ok := s.halves.(*net.TCPConn); ok {
		return t.SetLinger(sec)
	}
	return nil
}

func (s *socket) Read(p []byte) (int, error) {
	s.in.p = p
	err := s.raw.Read(s.read)
	s.in.p = nil
	switch {
	case err != nil || s.in.err != nil:
		return 0, s.fail("read", err, s.in.err)
	case s.in.n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return s.in.n, nil
}

func (s *socket) Write(p []byte) (n int, err error) {
	for n < len(p) {
		s.out.p = p[n:]
		err := s.raw.Write(s.write)
		s.out.p = nil
		if err != nil || s.out.err != nil {
			return n, s.fail("write", err, s.out.err)
		}
		n += s.out.n
	}
	return n, nil
}

// gone waits until the peer can take no byte any more: it has reset the connection, or closed
// that over a Unix socket. An end alone does not count, since its sender may wait for an answer;
// that of a TCP peer that has closed turns into a reset at the kernel's next keepalive probe. It
// reads nothing, and ends as Read does.
func (s *socket) gone() error {
	var gone error
	err := s.raw.Read(func(fd uintptr) bool {
		_, gone = syscall.SendmsgN(int(fd), nil, nil, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL) // no byte
		return gone != nil
	})
	return s.fail("send", err, gone)
}

// fail returns the error of an operation in the form of package net: waited is the error of
// the wait for it, called that of the kernel.
func (s *socket) fail(op string, waited, called error) error {
	err := os.NewSyscallError(op, called)
	if waited != nil {
		err = waited
		if inner, ok := errors.AsType[*net.OpError](waited); ok { // of another operation, raw-read
			err = inner.Err
		}
	}
	return &net.OpError{Op: op, Net: s.LocalAddr().Network(), Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
}
