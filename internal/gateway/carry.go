package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/guard"
)

// A conn is a connection whose directions end one by one and that can be aborted.
type conn interface {
	net.Conn
	CloseWrite() error
	// SetLinger with 0 makes Close abort the connection, so that the peer sees a reset and no end.
	SetLinger(sec int) error
}

// finish ends connections in order: the other ends get all bytes that were sent.
func finish(all ...conn) {
	for _, c := range all {
		// Both fail only for a connection that has ended.
		_ = c.SetLinger(-1)
		_ = c.Close()
	}
}

// Bounds of the reading of dismiss.
const (
	dismissTime = 2 * time.Second
	dismissSize = 256 << 10
)

// dismiss ends a client's connection after an answer. Unread bytes of the client would turn
// the close into a reset, which can destroy the answer.
func dismiss(client conn) {
	err := errors.Join(client.SetDeadline(time.Now().Add(dismissTime)), client.CloseWrite())
	if err == nil {
		_, _ = io.CopyN(io.Discard, client, dismissSize) // the client may end it in any way
	}
	finish(client)
}

// abort ends connections because of err, so that their peers see a reset. A peer on the
// fabric gets the reason too.
func abort(err error, all ...conn) {
	for _, c := range all {
		// All fail only for a connection that has ended.
		if far, ok := c.(*fabric.Conn); ok {
			_ = far.Abort(reason(err))
			continue
		}
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// reason is err as text for the other node, without addresses of this machine.
func reason(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return err.Error()
	}
	what := op.Op
	if what == "dial" {
		what = "target"
	}
	if dns, ok := errors.AsType[*net.DNSError](op.Err); ok {
		return what + ": " + dns.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](op.Err); ok {
		return what + ": " + call.Err.Error()
	}
	if op.Timeout() {
		return what + ": no answer in time"
	}
	return what + ": not reached"
}

// oneLine bounds a text for people, which may contain text of an untrusted peer.
func oneLine(text string) string {
	return fmt.Sprintf("%.500s", strings.ReplaceAll(text, "\n", "; "))
}

// causeText returns the reason why a connection with a node was reset, in one line.
func causeText(err error, node string) string {
	if lost, ok := errors.AsType[*fabric.LostError](err); ok && node != "" {
		return node + ": " + lost.Text
	}
	return oneLine(err.Error())
}

// A carrier carries the bytes of one connection both ways.
type carrier struct {
	ends
	sent, back atomic.Int64
	idle       time.Duration                 // resets the connections after so long without a byte; 0: never
	bug        func(err error, stack []byte) // reports a panic

	once  sync.Once // guards the abort
	cause error     // of it; read when both directions have ended
}

// run copies both ways until both directions have ended in order, or one has failed,
// which resets both connections. It returns why they were reset; nil: they were not.
func (c *carrier) run() error {
	var copies, watch sync.WaitGroup
	copies.Go(func() { c.copy(c.client, c.server, &c.back) })
	over := make(chan struct{})
	if c.idle > 0 {
		watch.Go(func() { c.watch(over) })
	}
	c.copy(c.server, c.client, &c.sent)
	copies.Wait()
	close(over)
	watch.Wait()
	c.once.Do(func() { finish(c.client, c.server) }) // nothing has failed
	return c.cause
}

// copy copies one direction and passes its end on.
func (c *carrier) copy(to, from conn, count *atomic.Int64) {
	defer guard.Recover(func(err error, stack []byte) {
		c.bug(err, stack)
		c.end(err)
	})
	sink := counted{to: to, count: count, most: largeBuffer}
	if c.idle > 0 {
		sink.most = smallBuffer // a large piece that goes slowly would look idle
	}
	if err := copyBytes(&sink, from); err != nil {
		c.end(err)
		return
	}
	err := EndWrite(to)
	if errors.Is(err, syscall.ENOTCONN) {
		err = fmt.Errorf("close %s: %w", to.RemoteAddr(), syscall.ECONNRESET) // it was reset before it could receive the end
	}
	if err != nil {
		c.end(err)
	}
}

// EndWrite shuts down writing on c. A peer on the fabric that has closed in order takes no
// more bytes, and needs no end: that is no error.
func EndWrite(c interface{ CloseWrite() error }) error {
	err := c.CloseWrite()
	var lost *fabric.LostError
	if _, far := c.(*fabric.Conn); far && errors.Is(err, syscall.ECONNRESET) && !errors.As(err, &lost) {
		return nil
	}
	return err
}

// end resets both connections because of err. Later calls do nothing.
func (c *carrier) end(err error) {
	c.once.Do(func() {
		c.cause = err
		abort(err, c.client, c.server)
	})
}

// watch resets the connections when no byte has passed for the time idle, or up to twice
// as long, until over is closed.
func (c *carrier) watch(over <-chan struct{}) {
	ticks := time.NewTicker(c.idle)
	defer ticks.Stop()
	for seen := int64(-1); ; {
		select {
		case <-over:
			return
		case <-ticks.C:
		}
		now := c.sent.Load() + c.back.Load()
		if now == seen {
			c.end(fmt.Errorf("no byte for %v", c.idle))
			return
		}
		seen = now
	}
}

// Buffers of a direction: a large one while a read fills a small one, so that an idle
// connection holds little. A small one holds a record of TLS.
const (
	smallBuffer = 16 << 10
	largeBuffer = 256 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// A counted writes in pieces, and counts them.
type counted struct {
	to    io.Writer
	count *atomic.Int64
	most  int // bytes of a piece
}

func (c *counted) write(p []byte) error {
	for len(p) > 0 {
		n, err := c.to.Write(p[:min(len(p), c.most)])
		c.count.Add(int64(n))
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// copyBytes copies from a connection until its end.
func copyBytes(to *counted, from io.Reader) error {
	for {
		small := smallBuffers.Get().(*[smallBuffer]byte)
		full, err := copyWith(to, from, small[:], func(n int) bool { return n < smallBuffer })
		smallBuffers.Put(small)
		if !full {
			return err
		}
		large, left := largeBuffers.Get().(*[largeBuffer]byte), bulk
		again, err := copyWith(to, from, large[:], func(n int) bool { left -= n; return n >= smallBuffer && left > 0 })
		largeBuffers.Put(large)
		if again && left <= 0 {
			again, err = splice(to, from)
		}
		if !again {
			return err
		}
	}
}

// copyWith copies with buf while stay returns true for the size of a read. It reports false
// at from's end, and for an error.
func copyWith(to *counted, from io.Reader, buf []byte, stay func(int) bool) (more bool, err error) {
	for {
		n, rerr := from.Read(buf)
		if n > 0 {
			if werr := to.write(buf[:n]); werr != nil {
				return false, werr
			}
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return false, nil
		case rerr != nil:
			return false, rerr
		case !stay(n):
			return true, nil
		}
	}
}
