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
)

const (
	// pumpSize is how many bytes a pump moves at a time, in a buffer that it has
	// only while it moves any.
	pumpSize = 64 << 10
	// thriftySize is how many it moves where the connection itself keeps no more.
	thriftySize = 16 << 10
	// bulkSize is how many it moves after as many as that: a stream of large
	// messages is half as fast again.
	bulkSize = 256 << 10
	// bulkMost bounds the large buffers of the process: a pump keeps its buffer
	// while nobody takes the bytes.
	bulkMost = 64
)

var (
	thriftyBuffers = sync.Pool{New: func() any { return new([thriftySize]byte) }}
	pumpBuffers    = sync.Pool{New: func() any { return new([pumpSize]byte) }}
	bulkBuffers    = sync.Pool{New: func() any { return new([bulkSize]byte) }}
	bulkTokens     = make(chan struct{}, bulkMost) // one for each large buffer in use
)

// A pumpBuffer is a buffer in use: one of the three.
type pumpBuffer struct {
	thrifty *[thriftySize]byte
	small   *[pumpSize]byte
	large   *[bulkSize]byte
}

// takeBuffer returns a buffer of most bytes at most, but for the smallest: a large one
// if it is wanted and one is left.
func takeBuffer(most int, large bool) pumpBuffer {
	if most < pumpSize {
		return pumpBuffer{thrifty: thriftyBuffers.Get().(*[thriftySize]byte)}
	}
	if large && most >= bulkSize {
		select {
		case bulkTokens <- struct{}{}:
			return pumpBuffer{large: bulkBuffers.Get().(*[bulkSize]byte)}
		default:
		}
	}
	return pumpBuffer{small: pumpBuffers.Get().(*[pumpSize]byte)}
}

func (b pumpBuffer) bytes() []byte {
	switch {
	case b.thrifty != nil:
		return b.thrifty[:]
	case b.large != nil:
		return b.large[:]
	}
	return b.small[:]
}

// put gives the buffer back.
func (b pumpBuffer) put() {
	switch {
	case b.thrifty != nil:
		thriftyBuffers.Put(b.thrifty)
	case b.large != nil:
		bulkBuffers.Put(b.large)
		<-bulkTokens
	default:
		pumpBuffers.Put(b.small)
	}
}

// A pump moves the message bytes of one connection between its endpoint and
// the application's data socket, and owns both. A direction waits only for
// itself.
//
// It ends when the application has closed its endpoint or its data socket, or its
// session has ended: what was written before is delivered, then the endpoint is closed
// or aborted. When the peer has closed, it only stops moving: the application reads
// the last bytes, and then the end.
type pump struct {
	ep   attach.Endpoint
	conn *net.UnixConn
	tell func()              // tells the application the endpoint's poll events
	safe func(func()) func() // makes what a goroutine runs end the session if it panics
	most int                 // bytes of its buffers

	closec  chan struct{} // closed by close
	how     finish        // of the endpoint; set before closec is closed
	ending  atomic.Uint32 // an ending, set before the application can see the end
	half    atomic.Bool   // the end of the application's writing is no close
	cut     atomic.Bool   // ended was called: the socket was shut down from here
	sending atomic.Bool   // waits for the peer to take bytes
	stuck   chan struct{} // one token when it does so after close
	drained chan struct{} // closed when the application can read everything, and then the end
	writing atomic.Bool   // waits for the application to read
	full    chan struct{} // one token when it began to
	done    chan struct{} // closed when the endpoint and the socket are closed

	bulkOut bool // toNode's: the last read filled a small buffer
	bulkIn  bool // toApp's: the last bytes from the peer did
}

// newPump returns a pump of ep and conn. It calls hup when the connection has
// ended, perhaps more than once: after the last byte, and before it when the
// application leaves no room for the bytes that wait.
func newPump(ep attach.Endpoint, conn *net.UnixConn, hup func(), safe func(func()) func()) *pump {
	most := bulkSize
	if w, ok := ep.(attach.WindowedEndpoint); ok && w.Window() > 0 {
		if most = min(most, w.Window()); most <= pumpSize {
			_ = conn.SetWriteBuffer(most / 2) // the kernel takes it twice, for its own needs
		}
	}
	return &pump{
		ep: ep, conn: conn, tell: hup, safe: safe,
		most:   most,
		closec: make(chan struct{}),
		stuck:  make(chan struct{}, 1),

		drained: make(chan struct{}),
		full:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
}

// run moves bytes until the connection is closed, at once when ctx is done.
func (p *pump) run(ctx context.Context) {
	defer close(p.done)
	stop := context.AfterFunc(ctx, func() { p.conn.SetDeadline(past) })
	defer stop()
	var down sync.WaitGroup
	down.Go(p.safe(func() { p.toApp(ctx) }))
	rest := p.toNode(ctx)
	p.await(ctx, rest == closedByHand)
	p.finish(ctx, rest) // also ends toApp's Recv
	p.conn.SetDeadline(past)
	down.Wait()
	p.conn.Close()
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// byHand is how long an application that has closed its data socket may take to say
// CLOSE. That of a process that dies is closed too, and its session ends in this time.
const byHand = time.Second

// await returns when the endpoint is to be ended: its owner says so, or has closed the
// data socket by hand and says nothing.
func (p *pump) await(ctx context.Context, handed bool) {
	var silent <-chan time.Time
	if handed {
		t := time.NewTimer(byHand)
		defer t.Stop()
		silent = t.C
	}
	select {
	case <-p.closec:
	case <-silent:
	case <-ctx.Done():
	}
}

func (p *pump) shutOut()            { p.half.Store(true) }
func (p *pump) heard() proto.Ending { return proto.Ending(p.ending.Load()) }

func (p *pump) settled() (done, stuck <-chan struct{}) { return p.done, p.stuck }

// finish ends the endpoint. With the node, what it has not taken of the application is
// lost, and that is no good end.
func (p *pump) finish(ctx context.Context, rest rest) {
	switch {
	case ctx.Err() != nil && (rest == lostBytes || !p.closing()):
		p.ep.Abort(attach.CauseStopped(p.ep.LocalAddr().Node))
	case p.closing():
		p.how.of(p.ep)
	default:
		p.ep.Close()
	}
}

// A rest is what is left of an application's writing.
type rest uint8

const (
	nothingLeft  rest = iota
	lostBytes         // the endpoint has not taken all: the peer or the node is gone
	closedByHand      // nothing, and the application has closed its data socket
)

// close makes the pump deliver what the application has written so far, and
// end. It is called once.
func (p *pump) close(how finish) {
	p.how = how
	close(p.closec)
	p.conn.SetDeadline(past)
	if p.sending.Load() { // either this or send sees the other
		tell(p.stuck)
	}
}

func (p *pump) closing() bool {
	select {
	case <-p.closec:
		return true
	default:
		return false
	}
}

// tell puts a token into c, which holds one.
func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ended waits, after the connection has ended, until the application can see
// that: at its data socket, or, when bytes wait that it has no room for, by being
// told. It gives up when ctx is done. Only one goroutine may wait at a time.
func (p *pump) ended(ctx context.Context) {
	p.cut.Store(true)
	p.conn.CloseRead() // the application's next write fails
	select {
	case <-p.full: // of an earlier time
	default:
	}
	if p.writing.Load() { // either this or write sees the other
		p.tell()
		return
	}
	select {
	case <-p.drained:
	case <-p.full:
		p.tell()
	case <-ctx.Done():
	}
}

// toNode moves what the application writes, until it writes no more or the peer is
// gone.
func (p *pump) toNode(ctx context.Context) rest {
	for {
		closing := p.closing() // before reading: all that was written by then counts
		err := p.forward(ctx)
		switch {
		case err == nil:
		case errors.Is(err, status.Again):
			if closing || ctx.Err() != nil {
				return p.takeRest(ctx)
			}
			shm.WaitRead(p.conn) // its errors are a close's deadline, or the next read's
		case errors.Is(err, io.EOF):
			if e := proto.Ending(p.ending.Load()); e != 0 && e != proto.EndedShut || p.cut.Load() {
				return nothingLeft // the socket was shut down here
			}
			if p.half.Load() {
				if p.ep.CloseWrite() != nil {
					return lostBytes // the connection has ended
				}
				return nothingLeft
			}
			return closedByHand
		default:
			p.conn.CloseRead() // the application's next write fails
			p.discard()        // and one that is blocked sees it
			return lostBytes
		}
	}
}

// takeRest ends the application's writing and delivers what it has written up
// to then. Whichever side ends the connection, a write that was accepted arrives, and
// one that comes too late fails.
func (p *pump) takeRest(ctx context.Context) rest {
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

// discard drops what the application has written for a peer that is gone. A
// write that waits for room is not woken by the shutdown alone.
func (p *pump) discard() {
	buf := pumpBuffers.Get().(*[pumpSize]byte)
	defer pumpBuffers.Put(buf)
	for {
		if _, err := shm.TryRead(p.conn, buf[:]); err != nil {
			return // nothing is left, or nobody is there
		}
	}
}

// forward sends what the application has written. Without that it returns
// status.Again or io.EOF; other errors are Send's.
func (p *pump) forward(ctx context.Context) error {
	b := takeBuffer(p.most, p.bulkOut)
	defer b.put()
	buf := b.bytes()
	n, err := shm.TryRead(p.conn, buf)
	p.bulkOut = n >= pumpSize
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
func (p *pump) send(ctx context.Context, b []byte) error {
	n, err := p.ep.TrySend(b)
	if errors.Is(err, status.Again) {
		err = nil
	}
	if err != nil || n == len(b) {
		return err
	}
	p.sending.Store(true)
	if p.closing() {
		tell(p.stuck)
	}
	_, err = p.ep.Send(ctx, b[n:])
	p.sending.Store(false)
	return err
}

// toApp moves what the peer sends, until its end or the endpoint's close.
func (p *pump) toApp(ctx context.Context) {
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
	case errors.Is(err, attach.ErrPeerShut): // what it sent was whole
	case errors.Is(err, io.EOF):
		p.ending.Store(uint32(proto.EndedClosed))
	default:
		p.ending.Store(uint32(proto.EndedLost))
	}
	p.conn.CloseRead()  // first: who has seen the end cannot write any more
	p.conn.CloseWrite() // after the last byte, the end
	close(p.drained)
	if !p.closing() && ctx.Err() == nil {
		p.tell()
	}
	p.drop(ctx)
}

// outlive waits, when the peer sends no more, until the connection has ended too, and
// returns what a Recv does then.
func (p *pump) outlive(ctx context.Context) error {
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

// drop takes what the peer sends until the connection has ended. The
// application reads no more, but a peer that waits for room does not read
// either, and then what the application has sent would never arrive.
func (p *pump) drop(ctx context.Context) {
	buf := pumpBuffers.Get().(*[pumpSize]byte)
	defer pumpBuffers.Put(buf)
	for {
		if _, err := p.ep.Recv(ctx, buf[:]); err != nil {
			return
		}
	}
}

// deliver waits for bytes of the peer and writes them. It waits with a small
// buffer, so that idle connections cost little.
func (p *pump) deliver(ctx context.Context) error {
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
	buf := b.bytes()
	copy(buf, first[:n])
	more, err := p.ep.TryRecv(buf[n:])
	p.bulkIn = n+more >= pumpSize
	if werr := p.write(buf[:n+more]); werr != nil {
		return werr
	}
	return err
}

// write writes all of b. While the application leaves no room for it, it sees no
// end at its data socket, so it is told when the connection ends.
func (p *pump) write(b []byte) error {
	n, err := shm.TryWrite(p.conn, b)
	if n == len(b) || (err != nil && !errors.Is(err, status.Again)) {
		return err
	}
	p.writing.Store(true)
	defer p.writing.Store(false)
	tell(p.full)
	stop := p.tellEnd()
	defer stop()
	_, err = p.conn.Write(b[n:])
	return err
}

// tellEnd tells the application when the connection ends, until stop returns.
func (p *pump) tellEnd() (stop func()) {
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
		p.tell()
	}))
	return func() {
		unnotify()
		close(quit)
		wg.Wait()
	}
}
