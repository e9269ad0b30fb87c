package path

import (
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Held is a path's socket as the node that made it keeps it: to end it, and to read
// the kernel's counters of it.
type Held struct {
	local, remote  net.Addr
	control        func(f func(fd uintptr)) error // fails once the socket is closed
	close          func() error
	bare           *bareFD // nil: this process uses the socket itself
	sent, received uint64  // as returned by Moved
	unlocked       bool
}

// Hold keeps a duplicate of s, which it takes in any case, for a socket that an application
// uses, and locks it to its connection where the kernel lets this process. The duplicate is not in this process's poller, which
// every byte of the application's would wake.
func Hold(s *net.TCPConn) (*Held, error) {
	defer s.Close()
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, err := duplicate(raw.Control)
	if err != nil {
		return nil, err
	}
	b := &bareFD{fd: fd}
	locked, err := lock(uintptr(fd), s.LocalAddr(), s.RemoteAddr())
	if err != nil {
		b.close()
		return nil, err
	}
	return &Held{local: s.LocalAddr(), remote: s.RemoteAddr(), control: b.control, close: b.close, bare: b, unlocked: !locked}, nil
}

// Unlocked reports whether an application uses the socket and could connect it elsewhere.
func (h *Held) Unlocked() bool { return h.unlocked }

// Use keeps s, which this process uses itself. Close closes s.
func Use(s *net.TCPConn) (*Held, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Held{local: s.LocalAddr(), remote: s.RemoteAddr(), control: raw.Control, close: s.Close}, nil
}

// LocalAddr returns the socket's own address, also after Close.
func (h *Held) LocalAddr() net.Addr { return h.local }

// RemoteAddr returns the peer's address, also after Close.
func (h *Held) RemoteAddr() net.Addr { return h.remote }

// Duplicate returns a new descriptor of the socket, for the application. The caller
// closes it.
func (h *Held) Duplicate() (*os.File, error) {
	fd, err := duplicate(h.control)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "path"), nil
}

func duplicate(control func(func(fd uintptr)) error) (fd int, err error) {
	cerr := control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil {
		return 0, cerr
	}
	return fd, err
}

// Shutdown ends the socket for every process that has it, both ways, at once: bytes that
// have arrived can be read, nothing more arrives or goes out.
func (h *Held) Shutdown() { shutdown(h.control, unix.SHUT_RDWR) }

// CloseWrite ends the outgoing direction, for every process that has the socket.
func (h *Held) CloseWrite() { shutdown(h.control, unix.SHUT_WR) }

// shutdown fails only where the socket has ended.
func shutdown(control func(func(fd uintptr)) error, how int) {
	_ = control(func(fd uintptr) { _ = unix.Shutdown(int(fd), how) })
}

// Take returns the duplicate that Hold has made, to read from; the Held is closed.
func (h *Held) Take() (*os.File, error) {
	fd, err := h.bare.take()
	if err != nil {
		return nil, err
	}
	// An application that makes its end a connection has the socket block for a moment:
	// a file made then would have no deadlines. It fails only if the socket is none.
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "path"), nil
}

// Close gives the descriptor back. The socket goes on for other processes that have it.
func (h *Held) Close() error { return h.close() }

// A bareFD is a descriptor that is in no poller. mu is held while it is used.
type bareFD struct {
	mu     sync.Mutex
	fd     int
	closed bool
}

func (b *bareFD) control(f func(fd uintptr)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return net.ErrClosed
	}
	f(uintptr(b.fd))
	return nil
}

// take makes the descriptor the caller's.
func (b *bareFD) take() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, net.ErrClosed
	}
	b.closed = true
	return b.fd, nil
}

func (b *bareFD) close() error {
	fd, err := b.take()
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}
