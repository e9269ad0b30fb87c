package core

import (
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// Post begins an atomic operation without a result: as a write, it has
// ended when the peer has applied it. w, if not nil, wakes then. The caller has
// seen Room, and no Clash.
func (c *Conn[M]) Post(a rma.Atomic, w *Waiter) error { return c.atomic(OpPost, a, w) }

func (c *Conn[M]) atomic(kind OpKind, a rma.Atomic, w *Waiter) error {
	if c.failed != status.OK {
		return c.failed
	}
	if err := rma.CheckAtomic(a); err != nil {
		return err
	}
	if _, err := c.peer.Within(a.Offset, int64(a.Width), rma.ProtRead|rma.ProtWrite); err != nil {
		return err
	}
	op := c.newOp(Op[M]{Kind: kind, Offset: uint64(a.Offset), Length: int64(a.Width)})
	c.start(op, w)
	c.Queue(wire.Atomic{Op: op.Seq, Kind: uint8(a.Op), Width: a.Width, Offset: op.Offset,
		Operand: a.Operand, Compare: a.Compare, Posted: kind == OpPost}.AppendTo(c.scratch[:0]))
	return nil
}

// putOps is how many operations a Put begins.
const putOps = 2

// RoomForPut reports whether a Put may begin. A limit of less than two
// operations is one of two for it, or it never could.
func (c *Conn[M]) RoomForPut() bool {
	return c.open.len()+c.deferred+putOps <= max(c.limits.Ops, putOps)
}

// Put begins a write of the local memory to p.Offset of the peer's windows, and
// a signal of p.Value behind it; with p.More the write alone, after all checks.
// Nothing has begun after an error. w, if not nil, wakes when the write has
// ended; the signal may still be under way, and a mark covers both. The caller
// has seen RoomForPut, and no Clash of the write or of the word.
//
// As behind a FenceSignal, the word is not stored if an operation before it has
// failed; if that is known, it is the error.
func (c *Conn[M]) Put(l Local, p rma.Put, w *Waiter) (*Op[M], error) {
	if c.failed != status.OK {
		return nil, c.failed
	}
	if err := rma.CheckPut(p); err != nil {
		return nil, err
	}
	op, err := c.prepare(OpWrite, l, p.Offset, 0, rma.ProtRead, rma.ProtWrite)
	if err != nil {
		return nil, err
	}
	if err := c.checkPut(l, p); err != nil {
		c.unprepare(op)
		return nil, err
	}
	c.start(op, w)
	op.users++
	c.push(Segment[M]{Write: op})
	if p.More > 0 {
		return op, nil
	}
	word := c.newOp(Op[M]{Kind: OpSignal, Offset: uint64(p.Word), Length: 8})
	c.start(word, nil)
	c.Queue(wire.Signal{Op: word.Seq, Offset: word.Offset, Value: p.Value}.AppendTo(c.scratch[:0]))
	return op, nil
}

// checkPut checks the parts of a put beside its write, which has been checked.
func (c *Conn[M]) checkPut(l Local, p rma.Put) error {
	if p.More > 0 {
		var err error
		if c.peerSp, err = c.peer.Spans(c.peerSp[:0], p.Offset+l.Length, p.More, rma.ProtWrite); err != nil {
			return err
		}
	}
	if _, err := c.peer.Within(p.Word, 8, rma.ProtWrite); err != nil {
		return err
	}
	if c.firstBad != 0 {
		return c.badCode
	}
	return nil
}

// unprepare undoes prepare.
func (c *Conn[M]) unprepare(op *Op[M]) {
	for _, sp := range op.Local {
		c.release(sp.Window)
	}
	c.recycle(op)
}
