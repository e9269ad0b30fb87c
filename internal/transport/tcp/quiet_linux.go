package tcp

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A quietConn is a TCP connection that the runtime's poller does not watch. For one that
// it watches, each packet wakes the thread that waits in the poller, also while a reader
// looks at the socket itself and needs to be told nothing: between two processes on two
// processors a ping-pong of bytes took 20 µs instead of 5 one way. Here the runtime
// watches two gates, which tell of the socket while somebody sleeps there, and once more
// behind a sleep that a deadline has ended.
type quietConn struct {
	fd            int // the socket, which does not block; used inside of a gate only, closed behind both
	reads, writes *gate
	local, remote net.Addr
	close         func() error // once
}

// quiet takes c out of the runtime's poller and returns what is to be used instead: c is
// closed, which its connection does not notice. It returns c as it is if that is no socket,
// or if there are no descriptors left.
func quiet(c net.Conn) net.Conn {
	raw := rawConn(c)
	if raw == nil {
		return c
	}
	fd, err := -1, error(nil)
	if gone := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); gone != nil || err != nil {
		return c
	}
	q := &quietConn{fd: fd, local: c.LocalAddr(), remote: c.RemoteAddr()}
	q.close = sync.OnceValue(q.end)
	q.reads, err = newGate(fd, unix.EPOLLIN|unix.EPOLLRDHUP)
	if err == nil {
		q.writes, err = newGate(fd, unix.EPOLLOUT)
	}
	if err != nil {
		_ = q.close() // one of two descriptors, unused
		return c
	}
	_ = c.Close() // the other one
	return q
}

// end closes the gates, which waits until nobody is inside, and then the socket.
func (q *quietConn) end() error {
	var err error
	for _, g := range []*gate{q.reads, q.writes} {
		if g != nil {
			err = errors.Join(err, g.close())
		}
	}
	return errors.Join(err, unix.Close(q.fd))
}

// Close implements net.Conn.
func (q *quietConn) Close() error { return q.close() }

// LocalAddr, RemoteAddr, SetDeadline, SetReadDeadline and SetWriteDeadline implement
// net.Conn.
func (q *quietConn) LocalAddr() net.Addr { return q.local }

func (q *quietConn) RemoteAddr() net.Addr { return q.remote }

func (q *quietConn) SetDeadline(t time.Time) error {
	return errors.Join(q.SetReadDeadline(t), q.SetWriteDeadline(t))
}

func (q *quietConn) SetReadDeadline(t time.Time) error { return q.reads.set.SetReadDeadline(t) }

func (q *quietConn) SetWriteDeadline(t time.Time) error { return q.writes.set.SetReadDeadline(t) }

// Read implements net.Conn.
func (q *quietConn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	wait := q.reads.pass(func(fd uintptr) bool {
		n, err = readNow(fd, p)
		return n > 0 || err != nil
	})
	return n, first(err, wait)
}

// Write implements net.Conn.
func (q *quietConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		wait := q.writes.pass(func(fd uintptr) bool {
			var took int
			took, err = writeNow(fd, p[n:])
			n += took
			return took > 0 || err != nil
		})
		err = first(err, wait)
	}
	return n, err
}

// SyscallConn implements syscall.Conn.
func (q *quietConn) SyscallConn() (syscall.RawConn, error) { return quietSocket{q}, nil }

// A quietSocket is the socket of a quietConn, as syscall.RawConn has it.
type quietSocket struct{ q *quietConn }

func (s quietSocket) Control(f func(fd uintptr)) error {
	return s.q.reads.raw.Control(func(uintptr) { f(uintptr(s.q.fd)) })
}

func (s quietSocket) Read(f func(fd uintptr) bool) error { return s.q.reads.pass(f) }

func (s quietSocket) Write(f func(fd uintptr) bool) error { return s.q.writes.rush(f) }

// sightOf returns what is readable while somebody sleeps for the socket and it has
// something: the socket itself, or its gate, which is not told of each packet besides.
func sightOf(raw syscall.RawConn) syscall.RawConn {
	if s, ok := raw.(quietSocket); ok {
		return s.q.reads.raw
	}
	return raw
}

// unarmed is when who sleeps looks again if the kernel has no memory for a gate, or this
// user's share of it is used up (fs.epoll.max_user_watches).
const unarmed = time.Millisecond

// A gate is a set of the kernel, and a file that the runtime watches. While it is armed, it
// has the socket as its only member, and is readable once that is ready. Else it is empty:
// of each packet the kernel tells every set that the socket is in, also those that asked for
// nothing: two gates took 0.1 µs of a way that takes 6.
type gate struct {
	socket int
	events uint32
	set    *os.File
	raw    syscall.RawConn
	step   func(uintptr) bool // try, made once
	ctl    func(set, op, socket int, ev *unix.EpollEvent) error
	closed chan struct{} // when the gate begins to close

	mu    sync.Mutex // one at a time is inside; guards the fields below
	f     func(uintptr) bool
	armed bool
	err   error
	over  bool
}

func newGate(socket int, events uint32) (*gate, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err = unix.SetNonblock(set, true); err != nil { // else the runtime does not watch it
		return nil, errors.Join(err, unix.Close(set))
	}
	g := &gate{socket: socket, events: events, set: os.NewFile(uintptr(set), "epoll"), ctl: unix.EpollCtl, closed: make(chan struct{})}
	g.step = g.try
	if err = g.set.SetReadDeadline(time.Time{}); err == nil { // it is watched
		g.raw, err = g.set.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, g.set.Close())
	}
	return g, nil
}

// close makes who is inside leave, and waits for that.
func (g *gate) close() error {
	close(g.closed)
	err := g.set.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	return err
}

// pass calls f with the socket until it reports true. Between two calls it waits for the
// socket, until the deadline or the end of the gate.
func (g *gate) pass(f func(fd uintptr) bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.through(f)
}

// rush is pass for who likely needs not wait: the runtime, and so the deadline, is only
// asked if f reports false. That takes 0.1 µs less.
func (g *gate) rush(f func(fd uintptr) bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.over:
		return net.ErrClosed
	case f(uintptr(g.socket)):
		return nil
	}
	return g.through(f)
}

// through is pass. mu is held.
func (g *gate) through(f func(fd uintptr) bool) error {
	g.f = f
	var err error
	for {
		g.err = nil
		if err = g.raw.Read(g.step); err != nil || g.err != unix.ENOSPC && g.err != unix.ENOMEM {
			break
		}
		g.rest()
	}
	g.f = nil
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = net.ErrClosed // the runtime's word for it has no name
	}
	return first(err, g.err)
}

// rest is a sleep of who could not arm the gate.
func (g *gate) rest() {
	t := time.NewTimer(unarmed)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.closed:
	}
}

// try calls f, and once more behind arming: of what came before that the kernel tells
// nobody. mu is held.
func (g *gate) try(set uintptr) (done bool) {
	if done = g.arm(set, 0) || g.f(uintptr(g.socket)); done {
		return true
	}
	if done = g.arm(set, g.events) || g.f(uintptr(g.socket)); done {
		g.arm(set, 0)
	}
	return done
}

// arm says what opens the gate; 0: nothing. It reports true if that failed. mu is held.
func (g *gate) arm(set uintptr, events uint32) (failed bool) {
	if g.armed == (events != 0) {
		return false
	}
	op := unix.EPOLL_CTL_DEL
	if events != 0 {
		op = unix.EPOLL_CTL_ADD
	}
	if g.err = g.ctl(int(set), op, g.socket, &unix.EpollEvent{Events: events}); g.err != nil {
		return true
	}
	g.armed = events != 0
	return false
}
