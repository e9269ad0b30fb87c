package server

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	// relaySize is how many bytes a relay moves at a time. It holds the buffer only while it moves
	// bytes.
	relaySize = 64 << 10
	// thriftySize replaces it if the connection itself buffers no more than that.
	thriftySize = 16 << 10
	// bulkSize replaces it after a move that filled the buffer: large messages are then half as
	// fast again.
	bulkSize = 256 << 10
	// bulkMost bounds the large buffers of the process: a relay keeps its buffer while the receiver
	// does not read.
	bulkMost = 64
)

var (
	thriftyBuffers = newBuffers(thriftySize)
	relayBuffers   = newBuffers(relaySize)
	bulkBuffers    = newBuffers(bulkSize)
	bulkTokens     = make(chan struct{}, bulkMost) // one for each large buffer in use
)

// buffers are pooled, all of one size.
type buffers struct{ sync.Pool }

func newBuffers(size int) *buffers {
	return &buffers{sync.Pool{New: func() any { b := make([]byte, size); return &b }}}
}

// A relayBuffer is a buffer in use.
type relayBuffer struct {
	bytes *[]byte
	from  *buffers
}

func (p *buffers) take() relayBuffer { return relayBuffer{p.Get().(*[]byte), p} }

// takeBuffer returns a buffer of at most most bytes, or the smallest: a large one if large is set
// and one is left.
func takeBuffer(most int, large bool) relayBuffer {
	if most < relaySize {
		return thriftyBuffers.take()
	}
	if large && most >= bulkSize {
		select {
		case bulkTokens <- struct{}{}:
			return bulkBuffers.take()
		default:
		}
	}
	return relayBuffers.take()
}

// put returns the buffer to its pool.
func (b relayBuffer) put() {
	b.from.Put(b.bytes)
	if b.from == bulkBuffers {
		<-bulkTokens
	}
}

// A relay relays the message bytes of one connection between its endpoint and the application's data
// socket, and owns both. A direction never waits for the other.
//
// It ends when the application has closed its endpoint or its data socket, or its session has
// ended: it delivers earlier bytes, then closes or aborts the endpoint. When the peer has closed,
// it only stops relaying: the application reads the last bytes, and then the end.
type relay struct {
	ep   attach.NodeEndpoint
	conn *net.UnixConn
	hup  func()              // sends the application the endpoint's poll events
	safe func(func()) func() // wraps a goroutine's function so that its panic ends the session
	most int                 // bytes of its buffers

	closec  chan struct{} // closed by close
	how     finish        // of the endpoint; set before closec is closed
	ending  atomic.Uint32 // an ending, set before the application can see the end
	half    atomic.Bool   // the end of the application's bytes is a half-close, not a close
	cut     atomic.Bool   // ended was called: this side shut down the socket
	sending atomic.Bool   // waits for the peer to read
	stuck   chan struct{} // one token if sending is set after close
	drained chan struct{} // closed when the application can read every byte, and then the end
	writing atomic.Bool   // waits for the application to read
	full    chan struct{} // one token when writing becomes set
	done    chan struct{} // closed when the endpoint and the socket are closed

	bulkOut bool // owned by toNode: the last read filled a small buffer
	bulkIn  bool // owned by toApp: the last bytes from the peer did
}

// newRelay returns a relay of ep and conn. It calls hup when the connection has ended, possibly more
// than once: after the last byte, and also before it if the application leaves no room for the
// pending bytes.
func newRelay(ep attach.NodeEndpoint, conn *net.UnixConn, hup func(), safe func(func()) func()) *relay {
	most := bulkSize
	if window := ep.Window(); window > 0 {
		if most = min(most, window); most <= relaySize {
			_ = conn.SetWriteBuffer(most / 2) // the kernel doubles it for its own overhead
		}
	}
	return &relay{
		ep: ep, conn: conn, hup: hup, safe: safe,
		most:   most,
		closec: make(chan struct{}),
		stuck:  make(chan struct{}, 1),

		drained: make(chan struct{}),
		full:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
}

// run relays bytes until the connection is closed; it ends at once when ctx is done.
func (p *relay) run(ctx context.Context) {
	defer close(p.done)
	stop := context.AfterFunc(ctx, func() { p.conn.SetDeadline(past) })
	defer stop()
	var down sync.WaitGroup
	down.Go(p.safe(func() { p.toApp(ctx) }))
	rest := p.toNode(ctx)
	p.await(ctx, rest == closedByApp)
	p.finish(ctx, rest) // also ends toApp's Recv
	p.conn.SetDeadline(past)
	down.Wait()
	p.conn.Close()
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// closeGrace is how long an application that has closed its data socket may take to send CLOSE. A dying
// process closes its data socket too; its session ends within this time.
const closeGrace = time.Second

// await returns when the endpoint is to be ended: its owner has called close, or has closed the
// data socket and sent nothing.
func (p *relay) await(ctx context.Context, handed bool) {
	var silent <-chan time.Time
	if handed {
		t := time.NewTimer(closeGrace)
		defer t.Stop()
		silent = t.C
	}
	select {
	case <-p.closec:
	case <-silent:
	case <-ctx.Done():
	}
}

func (p *relay) halfClose()               { p.half.Store(true) }
func (p *relay) peerEnding() proto.Ending { return proto.Ending(p.ending.Load()) }

func (p *relay) settled() (done, stuck <-chan struct{}) { return p.done, p.stuck }

// finish ends the endpoint. If the node stops, bytes that it has not accepted from the application
// are lost: then finish aborts.
func (p *relay) finish(ctx context.Context, rest rest) {
	switch {
	case ctx.Err() != nil && (rest == lostBytes || !p.closing()):
		p.ep.Abort(attach.CauseStopped(p.ep.LocalAddr().Node))
	case p.closing():
		p.how.of(p.ep)
	default:
		p.ep.Close()
	}
}

// A rest is the state of the application's bytes at the end of toNode.
type rest uint8

const (
	nothingLeft rest = iota
	lostBytes        // the endpoint has not accepted all: the peer or the node is gone
	closedByApp      // no bytes left, and the application has closed its data socket
)

// close makes the relay deliver the bytes that the application has written so far, and end. It is
// called once.
func (p *relay) close(how finish) {
	p.how = how
	close(p.closec)
	p.conn.SetDeadline(past)
	if p.sending.Load() { // close and send: at least one of them sees the other
		wait.Notify(p.stuck)
	}
}

func (p *relay) closing() bool { return wait.Over(p.closec) }

// ended waits, after the connection has ended, until the application can see that: at its data
// socket, or by a notification if it has no room for pending bytes. It gives up when ctx is done.
// Only one goroutine may wait at a time.
func (p *relay) ended(ctx context.Context) {
	p.cut.Store(true)
	p.conn.CloseRead() // the application's next write fails
	select {
	case <-p.full: // left over from an earlier time
	default:
	}
	if p.writing.Load() { // ended and write: at least one of them sees the other
		p.hup()
		return
	}
	select {
	case <-p.drained:
	case <-p.full:
		p.hup()
	case <-ctx.Done():
	}
}

// toNode relays the application's bytes until it writes no more or the peer is gone.
func (p *relay) toNode(ctx context.Context) rest {
	for {
		closing := p.closing() // before reading, so that all earlier bytes are read
		err := p.forward(ctx)
		switch {
		case err == nil:
		case errors.Is(err, status.Again):
			if closing || ctx.Err() != nil {
				return p.takeRest(ctx)
			}
			shm.WaitRead(p.conn) // an error is a close's deadline, or recurs at the next read
		case errors.Is(err, io.EOF):
			if e := proto.Ending(p.ending.Load()); e != 0 && e != proto.EndedShut || p.cut.Load() {
				return nothingLeft // this side shut down the socket
			}
			if p.half.Load() {
				if p.ep.CloseWrite() != nil {
					return lostBytes // the connection has ended
				}
				return nothingLeft
			}
			return closedByApp
		default:
			p.conn.CloseRead() // the application's next write fails
			p.discard()        // and wakes a blocked write
			return lostBytes
		}
	}
}

// takeRest ends the application's writing and delivers the bytes that it has written until then.
// Whichever side ends the connection, bytes of an accepted write arrive, and a later write fails.
func (p *relay) takeRest(ctx context.Context) rest {
	p.conn.CloseRead() // the application's next write fails
	for {
		if err := p.forward(ctx); err != nil {
			if errors.Is(err, status.Again) || errors.Is(err, io.EOF) {
				return nothingLeft
			}
			return lostBytes
		}
	}
}

// discard drops the application's bytes for a peer that is gone. The shutdown alone does not wake a
// write that waits for room.
func (p *relay) discard() {
	b := relayBuffers.take()
	defer b.put()
	for {
		if _, err := shm.TryRead(p.conn, *b.bytes); err != nil {
			return // no bytes are left, or the application is gone
		}
	}
}

// forward sends available bytes of the application. If there are none it returns status.Again or
// io.EOF; other errors are Send's.
func (p *relay) forward(ctx context.Context) error {
	b := takeBuffer(p.most, p.bulkOut)
	defer b.put()
	buf := *b.bytes
	n, err := shm.TryRead(p.conn, buf)
	p.bulkOut = n >= relaySize
	switch {
	case err == nil:
		return p.send(ctx, buf[:n])
	case errors.Is(err, status.Again):
		return status.Again
	default: // the application died with bytes unread, or both ends are shut down
		return io.EOF
	}
}

// send sends all of b.
func (p *relay) send(ctx context.Context, b []byte) error {
	n, err := p.ep.TrySend(b)
	if errors.Is(err, status.Again) {
		err = nil
	}
	if err != nil || n == len(b) {
		return err
	}
	p.sending.Store(true)
	if p.closing() {
		wait.Notify(p.stuck)
	}
	_, err = p.ep.Send(ctx, b[n:])
	p.sending.Store(false)
	return err
}

// toApp relays the peer's bytes, until their end or the endpoint's close.
func (p *relay) toApp(ctx context.Context) {
	var err error
	for err == nil {
		err = p.deliver(ctx)
	}
	if errors.Is(err, attach.ErrPeerShut) {
		p.ending.Store(uint32(proto.EndedShut))
		p.conn.CloseWrite()
		err = p.outlive(ctx)
	}
	switch {
	case errors.Is(err, attach.ErrPeerShut): // the peer's bytes are complete
	case errors.Is(err, io.EOF):
		p.ending.Store(uint32(proto.EndedClosed))
	default:
		p.ending.Store(uint32(proto.EndedLost))
	}
	p.conn.CloseRead()  // first: an application that has seen the end cannot write any more
	p.conn.CloseWrite() // after the last byte, the end
	close(p.drained)
	if !p.closing() && ctx.Err() == nil {
		p.hup()
	}
	p.drop(ctx)
}

// outlive waits, after the end of the peer's bytes, until the connection has ended too, and returns
// the error of a Recv then.
func (p *relay) outlive(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	stop := p.ep.Notify(changed)
	defer stop()
	for p.ep.Ready()&(attach.PollHup|attach.PollNval) == 0 && ctx.Err() == nil {
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	_, err := p.ep.TryRecv(make([]byte, 1))
	return err
}

// drop discards the peer's bytes until the connection has ended. The application reads no more, but
// a peer that waits for room does not read either: without drop the application's bytes would never
// arrive.
func (p *relay) drop(ctx context.Context) {
	b := relayBuffers.take()
	defer b.put()
	for {
		if _, err := p.ep.Recv(ctx, *b.bytes); err != nil {
			return
		}
	}
}

// deliver waits for bytes of the peer and writes them. It waits with a small buffer, so that idle
// connections cost little.
func (p *relay) deliver(ctx context.Context) error {
	var first [256]byte
	n, err := p.ep.Recv(ctx, first[:])
	if err != nil {
		return err
	}
	if n < len(first) {
		return p.write(first[:n])
	}
	b := takeBuffer(p.most, p.bulkIn)
	defer b.put()
	buf := *b.bytes
	copy(buf, first[:n])
	more, err := p.ep.TryRecv(buf[n:])
	p.bulkIn = n+more >= relaySize
	if werr := p.write(buf[:n+more]); werr != nil {
		return werr
	}
	return err
}

// write writes all of b. While the application leaves no room for it, it sees no end at its data
// socket, so a notification reports the end of the connection.
func (p *relay) write(b []byte) error {
	n, err := shm.TryWrite(p.conn, b)
	if n == len(b) || (err != nil && !errors.Is(err, status.Again)) {
		return err
	}
	p.writing.Store(true)
	defer p.writing.Store(false)
	wait.Notify(p.full)
	stop := p.notifyEnd()
	defer stop()
	_, err = p.conn.Write(b[n:])
	return err
}

// notifyEnd notifies the application when the connection ends, until stop returns.
func (p *relay) notifyEnd() (stop func()) {
	changed, quit := make(chan struct{}, 1), make(chan struct{})
	unnotify := p.ep.Notify(changed)
	var wg sync.WaitGroup
	wg.Go(p.safe(func() {
		for p.ep.Ready()&attach.PollHup == 0 {
			select {
			case <-changed:
			case <-quit:
				return
			}
		}
		p.hup()
	}))
	return func() {
		unnotify()
		close(quit)
		wg.Wait()
	}
}
