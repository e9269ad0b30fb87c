package path

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Options are how a path is used.
type Options struct {
	Client    bool // this end opens TLS
	Plaintext bool // no TLS; both ends must have the same setting
	Binding   Binding
	Key       *Key // of this process
	Peer      Hash // of the key of the process at the other end
	// Changed is called when the path may have become ready for something that it
	// was not ready for, from any goroutine; it must not wait.
	Changed func()
}

// A Conn is one end of a path. One goroutine at a time calls the methods that
// write (Begin, Write, TryWrite), and one those that read (Read, TryRead); the
// others may be called from any goroutine.
type Conn struct {
	sock    *socket
	tls     *tls.Conn // nil: plaintext
	changed func()

	// Reading. wait, mute and seen belong to the reader.
	seen     records     // of TLS
	wait     bool        // the socket's reads may wait
	mute     bool        // reads find nothing: only the bytes that TLS has buffered are returned
	ahead    [1]byte     // the first of the bytes that TLS has buffered, if hasAhead
	hasAhead atomic.Bool // written by the reader
	reads    watch       // of the ctx of a Read
	start    atomic.Int64
	awaiting chan struct{} // closed when start is known, or does not come

	endedWell bool // the direction has ended in order without one; written before awaiting is closed

	// Writing.
	flushing chan struct{} // one token: its holder writes pending to the socket
	resting  atomic.Bool   // flushRest runs
	broken   atomic.Pointer[error]
	stopped  atomic.Bool

	interrupted atomic.Bool
	mu          sync.Mutex
	pending     []byte // sealed bytes that are to be sent; guarded by mu
	sending     []byte // of the token's holder: those that are being sent; without TLS also a caller's
	spare       []byte // of the token's holder: the buffer that they are in, pending's next one

	work sync.WaitGroup // goroutines of this end
}

// unknown is a start that has not come.
const unknown = -1

// chunk is how many bytes are sealed and written at a time.
const chunk = 64 << 10

// A carrier is the socket as crypto/tls sees it. Its writes go to pending and
// never wait or fail, but in the handshake.
type carrier struct{ *Conn }

func (c carrier) Read(p []byte) (int, error) {
	if c.mute {
		return 0, errWait
	}
	// In the handshake TLS reads after it has written. Later pending holds the answer to a
	// KeyUpdate of the peer, or the rest of a write. If it cannot be sent any more, the next
	// write returns the error; the bytes that the peer has sent stay readable.
	c.nudge()
	n, err := c.sock.readSome(p, c.wait)
	c.seen.feed(p[:n])
	if err == io.EOF { // only the peer's close_notify is an end
		err = errTorn
	}
	return n, err
}

// errTorn is not io.ErrUnexpectedEOF, of which crypto/tls makes an end in order where it
// comes between two records.
var errTorn = errors.New("the path's socket has ended without the peer's end")

// pendingMost bounds the bytes that wait to be sent: a chunk in its records, and the
// answers that TLS itself writes to a peer that does not read.
const pendingMost = 2 * chunk

func (c carrier) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending)+len(p) > pendingMost {
		return 0, errPending
	}
	c.pending = append(c.pending, p...)
	return len(p), nil
}

var errPending = errors.New("the peer makes TLS answer, and does not read")

func (c carrier) Close() error                       { return nil }
func (c carrier) LocalAddr() net.Addr                { return c.sock.tcp.LocalAddr() }
func (c carrier) RemoteAddr() net.Addr               { return c.sock.tcp.RemoteAddr() }
func (c carrier) SetDeadline(t time.Time) error      { return nil }
func (c carrier) SetReadDeadline(t time.Time) error  { return nil }
func (c carrier) SetWriteDeadline(t time.Time) error { return nil }

// nudge begins to write the pending bytes, unless another goroutine has the token.
func (c *Conn) nudge() {
	select {
	case <-c.flushing:
	default:
		return
	}
	done, err := c.drain(false)
	if err == nil && !done {
		c.rest()
		return
	}
	c.flushing <- struct{}{}
}

// flushRest writes the pending bytes, and gives the token back.
func (c *Conn) flushRest() {
	_, _ = c.drain(true) // its error is the next write's
	c.resting.Store(false)
	c.flushing <- struct{}{}
	c.changed()
}

// rest begins flushRest. The caller holds the token, which flushRest gives back.
func (c *Conn) rest() {
	c.resting.Store(true)
	c.work.Go(c.flushRest)
}

// drain writes the pending bytes: all with wait, else as many as the socket takes. It
// reports whether nothing is left. The caller holds the token.
func (c *Conn) drain(wait bool) (done bool, err error) {
	for {
		if failed := c.broken.Load(); failed != nil {
			return false, *failed
		}
		if len(c.sending) == 0 {
			c.mu.Lock()
			c.sending, c.pending = c.pending, c.spare[:0]
			c.mu.Unlock()
			c.spare = c.sending
		}
		if len(c.sending) == 0 {
			return true, nil
		}
		n, err := c.sock.writeSome(c.sending, wait)
		c.sending = c.sending[n:]
		switch {
		case err == errWait:
			return false, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		case err != nil:
			c.fails(err)
			return false, err
		}
	}
}

// flush waits until the socket has taken everything that was written before.
func (c *Conn) flush(ctx context.Context) error {
	if err := c.takeToken(ctx); err != nil {
		return err
	}
	done, err := c.drain(false)
	if err == nil && !done {
		err = c.drainUntil(ctx)
	}
	if err != nil && ctx.Err() != nil && c.broken.Load() == nil {
		c.rest() // the accepted bytes are written without their caller
		return ctx.Err()
	}
	c.flushing <- struct{}{}
	return err
}

// takeToken waits for the token until ctx is done.
func (c *Conn) takeToken(ctx context.Context) error {
	select {
	case <-c.flushing:
		return nil
	default:
	}
	select {
	case <-c.flushing:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drainUntil is drain with wait until ctx is done. The caller holds the token.
func (c *Conn) drainUntil(ctx context.Context) error {
	if ctx.Done() == nil {
		_, err := c.drain(true)
		return err
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { c.sock.tcp.SetWriteDeadline(past); close(fired) })
	_, err := c.drain(true)
	if !stop() {
		<-fired
		c.restoreWriteDeadline()
	}
	return err
}

// restoreWriteDeadline clears the deadline that ended a wait, but keeps that of Stop.
func (c *Conn) restoreWriteDeadline() {
	c.sock.tcp.SetWriteDeadline(time.Time{})
	if c.stopped.Load() {
		c.sock.tcp.SetWriteDeadline(past)
	}
}

// Begin makes the path carry the writes from now on, sent bytes after the
// beginning of the connection. Nothing was written to the path before.
func (c *Conn) Begin(sent uint64) { c.seal(binary.BigEndian.AppendUint64(nil, sent)) }

// seal puts p into pending. It fails only where TLS has ended, as by a record that was
// not the peer's; then every write fails.
func (c *Conn) seal(p []byte) {
	var err error
	if c.tls == nil {
		_, err = carrier{c}.Write(p)
	} else {
		_, err = c.tls.Write(p)
	}
	if err != nil {
		c.fails(err)
	}
}

// fails notes why no write goes on. It is a function of its own so that err is memory only
// where there is one.
func (c *Conn) fails(err error) { c.broken.CompareAndSwap(nil, &err) }

// Write writes all of p. When ctx ends it, the n bytes that it returns are on their
// way all the same.
func (c *Conn) Write(ctx context.Context, p []byte) (n int, err error) {
	if c.tls == nil {
		return c.writePlain(ctx, p)
	}
	for n < len(p) {
		// The rest of earlier calls is written first, so that pending stays small.
		if err := c.flush(ctx); err != nil {
			return n, err
		}
		k := min(len(p)-n, chunk)
		c.seal(p[n : n+k])
		n += k
	}
	return n, c.flush(ctx)
}

// writePlain is Write without TLS: p goes to the socket as it is.
func (c *Conn) writePlain(ctx context.Context, p []byte) (n int, err error) {
	if err := c.flush(ctx); err != nil {
		return 0, err
	}
	if err := c.takeToken(ctx); err != nil {
		return 0, err
	}
	c.sending = p
	done, err := c.drain(false)
	if err == nil && !done {
		err = c.drainUntil(ctx)
	}
	n = len(p) - len(c.sending)
	c.sending = nil
	if err != nil && ctx.Err() != nil && c.broken.Load() == nil {
		err = ctx.Err()
	}
	c.flushing <- struct{}{}
	return n, err
}

// TryWrite writes as many bytes as there is room for, at most chunk.
func (c *Conn) TryWrite(p []byte) (n int, err error) {
	select {
	case <-c.flushing:
	default:
		return 0, c.failure()
	}
	done, err := c.drain(false)
	if err == nil && done {
		n = min(len(p), chunk)
		c.seal(p[:n])
		done, err = c.drain(false)
	}
	if err == nil && !done {
		c.rest()
		return n, nil
	}
	c.flushing <- struct{}{}
	return n, err
}

func (c *Conn) failure() error {
	if failed := c.broken.Load(); failed != nil {
		return *failed
	}
	return nil
}

// awaitStart waits for the beginning of the peer's direction.
func (c *Conn) awaitStart() {
	defer close(c.awaiting)
	var b [8]byte
	c.wait = true
	for n := 0; n < len(b); {
		k, err := c.readSealed(b[n:])
		if n += k; err != nil {
			c.endedWell = n == 0 && err == io.EOF
			return
		}
	}
	start := binary.BigEndian.Uint64(b[:])
	if start > 1<<62 {
		return // no peer counts so far
	}
	c.look()
	c.start.Store(int64(start))
	c.changed()
}

// Start returns at which byte of the connection the peer's direction begins; false
// while the peer has written nothing.
func (c *Conn) Start() (uint64, bool) {
	s := c.start.Load()
	return uint64(s), s != unknown
}

// Started is closed when Start is known, or will never be.
func (c *Conn) Started() <-chan struct{} { return c.awaiting }

// readSealed reads at least one byte that the peer has written.
func (c *Conn) readSealed(p []byte) (int, error) {
	if c.tls == nil {
		if c.mute {
			return 0, errWait
		}
		n, err := c.sock.readSome(p, c.wait)
		if err == io.EOF && !c.sock.peerEnded() {
			err = errTorn
		}
		return n, err
	}
	n, err := c.tls.Read(p)
	c.seen.taken += uint64(n)
	return n, err
}

// look finds out whether TLS has buffered more, without asking the socket: else
// nothing would report that it can be read.
func (c *Conn) look() {
	if c.tls == nil || !c.seen.more() {
		return
	}
	c.mute = true
	n, _ := c.readSealed(c.ahead[:]) // an error comes again with the next read
	c.mute = false
	if c.hasAhead.Store(n > 0); n == 0 {
		c.seen.taken = c.seen.plain
	}
}

// Read waits for at least one byte. It returns io.EOF when the peer's direction has
// ended in order. Start must be known.
func (c *Conn) Read(ctx context.Context, p []byte) (int, error) {
	c.reads.begin(ctx)
	n, err := c.readSome(p, true)
	if n == 0 && ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = ctx.Err()
	}
	c.reads.finish(ctx)
	return n, err
}

// setReadDeadline sets the deadline of reads, which has passed for good after Interrupt.
func (c *Conn) setReadDeadline(t time.Time) {
	c.sock.tcp.SetReadDeadline(t)
	if c.interrupted.Load() {
		c.sock.tcp.SetReadDeadline(past)
	}
}

// TryRead reads the bytes at hand, which may be none.
func (c *Conn) TryRead(p []byte) (int, error) {
	c.reads.end()
	n, err := c.readSome(p, false)
	if err == errWait {
		err = nil
	}
	return n, err
}

// Peek reports whether TryRead would find a byte now: the socket's bytes may be no
// message, as with TLS's own records. The error is the next read's, too.
func (c *Conn) Peek() (bool, error) {
	if c.hasAhead.Load() {
		return true, nil
	}
	c.reads.end()
	c.wait = false
	n, err := c.readSealed(c.ahead[:])
	c.hasAhead.Store(n > 0)
	if n > 0 || errors.Is(err, errWait) {
		err = nil
	}
	return n > 0, err
}

func (c *Conn) readSome(p []byte, wait bool) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.wait = wait
	if c.hasAhead.Load() {
		p[0], n = c.ahead[0], 1
		c.hasAhead.Store(false)
		c.wait, c.mute = false, true // more of the buffered bytes
	}
	k := 0
	if n < len(p) {
		k, err = c.readSealed(p[n:])
	}
	c.mute = false
	if n += k; n > 0 {
		err = nil
		c.look()
	}
	if errors.Is(err, errWait) {
		err = errWait
	}
	return n, err
}

// Ready reports whether a TryRead may find bytes, and a TryWrite room, and whether the
// socket has ended.
func (c *Conn) Ready() (in, out, ended bool) {
	in, out, ended = c.sock.ready()
	return in || c.hasAhead.Load(), out && !c.resting.Load(), ended
}

// Stop ends all writing, now and later. Bytes that have arrived can still be read.
func (c *Conn) Stop() {
	c.stopped.Store(true)
	c.sock.tcp.SetWriteDeadline(past)
}

// Interrupt ends the calls that wait, in both directions. Finish may follow.
func (c *Conn) Interrupt() {
	c.Stop()
	c.interrupted.Store(true)
	c.sock.tcp.SetReadDeadline(past)
}

// Shutdown ends the path for both ends at once.
func (c *Conn) Shutdown() {
	c.Stop()
	shutdown(c.sock.raw.Control, unix.SHUT_RDWR)
}

// EndedWell reports whether the peer's direction has ended in order before it began: the
// peer has sent nothing through the path.
func (c *Conn) EndedWell() bool {
	select {
	case <-c.awaiting:
		return c.endedWell
	default:
		return false
	}
}

// Finish ends this end's direction in order: the bytes written arrive, and then the
// end. It waits until the socket has taken it, or ctx is done.
func (c *Conn) Finish(ctx context.Context) error {
	rest, err := c.End()
	if err != nil || len(rest) == 0 {
		return err
	}
	return c.FinishRest(ctx, rest)
}

// FinishRest is Finish for the bytes that End has returned.
func (c *Conn) FinishRest(ctx context.Context, rest []byte) error {
	<-c.flushing // while errLeft stands no goroutine waits with it
	c.broken.CompareAndSwap(&errLeft, nil)
	c.sending = rest
	c.flushing <- struct{}{}
	if err := c.flush(ctx); err != nil {
		return err
	}
	return c.sock.tcp.CloseWrite()
}

// errLeft is why nothing is written behind the bytes that End has returned, not even by TLS.
var errLeft = errors.New("the path's direction has ended")

// End is Finish without a wait. It returns the bytes that the socket has no room for: they
// belong behind those that it has taken, and the socket's end behind them.
func (c *Conn) End() (rest []byte, err error) {
	c.Stop() // the goroutine that has the token gives it back
	<-c.flushing
	defer func() { c.flushing <- struct{}{} }()
	c.stopped.Store(false)
	c.sock.tcp.SetWriteDeadline(time.Time{})
	if c.tls != nil {
		_ = c.tls.CloseWrite() // it goes to pending
	}
	done, err := c.drain(false)
	switch {
	case err != nil:
		return nil, err
	case done:
		return nil, c.sock.tcp.CloseWrite()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rest = slices.Concat(c.sending, c.pending)
	c.sending, c.pending = nil, nil
	c.broken.CompareAndSwap(nil, &errLeft)
	return rest, nil
}

// RestMost bounds the bytes that End returns: two buffers of pending.
const RestMost = 2 * pendingMost

// FinishUnused is End for a path that this end has not begun: a peer that takes it for
// good learns that nothing came through it. The few bytes fit into the socket.
func (c *Conn) FinishUnused() {
	_, _ = c.End() // it fails where the path has ended otherwise
}

// Close closes the socket and waits for the goroutines that use it.
func (c *Conn) Close() error {
	c.Stop()
	c.sock.tcp.SetDeadline(past)
	c.work.Wait()
	c.reads.end()
	return c.sock.tcp.Close()
}

// Watcher returns a connection of its own on the path's socket, to wait for its
// readiness, which the caller closes.
func (c *Conn) Watcher() (*net.TCPConn, error) {
	fd, err := duplicate(c.sock.raw.Control)
	if err != nil {
		return nil, err
	}
	return tcpOf(os.NewFile(uintptr(fd), "path"))
}
