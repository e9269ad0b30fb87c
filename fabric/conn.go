package fabric

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/status"
)

// A Conn is a connected endpoint as a [net.Conn].
//
// Read ends with io.EOF when the peer's application has closed its Conn and everything
// it sent was read, and in no other case: when its process has died or left without a
// close, or its node was stopped or lost, Read returns what has come, and then fails
// with ECONNRESET. The error's text names the cause. There is no half-close.
type Conn struct {
	ep            *Endpoint
	local, remote Addr
	read, write   deadline
	closed        atomic.Bool
}

var _ net.Conn = (*Conn)(nil)

// NewConn returns a Conn on ep, which is connected and which the Conn closes.
func NewConn(ep *Endpoint) *Conn {
	return &Conn{
		ep:     ep,
		local:  ep.LocalAddr(),
		remote: ep.RemoteAddr(),
		read:   newDeadline(),
		write:  newDeadline(),
	}
}

// Endpoint returns the connection's endpoint, for windows, RMA and fences.
func (c *Conn) Endpoint() *Endpoint { return c.ep }

// Read waits for at least one byte and returns what is there.
func (c *Conn) Read(p []byte) (int, error) {
	limit := c.read.current()
	if err := c.usable(limit); err != nil {
		return 0, c.fail("recv", err)
	}
	n, err := c.ep.ep.Recv(limit, p)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) && !c.closed.Load() {
		return n, io.EOF
	}
	return n, c.fail("recv", c.cause(limit, err))
}

// Write sends all of p.
func (c *Conn) Write(p []byte) (int, error) {
	limit := c.write.current()
	if err := c.usable(limit); err != nil {
		return 0, c.fail("send", err)
	}
	n, err := c.ep.ep.Send(limit, p)
	if err == nil {
		return n, nil
	}
	return n, c.fail("send", c.cause(limit, err))
}

// usable returns why a call may not even begin. Unlike elsewhere in this
// package, a deadline that has passed fails a call that need not block: that is
// what net.Conn says.
func (c *Conn) usable(l *limit) error {
	if c.closed.Load() {
		return status.BadFD
	}
	if err := l.Err(); err != nil {
		return withdrawn{err}
	}
	return nil
}

// cause returns what the caller shall see for a call that failed with err: a
// call that Close woke up is net.ErrClosed, whatever SCIF says.
func (c *Conn) cause(l *limit, err error) error {
	if c.closed.Load() {
		return status.BadFD
	}
	return withdraw(l, err)
}

func (c *Conn) fail(op string, err error) error {
	return &OpError{Op: op, Local: c.local, Remote: c.remote, Err: err}
}

// Close closes the connection; what was written is still delivered. Calls that
// are blocked, later ones, and a second Close fail with net.ErrClosed.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return c.fail("close", status.BadFD)
	}
	c.read.set(time.Time{}) // stops the timers
	c.write.set(time.Time{})
	return c.ep.Close()
}

// LocalAddr returns this end's [Addr], also after Close.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's [Addr], also after Close.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the read and the write deadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.read, &c.write) }

// SetReadDeadline sets the time at which Reads that are blocked, and later
// ones, fail with os.ErrDeadlineExceeded. The zero t is never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.read) }

// SetWriteDeadline is SetReadDeadline for Write. A Write that fails may have
// sent some of its bytes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.write) }

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline) error {
	if c.closed.Load() {
		return c.fail("set deadline", status.BadFD)
	}
	for _, d := range ds {
		d.set(t)
	}
	return nil
}
