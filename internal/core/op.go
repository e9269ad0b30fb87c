package core

import (
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// An OpKind is the kind of an operation on the peer's memory.
type OpKind uint8

const (
	OpWrite OpKind = iota + 1
	OpRead
	OpSignal
	OpAtomic
	OpPost // an atomic without a result
)

// An Op is one operation that this end began. The engine reads the exported
// fields while it sends or receives the payload, not after Written; it changes
// none.
type Op[M any] struct {
	Kind    OpKind
	Seq     uint64        // its number, from 1
	Local   []rma.Span[M] // the memory at this end: parts of own windows,
	Buf     []byte        // or plain memory of the caller if Local is empty
	Offset  uint64        // in the peer's space
	Length  int64         // in bytes
	Ordered bool          // rma.Ordered

	here    int64       // Local's offset in the own space
	charge  int64       // Local.Charge
	waiter  *Waiter     // of the call that waits for exactly this operation, or nil
	moved   int64       // of a read: bytes received
	users   int         // the engine's uses of the memory under way
	ended   bool        // code is known
	settled bool        // ended, and the memory is not used any more
	code    status.Code // why it failed
}

// Room reports whether another operation may begin. Signals that wait count:
// each becomes an operation when its mark is reached.
func (c *Conn[M]) Room() bool { return c.open.len()+c.deferred < c.limits.Ops }

// Oldest returns a mark over the oldest operation under way: when it is
// reached there is room again.
func (c *Conn[M]) Oldest() fence.Mark {
	return fence.Mark{Side: fence.InitSelf, Seq: min(c.ops.Done()+1, c.ops.Begun())}
}

// Clash returns a mark over the reads under way that an operation which changes
// the n bytes at roff of the peer's windows must not overtake, and reports false
// if there is none. The peer reads its memory when it gets to answer, so that
// only the end of a read proves that a later operation cannot change the bytes
// it returns. The same holds for l, the memory here that the operation takes its
// bytes from: a read may be about to fill it. Offsets are compared; two windows
// over the same memory are two.
func (c *Conn[M]) Clash(l Local, roff, n int64) (m fence.Mark, clash bool) {
	if c.reads == 0 {
		return m, false
	}
	for i := c.open.len() - 1; i >= 0; i-- {
		op := c.open.at(i)
		if op.Kind != OpRead || op.ended {
			continue
		}
		if overlap(int64(op.Offset), op.Length, roff, n) ||
			l.Buf == nil && op.Buf == nil && overlap(op.here, op.Length, l.Offset, l.Length) {
			return fence.Mark{Side: fence.InitSelf, Seq: op.Seq}, true
		}
	}
	return m, false
}

// overlap reports whether [a, a+n) and [b, b+m) have a byte in common. None of
// the numbers is trusted: no sum may overflow.
func overlap(a, n, b, m int64) bool {
	if a > b {
		a, n, b, m = b, m, a, n
	}
	return n > 0 && m > 0 && uint64(b)-uint64(a) < uint64(n)
}

// A Local is the memory of an operation at its initiator: the plain memory
// Buf, or, if Buf is nil, [Offset, Offset+Length) of the own windows.
type Local struct {
	Buf    []byte
	Offset int64
	Length int64
	// Charge is the engine's charge for Buf, in bytes: Effects.Refund gives
	// it back when the operation has ended.
	Charge int64
}

// Write begins a write of the local memory to roff of the peer's windows
// (scif_writeto, scif_vwriteto). w, if not nil, wakes when it has ended. The
// caller has seen Room, and no Clash.
func (c *Conn[M]) Write(l Local, roff int64, flags rma.Flags, w *Waiter) (*Op[M], error) {
	op, err := c.prepare(OpWrite, l, roff, flags, rma.ProtRead, rma.ProtWrite)
	if err != nil {
		return nil, err
	}
	c.start(op, w)
	op.users++
	c.push(Segment[M]{Write: op})
	return op, nil
}

// Read begins a read from roff of the peer's windows into the local memory
// (scif_readfrom, scif_vreadfrom). w, if not nil, wakes when it has ended.
func (c *Conn[M]) Read(l Local, roff int64, flags rma.Flags, w *Waiter) (*Op[M], error) {
	op, err := c.prepare(OpRead, l, roff, flags, rma.ProtWrite, rma.ProtRead)
	if err != nil {
		return nil, err
	}
	c.start(op, w)
	c.reads++
	c.Queue(wire.Read{Op: op.Seq, Offset: op.Offset, Length: uint64(op.Length)}.AppendTo(c.scratch[:0]))
	return op, nil
}

// Atomic begins an atomic operation; w wakes with the word's old value. The
// caller has seen Room, and no Clash.
func (c *Conn[M]) Atomic(a rma.Atomic, w *Waiter) error {
	return c.atomic(OpAtomic, a, w)
}

// prepare checks an operation as scif.md orders it (state, flags, length,
// windows) and retains its local windows.
func (c *Conn[M]) prepare(kind OpKind, l Local, roff int64, flags rma.Flags, here, there rma.Prot) (*Op[M], error) {
	if c.failed != status.OK {
		return nil, c.failed
	}
	if err := rma.CheckFlags(flags); err != nil {
		return nil, err
	}
	if l.Length <= 0 {
		return nil, status.Invalid
	}
	op := c.newOp(Op[M]{Kind: kind, Buf: l.Buf, here: l.Offset, charge: l.Charge, Offset: uint64(roff), Length: l.Length, Ordered: flags&rma.Ordered != 0})
	var err error
	if l.Buf == nil {
		var local []rma.Span[M]
		if local, err = c.own.Spans(op.Local, l.Offset, l.Length, here); err != nil {
			c.recycle(op)
			return nil, err
		}
		op.Local = local
	}
	if c.peerSp, err = c.peer.Spans(c.peerSp[:0], roff, l.Length, there); err != nil {
		c.recycle(op)
		return nil, err
	}
	for _, sp := range op.Local {
		c.own.Retain(sp.Window)
	}
	return op, nil
}

// CheckPeer returns the error that a transfer from or to plain memory would have:
// n bytes at roff of the peer's windows, with need as the access.
func (c *Conn[M]) CheckPeer(roff, n int64, flags rma.Flags, need rma.Prot) error {
	if c.failed != status.OK {
		return c.failed
	}
	if err := rma.CheckFlags(flags); err != nil {
		return err
	}
	var err error
	c.peerSp, err = c.peer.Spans(c.peerSp[:0], roff, n, need)
	return err
}

// newOp returns an operation with the values of op, in the memory of one that
// has ended if there is one.
func (c *Conn[M]) newOp(op Op[M]) *Op[M] {
	var p *Op[M]
	if n := len(c.free); n > 0 {
		p, c.free[n-1] = c.free[n-1], nil
		c.free = c.free[:n-1]
	} else {
		p = new(Op[M])
	}
	op.Local = p.Local
	*p = op
	return p
}

// recycle takes back an operation without references. There are
// never more than may be open.
func (c *Conn[M]) recycle(op *Op[M]) {
	local := op.Local[:cap(op.Local)]
	clear(local)
	*op = Op[M]{Local: local[:0]}
	c.free = append(c.free, op)
}

func (c *Conn[M]) start(op *Op[M], w *Waiter) {
	op.Seq, op.waiter = c.ops.Begin(), w
	c.open.push(op)
}

func (c *Conn[M]) unuse(op *Op[M]) {
	op.users--
	c.settle(op)
}

// end records an operation's result. The operation has ended for fences and
// waiters only when the engine does not use its memory any more.
func (c *Conn[M]) end(op *Op[M], code status.Code) {
	op.ended, op.code = true, code
	if op.Kind == OpRead {
		c.reads--
	}
	c.settle(op)
}

func (c *Conn[M]) settle(op *Op[M]) {
	if !op.ended || op.users > 0 {
		return
	}
	for _, sp := range op.Local {
		c.release(sp.Window)
	}
	op.Local, op.Buf, op.settled = op.Local[:0], nil, true
	if op.charge > 0 {
		c.effects.Refund += op.charge
	}
	w, code := op.waiter, op.code // op may be recycled below
	if op.code != status.OK && (c.firstBad == 0 || op.Seq < c.firstBad) {
		c.firstBad, c.badCode = op.Seq, op.code
	}
	c.ops.End(op.Seq)
	for c.open.len() > 0 && c.open.front().settled {
		c.recycle(c.open.pop())
	}
	c.wake(w, code)
	c.advance()
}

// advance performs the actions that waited for operations ended now: first signals,
// then the answers to windows withdrawn behind them.
func (c *Conn[M]) advance() {
	for _, w := range c.waits.Reached(c.ops.Done()) {
		c.reach(w)
	}
	c.answerWindows()
}

// find returns the operation seq, nil if it has ended or never began.
func (c *Conn[M]) find(seq uint64) *Op[M] {
	i := seq - c.ops.Done() - 1 // the place in open; huge if seq is done
	if i >= uint64(c.open.len()) {
		return nil
	}
	if op := c.open.at(int(i)); !op.ended {
		return op
	}
	return nil
}

// done ends the operations up to seq that have no answer of their own. That of
// a read or atomic which it covers may come later.
func (c *Conn[M]) done(seq uint64) error {
	if seq < c.applied || seq > c.ops.Begun() {
		return status.Protocol
	}
	from := max(c.applied, c.ops.Done()) + 1
	c.applied = seq
	for s := from; s <= seq; s++ {
		if op := c.find(s); op != nil && op.Kind != OpRead && op.Kind != OpAtomic {
			c.end(op, status.OK)
		}
	}
	return nil
}

// endThrough ends every operation up to seq that has not ended.
func (c *Conn[M]) endThrough(seq uint64, code status.Code) {
	for s := c.ops.Done() + 1; s <= seq; s++ {
		if op := c.find(s); op != nil {
			c.end(op, code)
		}
	}
}

// refused ends operation seq, whatever it is.
func (c *Conn[M]) refused(seq uint64, code status.Code) error {
	op := c.find(seq)
	if op == nil {
		return status.Protocol
	}
	c.end(op, code)
	return nil
}

// result ends the atomic seq with the old value of its word.
func (c *Conn[M]) result(seq, value uint64) error {
	op := c.find(seq)
	if op == nil || op.Kind != OpAtomic {
		return status.Protocol
	}
	if op.waiter != nil {
		op.waiter.Value = value
	}
	c.end(op, status.OK)
	return nil
}
