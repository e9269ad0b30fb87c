package fabric

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// A Conn is a connected endpoint as a [net.Conn].
//
// Read ends with io.EOF when the peer's application has closed its Conn, or called
// CloseWrite, and everything it sent was read, and in no other case: when its process has
// died or left without a close, or its node was stopped or lost, or it has aborted the
// connection (SetLinger), Read returns the bytes that have arrived, and then
// fails with ECONNRESET. The error's text names the cause.
type Conn struct {
	ep            *Endpoint
	local, remote Addr
	read, write   deadline
	closed        atomic.Bool
	shut          atomic.Bool // CloseWrite was called
	abort         atomic.Bool // Close is to abort
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

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

// Read waits for at least one byte and returns the bytes that have arrived.
func (c *Conn) Read(p []byte) (int, error) {
	limit := c.read.current()
	if err := c.usable(limit); err != nil {
		return 0, c.fail("recv", err)
	}
	n, err := c.ep.ep.Recv(limit, p)
	if err != nil && errors.Is(err, io.EOF) && !c.closed.Load() {
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
	if c.shut.Load() {
		return 0, c.fail("send", syscall.EPIPE)
	}
	n, err := c.ep.ep.Send(limit, p)
	return n, c.fail("send", c.cause(limit, err))
}

// usable returns the error that keeps a call from beginning. Unlike elsewhere in this
// package, a deadline that has passed fails a call that need not block, as
// net.Conn requires.
func (c *Conn) usable(l *limit) error {
	if c.closed.Load() {
		return status.BadFD
	}
	if err := l.Err(); err != nil {
		return contextEnd{err}
	}
	return nil
}

// cause returns the error for the caller of a call that failed with err: a
// call that Close woke up is net.ErrClosed, whatever SCIF's error is.
func (c *Conn) cause(l *limit, err error) error {
	if err != nil && c.closed.Load() {
		return status.BadFD
	}
	return contextError(l, err)
}

func (c *Conn) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Local: c.local, Remote: c.remote, Err: err}
}

// Close closes the connection; bytes already written are still delivered. Calls that
// are blocked, later ones, and a second Close fail with net.ErrClosed.
func (c *Conn) Close() error {
	if c.abort.Load() {
		return c.Abort("")
	}
	if err := c.end(); err != nil {
		return err
	}
	return c.ep.Close()
}

// Abort is Close after SetLinger with 0, and sends the peer the reason: one line that ends
// the text of its [LostError], which bounds it. People read it on the peer's machine.
func (c *Conn) Abort(reason string) error {
	if err := c.end(); err != nil {
		return err
	}
	cause := attach.CauseAborted
	if reason != "" {
		cause += ": " + reason
	}
	return c.ep.fail("close", c.ep.ep.Abort(cause))
}

// end makes this end closed, once.
func (c *Conn) end() error {
	if c.closed.Swap(true) {
		return c.fail("close", status.BadFD)
	}
	c.read.set(time.Time{}) // stops the timers
	c.write.set(time.Time{})
	return nil
}

// CloseWrite ends the direction of this end: the peer reads the bytes written, and then
// io.EOF. The peer can still send, and this end can still read. Later Writes fail with EPIPE. It waits
// for a Write that is under way. Close is still due. After both ends have called it, and
// read io.EOF, the connection has ended in order.
//
// [Node.Poll] shows a peer's CloseWrite, once everything was received, as PollIn and
// PollRdHup. Errors: ECONNRESET if the connection has ended, net.ErrClosed after Close,
// EOPNOTSUPP if a node at either end is too old to know it.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return c.fail("shutdown", status.BadFD)
	}
	err := c.ep.ep.CloseWrite()
	if err == nil {
		c.shut.Store(true)
	}
	return c.fail("shutdown", err)
}

// SetLinger with sec 0 makes Close abort the connection: the peer's Read returns the bytes
// that have arrived, and then fails with ECONNRESET and never with io.EOF. With any other
// sec Close is as without SetLinger: bytes already written are still delivered.
func (c *Conn) SetLinger(sec int) error {
	if c.closed.Load() {
		return c.fail("set linger", status.BadFD)
	}
	c.abort.Store(sec == 0)
	return nil
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
