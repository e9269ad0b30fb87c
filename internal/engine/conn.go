package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// A conn is one end of a connection: an operations stream and a message stream in
// each direction, on one link.
//
// Closing is a handshake on the operations streams. The closing side sends Close with the number of
// message bytes it sent; the other end answers with its own Close once those bytes have all
// arrived. An end that has both sent and received Close ends its operations stream.
type conn struct {
	link *link
	ep   *endpoint
	id   wire.ConnID // this end's
	peer wire.ConnID // the other end's; set before any stream is opened
	in   *inbox
	out  *outbox

	otherEnd atomic.Pointer[conn] // the other end, if it is on this node
	released atomic.Bool          // release was called
	moved    atomic.Uint64        // large pieces that a stream has taken or brought

	invalidation invalidation // of the peer's windows, for applications that use them directly
	path         connPath
	rma          connRMA

	mu   connLock // guards core and ops; taken after endpoint.mu, never before
	core *core.Conn[memory]
	ops  opsStream

	first chan struct{} // closed at the connector's first frame, or when the conn ends
	once  sync.Once     // guards closing first
	ended chan struct{} // closed when the peer's operations stream has ended
	bye   closeHandshake

	// Guarded by mu.
	failed   bool                 // cut off: no handshake any more
	label    string               // its two ends, for events; "" until an application has it
	cause    string               // why the connection was lost; set once
	opsIn    transport.RecvStream // the peer's operations stream, once known
	messages transport.RecvStream // the peer's message stream, once known
	fill     payloadFill
}

// newConn returns an end that keeps window bytes of messages for its reader.
func newConn(l *link, ep *endpoint, id wire.ConnID, window int) *conn {
	c := &conn{link: l, ep: ep, id: id, first: make(chan struct{}), ended: make(chan struct{}), bye: closeHandshake{closing: make(chan struct{})}}
	c.core, c.mu.c = core.NewConn[memory](l.n.cfg.Limits), c
	c.ops.spawn, c.ops.begin = l.spawn, l.spawner(c.write)
	c.in = newInbox(window, c.grant, ep.changed)
	c.out = newOutbox(0, window, c.openMessages, ep.changed)
	c.out.begin = l.spawner(c.out.flushRest)
	c.out.broke = func() { l.spawn(func() { c.cutOff(nil) }) }
	return c
}

// A connLock guards the core of a connection. The core's effects are performed
// before another goroutine has the lock.
type connLock struct {
	sync.Mutex
	c *conn
}

func (l *connLock) Unlock() {
	l.perform()
	l.Mutex.Unlock()
}

// perform performs the core's effects. The caller holds the lock.
func (l *connLock) perform() {
	if e := l.c.core.Effects(); e != nil {
		l.do(e)
	}
}

func (l *connLock) do(e *core.Effects[memory]) {
	for _, s := range e.Stores {
		_ = store8(s.At, s.Value)
	}
	for _, w := range e.Woken {
		w.C <- struct{}{}
	}
	for _, m := range e.Freed {
		m.region.Release()
	}
	if e.Refund > 0 {
		l.c.link.n.budget.refund(e.Refund)
	}
	e.Clear()
}

// openOps opens this end's operations stream, which is busy until the peer has granted, or the
// grant is written.
func (c *conn) openOps(ctx context.Context) (transport.SendStream, error) {
	stream, err := c.link.sess.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.ops.stream, c.ops.busy = stream, true
	failed := c.failed
	c.mu.Unlock()
	if failed { // before it had the stream to cancel
		stream.Cancel()
		return nil, status.Reset
	}
	return stream, nil
}

// openMessages opens this end's message stream.
func (c *conn) openMessages(ctx context.Context) (transport.SendStream, error) {
	stream, err := c.link.sess.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := stream.Write(wire.Stream{Peer: c.peer}.AppendTo(nil)); err != nil {
		stream.Cancel()
		return nil, err
	}
	return stream, nil
}

// grant sends the peer its new limit.
func (c *conn) grant(limit uint64) {
	var b [wire.HeaderLen + 8]byte
	c.sendFrame(wire.Credit{Limit: limit}.AppendTo(b[:0]))
}

// readMessages is the reader of the peer's message stream, of which there is one.
func (c *conn) readMessages(r *wire.Reader, stream transport.RecvStream) error {
	c.mu.Lock()
	known := c.messages != nil
	if !known {
		c.messages = stream
	}
	failed := c.failed
	c.mu.Unlock()
	switch {
	case known:
		return fmt.Errorf("%w: a second message stream", status.Protocol)
	case failed:
		stream.Cancel()
		return nil
	}
	// The end of the stream before that of the messages loses some, unless this
	// end has closed and drops them anyway.
	if err := c.in.fill(r); err != nil && !c.in.done() {
		c.link.n.log.Debug().Err(err).Uint64("conn", uint64(c.id)).Stringer("peer", c.link.peer.Incarnation).
			Msg("message stream cut off")
		c.cutOff(err)
		if errors.Is(err, status.Protocol) {
			return err
		}
	}
	stream.Cancel()
	return nil
}

// readOps is the reader of the peer's operations stream.
func (c *conn) readOps(r *wire.Reader, stream transport.RecvStream) {
	h, body, err := r.Next()
	c.readOn(r, stream, h, body, err)
}

// readOn is readOps after a first Next.
func (c *conn) readOn(r *wire.Reader, stream transport.RecvStream, h wire.Header, body []byte, err error) {
	if err = c.serve(r, h, body, err); err != nil {
		c.link.n.log.Debug().Err(err).Uint64("conn", uint64(c.id)).Stringer("peer", c.link.peer.Incarnation).
			Msg("operations stream cut off")
		c.cutOff(err)
	}
	stream.Cancel() // whatever has come behind the end
	c.endRMAPaths()
	close(c.ended)
	c.once.Do(func() { close(c.first) })
	if !c.hasPath() { // else the link has to end it with itself, until the endpoint is closed
		c.link.forget(c)
	}
}

// serve applies frames until the stream ends. It returns nil if it ended in order.
func (c *conn) serve(r *wire.Reader, h wire.Header, body []byte, err error) error {
	for n := 1; ; n++ {
		if err != nil {
			if c.handshaken() {
				return nil // nothing was left to send
			}
			return err
		}
		c.once.Do(func() { close(c.first) })
		if err := c.apply(r, h, body); err != nil {
			return err
		}
		if r.Buffered() == 0 || n%kickAfter == 0 {
			c.kick(false)
			if err := c.hit(frameSteps[h.Type].answered); err != nil {
				return err
			}
		}
		h, body, err = r.Next()
	}
}

// kickAfter is how many frames at most are applied before the answers go out:
// answers gather while more frames are at hand, but not without bound.
const kickAfter = 64

func (c *conn) apply(r *wire.Reader, h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeCredit:
		return wire.Apply(h, body, wire.ParseCredit, c.onCredit)
	case wire.TypeClose:
		return wire.Apply(h, body, wire.ParseClose, c.onClose)
	case wire.TypeEnd:
		return wire.Apply(h, body, wire.ParseEnd, c.onEnd)
	case wire.TypePath:
		return wire.Apply(h, body, wire.ParsePath, c.onPath)
	case wire.TypeNoPath:
		return wire.Apply(h, body, wire.ParseNoPath, c.onNoPath)
	case wire.TypeRMAPath:
		return wire.Apply(h, body, wire.ParseRMAPath, c.onRMAPath)
	case wire.TypeNoRMAPath:
		return wire.Apply(h, body, wire.ParseNoRMAPath, c.onNoRMAPath)
	case wire.TypeRMAPassed:
		return wire.Apply(h, body, wire.ParseRMAPassed, c.onRMAPassed)
	case wire.TypeWrite, wire.TypeRead, wire.TypeSignal, wire.TypeAtomic:
		// The peer's operations are applied only while it is certain that
		// both ends are still the incarnations that the link joined.
		if err := c.link.awaitFresh(); err != nil {
			return err
		}
	}
	if err := c.hit(frameSteps[h.Type].arrived); err != nil {
		return err
	}
	if h.Type == wire.TypeUnregister {
		c.mu.Lock()
		c.rma.withdrawing = true
		c.mu.Unlock()
		c.invalidation.notify() // before the peer can have the answer
	}
	p, err := c.handle(h, body)
	if err != nil {
		return err
	}
	c.link.n.counters.overLink(h, body)
	if p == nil {
		return c.hit(frameSteps[h.Type].applied)
	}
	memErr, err := receive(r, p)
	if err == nil {
		err = c.hit(frameSteps[h.Type].applied)
	}
	c.payloadDone(p, first(err, memErr))
	return err
}

// onCredit handles the peer's new limit of this end's messages.
func (c *conn) onCredit(f wire.Credit) error {
	c.out.raise(f.Limit)
	return nil
}

// handle gives a frame of the peer to the core. A panic lets go of mu, as in
// payloadDone: the link must be able to end.
func (c *conn) handle(h wire.Header, body []byte) (*core.Payload[memory], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.core.Handle(h, body)
	c.rma.withdrawing = false
	if p != nil && p.Word != core.NoWord { // with mu held: nothing comes between
		c.core.PayloadDone(p, doWord(p))
		p = nil
	}
	c.fill.on = err == nil && p != nil && p.Kept()
	return p, err
}

func (c *conn) isFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// fail cuts the connection off for cause: whatever is under way ends with
// status.Reset when it returns, also if another call was first. When the application sees the end, no
// operation of the peer that came through its RMA path uses memory any more. After an orderly end it
// changes nothing that an application sees.
func (c *conn) fail(cause string) {
	c.invalidation.end()
	c.endPath()
	c.endRMAPaths()
	c.awaitApplied()
	c.mu.Lock()
	first := !c.failed
	if first {
		c.blame(cause)
		c.failed = true
		c.core.Fail(status.Reset)
		if (!c.core.Broken() || c.ops.writing) && c.ops.stream != nil {
			c.ops.stream.Cancel()
		}
		c.core.Break()
	}
	opsIn, messages := c.opsIn, c.messages
	c.mu.Unlock()
	if first {
		c.noteEnd()
	}
	lost := attach.Lost(cause)
	c.out.abort(lost)
	c.in.lose(lost)
	for _, stream := range []transport.RecvStream{opsIn, messages} {
		if stream != nil {
			stream.Cancel() // ends its reader
		}
	}
	c.ep.disconnected(c)
	c.once.Do(func() { close(c.first) })
}

// quiet waits until the writer of the operations stream of a failed conn uses no memory
// any more: then every operation has ended.
func (c *conn) quiet() {
	c.mu.Lock()
	if !c.ops.writing {
		c.mu.Unlock()
		return
	}
	if c.ops.idle == nil {
		c.ops.idle = make(chan struct{})
	}
	idle := c.ops.idle
	c.mu.Unlock()
	<-idle
}
