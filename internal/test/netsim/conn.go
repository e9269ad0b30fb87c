package netsim

import (
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// streamBuffer bounds the bytes of one direction of a stream that the reader
// has not taken, in flight or arrived. A Write beyond it waits.
const streamBuffer = 64 << 10

// A Conn is one end of a TCP-like stream. It implements net.Conn, and
// CloseWrite as *net.TCPConn does.
type Conn struct {
	socket
	peer     *Conn
	at       netip.AddrPort
	addr     *net.TCPAddr
	out      pair          // the directed pair of hosts that this end sends over
	oneWrite chan struct{} // holds a token during Write: writes do not interleave

	// The network's lock guards the fields below.
	in      stream
	finSent bool
}

// A stream holds the bytes under way to one Conn, in order.
type stream struct {
	segments []segment
	buffered int       // bytes in segments
	last     time.Time // when the latest segment becomes visible
	end      error     // io.EOF or a reset after the segments; nil: open
	endAt    time.Time // when end becomes visible
}

// A segment becomes visible at due.
type segment struct {
	due  time.Time
	data []byte
}

// newConns returns the two ends of a stream. n.mu is held.
func newConns(n *Network, from, to netip.AddrPort) (dialer, accepter *Conn) {
	dialer, accepter = newConn(n, from, to), newConn(n, to, from)
	dialer.peer, accepter.peer = accepter, dialer
	n.conns[dialer] = struct{}{}
	n.conns[accepter] = struct{}{}
	return dialer, accepter
}

func newConn(n *Network, at, to netip.AddrPort) *Conn {
	c := &Conn{
		at:       at,
		addr:     net.TCPAddrFromAddrPort(at),
		out:      pair{at.Addr().String(), to.Addr().String()},
		oneWrite: make(chan struct{}, 1),
	}
	c.socket = socket{net: n, fail: c.fail}
	return c
}

// Read returns bytes that have arrived, io.EOF after the peer's end, or
// ECONNRESET after a reset. It waits while the way to here is cut.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		got, next, err := c.read(p, time.Now())
		if err == io.EOF {
			return 0, err
		}
		if err != nil {
			return 0, c.fail("read", err)
		}
		if got > 0 || len(p) == 0 {
			return got, nil
		}
		next.sleep()
	}
}

// read takes the bytes that are visible at now, or returns the events to wait for.
func (c *Conn) read(p []byte, now time.Time) (int, wakeup, error) {
	n := c.net
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case c.closed:
		return 0, wakeup{}, net.ErrClosed
	case wait.Passed(c.readDeadline, now):
		return 0, wakeup{}, os.ErrDeadlineExceeded
	}
	next := c.readDeadline
	if !n.rulesFor(c.peer.out).Cut {
		if got := c.in.take(p, now); got > 0 {
			c.peer.changed.Fire() // room for its writer
			return got, wakeup{}, nil
		}
		if c.in.ended(now) {
			return 0, wakeup{}, c.in.end
		}
		next = wait.Earlier(next, c.in.next())
	}
	return 0, wakeup{c.changed.Next(), n.changed.Next(), next}, nil
}

// take copies to p the bytes that are visible at now.
func (s *stream) take(p []byte, now time.Time) int {
	got := 0
	for got < len(p) && len(s.segments) > 0 && wait.Passed(s.segments[0].due, now) {
		first := &s.segments[0]
		k := copy(p[got:], first.data)
		got += k
		if first.data = first.data[k:]; len(first.data) == 0 {
			*first = segment{}
			s.segments = s.segments[1:]
		}
	}
	s.buffered -= got
	return got
}

// ended reports whether the end is visible at now.
func (s *stream) ended(now time.Time) bool {
	return s.end != nil && len(s.segments) == 0 && wait.Passed(s.endAt, now)
}

// next returns when more becomes visible, zero if nothing is under way.
func (s *stream) next() time.Time {
	if len(s.segments) > 0 {
		return s.segments[0].due
	}
	return s.endAt
}

// finish ends s with err at due, or after the segments under way. A reset replaces
// an orderly end; the first reset stays.
func (s *stream) finish(err error, due time.Time) {
	if s.end != nil && s.end != io.EOF {
		return
	}
	if due.Before(s.last) {
		due = s.last
	}
	s.end, s.endAt, s.last = err, due, due
}

// Write sends p. It returns when all of p is in flight or buffered, and waits
// while the buffer is full.
func (c *Conn) Write(p []byte) (int, error) {
	c.oneWrite <- struct{}{}
	defer func() { <-c.oneWrite }()
	sent := 0
	for {
		k, next, err := c.write(p[sent:], time.Now())
		if err != nil {
			return sent, c.fail("write", err)
		}
		if k > 0 {
			c.net.captured(c.at, c.peer.at, p[sent:sent+k])
		}
		if sent += k; sent == len(p) {
			return sent, nil
		}
		if k == 0 {
			next.sleep()
		}
	}
}

// write queues at the peer as much of p as fits, or returns the events to wait for.
func (c *Conn) write(p []byte, now time.Time) (int, wakeup, error) {
	n := c.net
	n.mu.Lock()
	defer n.mu.Unlock()
	resetSeen := c.in.end == errReset && wait.Passed(c.in.endAt, now) && !n.rulesFor(c.peer.out).Cut
	switch {
	case c.closed:
		return 0, wakeup{}, net.ErrClosed
	case resetSeen:
		return 0, wakeup{}, errReset
	case c.finSent:
		return 0, wakeup{}, os.NewSyscallError("write", syscall.EPIPE)
	case wait.Passed(c.writeDeadline, now):
		return 0, wakeup{}, os.ErrDeadlineExceeded
	}
	if c.peer.closed {
		c.bounce(now)
		return len(p), wakeup{}, nil
	}
	k := min(len(p), streamBuffer-c.peer.in.buffered)
	if k > 0 {
		c.push(p[:k], now)
		return k, wakeup{}, nil
	}
	next := c.writeDeadline
	if c.in.end == errReset {
		next = wait.Earlier(next, c.in.endAt)
	}
	return 0, wakeup{c.changed.Next(), n.changed.Next(), next}, nil
}

// push sends p, in one segment unless the way has a rate. The network's lock is held.
func (c *Conn) push(p []byte, now time.Time) {
	s, r := &c.peer.in, c.net.rulesFor(c.out)
	size := len(p)
	if r.Rate > 0 {
		size = maxSegment
	}
	for part := range slices.Chunk(p, size) {
		left, _ := c.net.linkFor(c.out).turn(r, len(part), 0, now)
		due := left.Add(c.flight())
		if due.Before(s.last) {
			due = s.last // a stream keeps its order whatever the jitter
		}
		s.last = due
		s.segments = append(s.segments, segment{due, append([]byte(nil), part...)})
	}
	s.buffered += len(p)
	c.peer.changed.Fire()
}

// bounce handles data for an end that is gone: the data vanishes, and a
// reset comes back after a round trip. The network's lock is held.
func (c *Conn) bounce(now time.Time) {
	c.in.finish(errReset, now.Add(c.flight()+c.peer.flight()))
	c.changed.Fire()
}

// flight draws the delay of one segment from here.
func (c *Conn) flight() time.Duration {
	return c.net.linkFor(c.out).segment(c.net.rulesFor(c.out))
}

// errReset is the read error of an end after the other one died.
var errReset error = os.NewSyscallError("read", syscall.ECONNRESET)

// CloseWrite ends this direction: the peer reads the bytes sent before, then io.EOF.
func (c *Conn) CloseWrite() error {
	return c.whileOpen("close", func() { c.finishLocked(io.EOF) })
}

// finishLocked sends the end of this direction.
func (c *Conn) finishLocked(end error) {
	if c.finSent && end == io.EOF {
		return
	}
	c.finSent = true
	c.peer.in.finish(end, time.Now().Add(c.flight()))
	c.peer.changed.Fire()
	c.changed.Fire()
}

// Close ends both directions. The peer reads the bytes sent before, then io.EOF;
// or a reset if bytes that it sent were not read here, as in TCP.
func (c *Conn) Close() error {
	return c.whileOpen("close", func() {
		end := io.EOF
		if c.in.buffered > 0 {
			end = errReset
		}
		c.closeLocked(end)
	})
}

// abortLocked ends the conn as the death of its process would. The network's
// lock is held.
func (c *Conn) abortLocked() {
	if !c.closed {
		c.closeLocked(errReset)
	}
}

func (c *Conn) closeLocked(end error) {
	c.finishLocked(end)
	c.closed = true
	c.in.segments, c.in.buffered = nil, 0
	delete(c.net.conns, c)
	c.changed.Fire()
}

// abandon closes the end of a dial that its caller has given up. c may be nil.
func (c *Conn) abandon() {
	if c == nil {
		return
	}
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	c.abortLocked()
}

// LocalAddr returns this end's address, a *net.TCPAddr.
func (c *Conn) LocalAddr() net.Addr { return c.addr }

// RemoteAddr returns the peer's address, a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.peer.addr }

// fail wraps err with both ends.
func (c *Conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.addr, Addr: c.peer.addr, Err: err}
}
