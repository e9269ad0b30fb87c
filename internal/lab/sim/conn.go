package sim

import (
	"encoding/binary"
	"slices"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// A memory is a buffer that an application registers.
type memory struct {
	bytes []byte
	freed bool // the node has given it back

	stored func() // called when a word was stored; nil: no caller watches it
}

type span = rma.Span[*memory]

// A conn is one end of a connection: an operations stream and a message stream in each
// direction, on one link. It follows engine's conn. A wait for the peer is a function
// that is called later.
type conn struct {
	link *link
	ep   *endpoint
	id   wire.ConnID // this end's
	peer wire.ConnID // the other end's

	core  *core.Conn[*memory]
	calls []*pending // calls that wait for the core, in order

	opsOut opsWriter
	opsIn  opsReader

	confirmed bool // something came from the peer: it knows of the connection
	onFirst   func()

	// Messages.
	inflow   core.Inflow
	inbox    []byte
	messages *frames // the peer's message stream
	// streamOver: it has ended, in order
	streamOver bool
	readers    []func() bool
	out        outbox

	closing   bool // this end closes
	closeSent bool
	closeRecv bool
	failed    bool
}

// An opsWriter is the operations stream to the peer, and the segment that is being written
// to it. Its conn owns it.
type opsWriter struct {
	stream  *stream
	busy    bool // the stream is not to be written yet: the grant comes first
	writing bool // segment is being written
	segment core.Segment[*memory]
	moved   int64 // bytes of its payload that the stream has
}

// An opsReader is the operations stream from the peer, and the frame that is being read from
// it. Its conn owns it.
type opsReader struct {
	frames  *frames
	held    bool // head and body are the next frame, which waits to be served
	head    wire.Header
	body    []byte
	ended   bool // the stream has ended
	onEnded func()
}

// A pending is a call that waits for the core.
type pending struct {
	core.Waiter
	quits bool // a close of this end ends it
	done  func(code status.Code, value uint64)
}

func newConn(l *link, ep *endpoint, id wire.ConnID) *conn {
	c := &conn{link: l, ep: ep, id: id, inflow: core.NewInflow(messageWindow)}
	c.core = core.NewConn[*memory](core.Limits{})
	c.out.c = c
	return c
}

// soon runs f after the current step of this process.
func (c *conn) soon(f func()) { c.link.n.p.hand(f) }

func (c *conn) step(s failpoint.Step) bool { return c.link.n.p.step(s) }

// perform performs the core's effects.
func (c *conn) perform() {
	e := c.core.Effects()
	if e == nil {
		return
	}
	for _, s := range e.Stores {
		c.storeWord(s.At, s.Value)
	}
	for _, w := range e.Woken {
		c.wake(w)
	}
	for _, m := range e.Freed {
		if m.freed {
			c.link.n.w.watch.bug("memory of a window is freed twice")
		}
		m.freed = true
	}
	e.Clear()
}

func (c *conn) wake(w *core.Waiter) {
	i := slices.IndexFunc(c.calls, func(x *pending) bool { return &x.Waiter == w })
	if i < 0 {
		c.link.n.w.watch.bug("a waiter is woken without a call")
		return
	}
	x := c.calls[i]
	c.calls = without(c.calls, x)
	code, value := w.Code, w.Value
	c.soon(func() { x.done(code, value) })
}

func (c *conn) storeWord(at span, v uint64) {
	binary.LittleEndian.PutUint64(c.bytes(at), v)
	if f := at.Window.Mem.stored; f != nil {
		f()
	}
}

// doWord performs the operation of p on a word.
func (c *conn) doWord(p *core.Payload[*memory]) {
	if p.Word == core.StoreWord {
		c.storeWord(p.Spans[0], p.Value)
		return
	}
	var word [8]byte
	b := c.bytes(p.Spans[0])
	copy(word[:], b)
	p.Value = binary.LittleEndian.Uint64(word[:])
	binary.LittleEndian.PutUint64(word[:], rma.Apply(p.Value, p.Atomic))
	copy(b, word[:p.Atomic.Width])
}

// bytes returns the memory of a span, which must not be given back yet.
func (c *conn) bytes(sp span) []byte {
	m := sp.Window.Mem
	if m.freed {
		c.link.n.w.watch.bug("memory of a window is used after it was given back")
	}
	return m.bytes[sp.Offset : sp.Offset+sp.Length]
}

// kick performs the core's effects, and writes queued frames until the stream is full.
func (c *conn) kick() {
	c.perform()
	if c.core.Fill() > 1 {
		c.fail(status.Reset) // the peer asks and does not read the answers
		return
	}
	if c.opsOut.busy || c.opsOut.stream == nil {
		return
	}
	for c.opsOut.writing || len(c.core.Queued()) > 0 {
		if !c.opsOut.writing {
			c.opsOut.segment, c.opsOut.moved, c.opsOut.writing = c.core.Next(), 0, true
		}
		if !c.writePiece() {
			return
		}
	}
	if c.core.StreamEnds() {
		c.opsOut.stream.close()
	}
}

// pieceMax is the longest payload of one frame, and messageMax the longest piece
// of a message. They are shorter than the wire's, so that operations are cut in
// more places.
const (
	pieceMax   = 768
	messageMax = 4 << 10
)

// writePiece hands one frame with its payload, or a packet of frames, to the stream.
func (c *conn) writePiece() bool {
	s := c.opsOut.segment
	spans, plain, length := s.Payload()
	n := min(length-c.opsOut.moved, pieceMax)
	var b []byte
	if s.Frames != nil {
		length = int64(len(s.Frames))
		n = min(length-c.opsOut.moved, packetLen)
		b = s.Frames[c.opsOut.moved : c.opsOut.moved+n : c.opsOut.moved+n]
	} else {
		b = s.AppendHead(make([]byte, 0, wire.HeaderLen+24+n), c.opsOut.moved, n)
		if len(spans) == 0 {
			b = append(b, plain[c.opsOut.moved:c.opsOut.moved+n]...)
		} else {
			for _, sp := range core.Cut(nil, spans, c.opsOut.moved, n) {
				b = append(b, c.bytes(sp)...)
			}
		}
	}
	if !c.opsOut.stream.write(b) {
		return false
	}
	if c.opsOut.moved += n; c.opsOut.moved == length {
		s.Frames = nil // the network has them
		c.written(s)
	}
	return true
}

// written marks a segment as written, or as given up.
func (c *conn) written(s core.Segment[*memory]) {
	c.opsOut.segment, c.opsOut.writing = core.Segment[*memory]{}, false
	c.core.Written(s, status.OK)
	c.perform()
}

// readOps takes the peer's operations stream.
func (c *conn) readOps(r *frames) {
	c.opsIn.frames = r
	r.stream.more = c.pump
	c.pump()
}

// pump applies the operations that have arrived on the operations stream, as far as it may.
func (c *conn) pump() {
	if c.opsIn.ended || c.opsIn.frames == nil || c.link.n.p.dead {
		return
	}
	for {
		switch err := c.advance(); {
		case c.link.n.p.dead:
			return
		case err == errNothing:
			c.kick()
			return
		case err != nil:
			c.opsEnded(err)
			return
		}
	}
}

// advance applies one frame. The error is errNothing if there is nothing to apply now.
func (c *conn) advance() error {
	in := &c.opsIn
	if !in.held {
		h, body, err := in.frames.Next()
		if err != nil {
			return err
		}
		in.head, in.body = h, body
		c.first()
	}
	in.held = false
	switch in.head.Type {
	case wire.TypeCredit:
		f, err := wire.ParseCredit(in.head.Flags, in.body)
		if err == nil {
			c.out.raise(f.Limit)
		}
		return err
	case wire.TypeClose:
		f, err := wire.ParseClose(in.head.Flags, in.body)
		if err != nil {
			return err
		}
		return c.onClose(f)
	case wire.TypeWrite, wire.TypeRead, wire.TypeSignal, wire.TypeAtomic:
		// The peer's operations are applied only while it is certain that both
		// ends are still the incarnations that the link joined.
		if !c.failed && !c.link.fresh(c) {
			in.held = true
			return errNothing
		}
		if !c.failed {
			c.link.n.w.watch.applies(c.link)
		}
	}
	return c.apply()
}

// apply gives a frame to the core, and does with its payload what the core asks for.
func (c *conn) apply() error {
	steps := &frameSteps[c.opsIn.head.Type]
	if !c.step(steps.arrived) {
		return errNothing
	}
	p, err := c.core.Handle(c.opsIn.head, c.opsIn.body)
	if err != nil {
		return err
	}
	c.perform()
	if p != nil {
		if err := c.land(p); err != nil {
			c.core.PayloadDone(p, status.Reset)
			c.perform()
			return err
		}
	}
	if !c.step(steps.applied) {
		return errNothing
	}
	if p != nil {
		c.core.PayloadDone(p, nil)
	}
	c.kick()
	c.step(steps.answered)
	return nil
}

// land puts a payload where it belongs. Its bytes have come with the frame: a piece is one
// write to the stream, so that the last line of an ordered one is not early.
func (c *conn) land(p *core.Payload[*memory]) error {
	if p.Word != core.NoWord {
		c.doWord(p)
		return nil
	}
	b := make([]byte, p.Length)
	if err := c.opsIn.frames.Payload(b); err != nil {
		return err
	}
	copy(p.Buf, b)
	for _, sp := range p.Spans {
		b = b[copy(c.bytes(sp), b):]
	}
	return nil
}

// frameSteps are the steps at which a frame of the operations stream is.
var frameSteps = [256]struct{ arrived, applied, answered failpoint.Step }{
	wire.TypeRegister:     {applied: failpoint.WindowAnnounced},
	wire.TypeRegistered:   {arrived: failpoint.WindowKnown},
	wire.TypeUnregister:   {applied: failpoint.WindowWithdrawn},
	wire.TypeUnregistered: {arrived: failpoint.WindowReleased},
	wire.TypeWrite:        {failpoint.WriteArrived, failpoint.WriteCopied, failpoint.WriteAcked},
	wire.TypeRead:         {applied: failpoint.ReadAsked, answered: failpoint.ReadAnswered},
	wire.TypeAtomic:       {arrived: failpoint.AtomicArrived, applied: failpoint.AtomicApplied},
	wire.TypeMark:         {applied: failpoint.MarkCounted, answered: failpoint.MarkAnswered},
	wire.TypeSignal:       {arrived: failpoint.SignalArrived, applied: failpoint.SignalStored},
}

// first notes that something came from the peer.
func (c *conn) first() {
	if !c.confirmed {
		c.confirmed = true
		if c.onFirst != nil {
			c.onFirst()
		}
	}
}

// opsEnded ends the reading of the operations stream.
func (c *conn) opsEnded(err error) {
	if !c.closeSent || !c.closeRecv {
		if isViolation(err) {
			c.link.n.w.watch.protocol(c.link, err)
		}
		c.fail(status.Reset)
	}
	c.opsIn.ended = true
	c.opsIn.frames.stream.drop()
	c.opsIn.frames.stream.more = nil
	c.first()
	c.link.forget(c)
	if c.opsIn.onEnded != nil {
		c.opsIn.onEnded()
	}
}

// readerCut ends the reader of a stream that was canceled.
func (c *conn) readerCut() {
	if !c.opsIn.ended {
		c.opsEnded(errCanceled)
	}
}

// call makes f wait for the core, unless the connection ends.
func (c *conn) call(f func(w *core.Waiter) (bool, error), done func(code status.Code, value uint64)) {
	if c.failed || c.closing {
		c.soon(func() { done(status.Reset, 0) })
		return
	}
	c.await(true, f, done)
}

// await makes f wait for the core. f reports whether there is something to wait for;
// otherwise the result is its waiter's. quits: a close of this end ends the wait.
func (c *conn) await(quits bool, f func(w *core.Waiter) (bool, error), done func(code status.Code, value uint64)) {
	x := &pending{quits: quits, done: done}
	c.calls = append(c.calls, x)
	waiting, err := f(&x.Waiter)
	if err != nil || !waiting {
		code := x.Code
		if err != nil {
			code = status.Of(err)
		}
		c.calls = without(c.calls, x)
		c.soon(func() { done(code, 0) })
	}
	c.kick()
}

// begin runs f, which begins an operation, once it may.
func (c *conn) begin(may func() (fence.Mark, bool), f func() error, done func(error)) {
	if c.failed || c.closing {
		done(status.Reset)
		return
	}
	m, ok := may()
	if ok {
		err := f()
		c.kick()
		done(err)
		return
	}
	c.call(func(w *core.Waiter) (bool, error) { return c.core.Wait(m, w) },
		func(status.Code, uint64) { c.begin(may, f, done) })
}
