package core

import (
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// incoming is the state of the peer's operations at their target.
type incoming[M any] struct {
	last    uint64      // number of the last operation begun
	partial bool        // it is a write whose last part has not come
	code    status.Code // why that write is refused
	refused status.Code // of the first operation that was refused, OK if none
	queued  int         // replies to reads that the engine has not begun to write
	free    []*Reply[M] // memory of replies that were written

	payload Payload[M] // of the frame being read; reused
}

// A Payload is the memory for the bytes behind a frame. It holds references to
// the windows until PayloadDone.
type Payload[M any] struct {
	Spans   []rma.Span[M] // into these, in order; if there are none
	Buf     []byte        // into this memory of a caller; if nil, nowhere
	Length  int64
	Ordered bool // the last 64-byte line last

	// Word means that no bytes follow: Value is to be stored in the word that Spans is,
	// or Atomic performed on it, which makes Value the old value. Nothing else of this
	// Conn comes before PayloadDone.
	Word   Word
	Value  uint64
	Atomic rma.Atomic

	op     *Op[M] // of a read of this end; nil for an operation of the peer
	last   bool
	posted bool // the caller gets no result
	number uint64
}

// A Word is an action on one word of memory.
type Word uint8

const (
	NoWord Word = iota
	StoreWord
	AtomicWord
)

// A Reply is the answer to a read of the peer.
type Reply[M any] struct {
	Op     uint64
	Spans  []rma.Span[M] // retained until Written
	Length int64
}

// Handle applies a frame of the operations stream. If bytes follow the frame it
// returns where they belong; the engine reads them, without holding up other
// calls of this Conn, and then calls PayloadDone. An error means that the peer
// broke the protocol; the connection is to be failed. After Fail no frame has
// an effect and every payload belongs nowhere.
func (c *Conn[M]) Handle(h wire.Header, body []byte) (*Payload[M], error) {
	if c.failed != status.OK {
		return c.drop(h, body)
	}
	switch h.Type {
	case wire.TypeWrite:
		return c.onWrite(h, body)
	case wire.TypeReadData:
		return c.onReadData(h, body)
	case wire.TypeSignal:
		return c.onSignal(h, body)
	case wire.TypeAtomic:
		return c.onAtomic(h, body)
	}
	return nil, c.handle(h, body)
}

// handle applies a frame that no bytes follow: a read, the answer to an operation of this end,
// an announcement or withdrawal of a window, a request about fences, or an answer to those.
func (c *Conn[M]) handle(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeRead:
		return wire.Apply(h, body, wire.ParseRead, c.onRead)
	case wire.TypeDone:
		return wire.Apply(h, body, wire.ParseDone, func(f wire.Done) error { return c.done(f.Op) })
	case wire.TypeFail:
		return wire.Apply(h, body, wire.ParseFail, func(f wire.Fail) error { return c.refused(f.Op, f.Code) })
	case wire.TypeResult:
		return wire.Apply(h, body, wire.ParseResult, func(f wire.Result) error { return c.result(f.Op, f.Value) })
	case wire.TypeRegister:
		return wire.Apply(h, body, wire.ParseRegister, c.onRegister)
	case wire.TypeUnregister:
		return wire.Apply(h, body, wire.ParseUnregister, c.onUnregister)
	case wire.TypeRegistered:
		return wire.Apply(h, body, wire.ParseRegistered, func(f wire.Registered) error { return c.onAnnounced(f.Offset, false) })
	case wire.TypeUnregistered:
		return wire.Apply(h, body, wire.ParseUnregistered, func(f wire.Unregistered) error { return c.onAnnounced(f.Offset, true) })
	case wire.TypeMark:
		return wire.Apply(h, body, wire.ParseMark, c.onMark)
	case wire.TypeWait:
		return wire.Apply(h, body, wire.ParseWait, c.onWait)
	case wire.TypePeerSignal:
		return wire.Apply(h, body, wire.ParsePeerSignal, c.onPeerSignal)
	case wire.TypeMarked:
		return wire.Apply(h, body, wire.ParseMarked, func(f wire.Marked) error { return c.onReply(h.Type, f.Request, status.OK, f.Seq) })
	case wire.TypeWaited:
		return wire.Apply(h, body, wire.ParseWaited, func(f wire.Waited) error { return c.onReply(h.Type, f.Request, f.Code, 0) })
	case wire.TypePeerSignaled:
		return wire.Apply(h, body, wire.ParsePeerSignaled, func(f wire.PeerSignaled) error { return c.onReply(h.Type, f.Request, f.Code, 0) })
	}
	return status.Protocol
}

// drop returns how many bytes follow a frame that comes too late.
func (c *Conn[M]) drop(h wire.Header, body []byte) (*Payload[M], error) {
	switch h.Type {
	case wire.TypeWrite:
		f, err := wire.ParseWrite(h.Flags, body)
		return c.nowhere(f.Length, err)
	case wire.TypeReadData:
		f, err := wire.ParseReadData(h.Flags, body)
		return c.nowhere(f.Length, err)
	}
	return nil, nil
}

// nowhere returns a payload of length bytes that belong nowhere, or err.
func (c *Conn[M]) nowhere(length uint32, err error) (*Payload[M], error) {
	if err != nil {
		return nil, err
	}
	p := &c.in.payload
	*p = Payload[M]{Spans: p.Spans[:0], Length: int64(length)}
	return p, nil
}

// Kept reports whether the bytes belong anywhere.
func (p *Payload[M]) Kept() bool { return p.Buf != nil || len(p.Spans) > 0 }

// next checks the number of an operation of the peer: each follows the one
// before, and only a write has several frames.
func (c *Conn[M]) next(number uint64, write bool) error {
	if c.in.partial {
		if !write || number != c.in.last {
			return status.Protocol
		}
		return nil
	}
	if number != c.in.last+1 {
		return status.Protocol
	}
	c.in.last, c.in.code = number, status.OK
	return nil
}

func (c *Conn[M]) onWrite(h wire.Header, body []byte) (*Payload[M], error) {
	f, err := wire.ParseWrite(h.Flags, body)
	if err != nil {
		return nil, err
	}
	if err := c.next(f.Op, true); err != nil {
		return nil, err
	}
	c.in.partial = !f.Last
	p := &c.in.payload
	*p = Payload[M]{Spans: p.Spans[:0], Length: int64(f.Length), Ordered: f.Ordered, last: f.Last, number: f.Op}
	if c.shut && c.in.code == status.OK {
		c.in.code = status.Reset
	}
	if c.in.code != status.OK {
		return p, nil
	}
	if p.Spans, err = c.own.PeerSpans(p.Spans, int64(f.Offset), p.Length, rma.ProtWrite); err != nil {
		c.in.code = status.Of(err)
	}
	c.retain(p.Spans)
	return p, nil
}

func (c *Conn[M]) retain(spans []rma.Span[M]) {
	for _, sp := range spans {
		c.own.Retain(sp.Window)
	}
}

func (c *Conn[M]) releaseAll(spans []rma.Span[M]) {
	for _, sp := range spans {
		c.release(sp.Window)
	}
}

// PayloadDone reports that p's bytes are in memory, or why not: err is of
// the memory, not of the stream.
func (c *Conn[M]) PayloadDone(p *Payload[M], err error) {
	c.releaseAll(p.Spans)
	switch {
	case p.op != nil:
		c.readDone(p, err)
		return
	case p.Word != NoWord:
		c.wordDone(p, err)
		return
	}
	if err != nil && c.in.code == status.OK {
		c.in.code = MemoryCode(err)
	}
	if p.last && c.in.last == p.number {
		c.answer(p.number, c.in.code)
	}
}

// MemoryCode returns the code of an error of memory.
func MemoryCode(err error) status.Code {
	if code := status.Of(err); code != status.Protocol {
		return code
	}
	return status.Fault // an error without a code
}

// answer reports to the peer that its operation has been applied or refused.
func (c *Conn[M]) answer(number uint64, code status.Code) {
	if code == status.OK {
		c.reply(wire.Done{Op: number}.AppendTo(c.scratch[:0]))
		return
	}
	if c.in.refused == status.OK {
		c.in.refused = code
	}
	c.reply(wire.Fail{Op: number, Code: code}.AppendTo(c.scratch[:0]))
}

func (c *Conn[M]) onRead(f wire.Read) error {
	if err := c.next(f.Op, false); err != nil {
		return err
	}
	switch {
	case c.in.queued >= c.limits.Ops:
		return status.Protocol // the peer has more operations open than it may
	case c.shut:
		c.answer(f.Op, status.Reset)
		return nil
	}
	r := c.newReply()
	spans, err := c.own.PeerSpans(r.Spans, int64(f.Offset), int64(f.Length), rma.ProtRead)
	if err != nil {
		c.in.free = append(c.in.free, r)
		c.answer(f.Op, status.Of(err))
		return nil
	}
	c.retain(spans)
	r.Op, r.Spans, r.Length = f.Op, spans, int64(f.Length)
	c.push(Segment[M]{Reply: r})
	return nil
}

// newReply returns an empty reply, in the memory of one that was written if
// there is one.
func (c *Conn[M]) newReply() *Reply[M] {
	n := len(c.in.free)
	if n == 0 {
		return new(Reply[M])
	}
	r := c.in.free[n-1]
	c.in.free[n-1] = nil
	c.in.free = c.in.free[:n-1]
	return r
}

// replied recycles a reply.
func (c *Conn[M]) replied(r *Reply[M], code status.Code) {
	c.releaseAll(r.Spans)
	if code != status.OK {
		c.answer(r.Op, code)
	}
	clear(r.Spans)
	*r = Reply[M]{Spans: r.Spans[:0]}
	c.in.free = append(c.in.free, r)
}

func (c *Conn[M]) onReadData(h wire.Header, body []byte) (*Payload[M], error) {
	f, err := wire.ParseReadData(h.Flags, body)
	if err != nil {
		return nil, err
	}
	p := &c.in.payload
	*p = Payload[M]{Spans: p.Spans[:0], Length: int64(f.Length), last: f.Last, number: f.Op}
	op := c.find(f.Op)
	if op == nil || op.Kind != OpRead {
		return nil, status.Protocol
	}
	rest := op.Length - op.moved
	if p.Length > rest || f.Last != (p.Length == rest) {
		return nil, status.Protocol
	}
	p.op, p.Ordered = op, op.Ordered
	op.users++
	switch {
	case c.shut: // nowhere
	case op.Buf != nil:
		p.Buf = op.Buf[op.moved : op.moved+p.Length]
	default:
		p.Spans = Cut(p.Spans, op.Local, op.moved, p.Length)
		c.retain(p.Spans)
	}
	op.moved += p.Length
	return p, nil
}

func (c *Conn[M]) readDone(p *Payload[M], err error) {
	op := p.op
	if c.shut && err == nil {
		err = status.Reset
	}
	if err != nil && !op.ended && op.code == status.OK {
		op.code = MemoryCode(err)
	}
	if p.last && !op.ended {
		c.end(op, op.code)
	}
	c.unuse(op)
}

// Cut appends to dst the parts of spans that hold the n bytes from off on.
func Cut[M any](dst, spans []rma.Span[M], off, n int64) []rma.Span[M] {
	for _, sp := range spans {
		if off >= sp.Length {
			off -= sp.Length
			continue
		}
		sp.Offset += off
		sp.Length = min(sp.Length-off, n)
		dst = append(dst, sp)
		off, n = 0, n-sp.Length
		if n == 0 {
			break
		}
	}
	return dst
}

func (c *Conn[M]) onSignal(h wire.Header, body []byte) (*Payload[M], error) {
	f, err := wire.ParseSignal(h.Flags, body)
	if err != nil {
		return nil, err
	}
	if err := c.next(f.Op, false); err != nil {
		return nil, err
	}
	sp, code := c.signalAt(int64(f.Offset))
	return c.onWord(Payload[M]{Word: StoreWord, Value: f.Value, number: f.Op}, sp, code), nil
}

// signalAt returns where a signal of the peer is stored. It stands for all operations
// before it, so that it is refused with any of them.
func (c *Conn[M]) signalAt(off int64) (rma.Span[M], status.Code) {
	if c.in.refused != status.OK {
		return rma.Span[M]{}, c.in.refused
	}
	return c.wordAt(off, 8, rma.ProtWrite)
}

func (c *Conn[M]) wordAt(off, n int64, need rma.Prot) (rma.Span[M], status.Code) {
	if c.shut {
		return rma.Span[M]{}, status.Reset
	}
	sp, err := c.own.PeerWithin(off, n, need)
	return sp, status.Of(err)
}

// onWord returns the action on the word at sp, or refuses it with code.
func (c *Conn[M]) onWord(word Payload[M], sp rma.Span[M], code status.Code) *Payload[M] {
	if code != status.OK {
		c.answer(word.number, code)
		return nil
	}
	p := &c.in.payload
	word.Spans = append(p.Spans[:0], sp)
	*p = word
	c.retain(p.Spans)
	return p
}

func (c *Conn[M]) wordDone(p *Payload[M], err error) {
	switch {
	case err != nil:
		c.answer(p.number, MemoryCode(err))
	case p.Word == AtomicWord && !p.posted:
		c.reply(wire.Result{Op: p.number, Value: p.Value}.AppendTo(c.scratch[:0]))
	default:
		c.answer(p.number, status.OK)
	}
}

func (c *Conn[M]) onAtomic(h wire.Header, body []byte) (*Payload[M], error) {
	f, err := wire.ParseAtomic(h.Flags, body)
	if err != nil {
		return nil, err
	}
	if err := c.next(f.Op, false); err != nil {
		return nil, err
	}
	a := rma.Atomic{Op: rma.AtomicOp(f.Kind), Width: f.Width, Offset: int64(f.Offset),
		Operand: f.Operand, Compare: f.Compare}
	sp, code := c.atomicAt(a)
	return c.onWord(Payload[M]{Word: AtomicWord, Atomic: a, posted: f.Posted, number: f.Op}, sp, code), nil
}

func (c *Conn[M]) atomicAt(a rma.Atomic) (sp rma.Span[M], code status.Code) {
	if c.shut {
		return sp, status.Reset
	}
	if err := rma.CheckAtomic(a); err != nil {
		return sp, status.Of(err)
	}
	return c.wordAt(a.Offset, int64(a.Width), rma.ProtRead|rma.ProtWrite)
}
