package core

import (
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// A wait is an action for when the operations up to a mark have ended: a call
// wakes, a peer's Wait is answered, or a signal is stored.
type wait[M any] struct {
	mark    uint64
	waiter  *Waiter
	request uint64 // of the peer, if waiter and signal are nil
	signal  *fence.Signal
	local   rma.Span[M] // where signal stores at this end, retained; Window nil if nowhere
}

// MarkSelf returns a mark over the operations of this end (scif_fence_mark).
func (c *Conn[M]) MarkSelf() fence.Mark {
	return fence.Mark{Side: fence.InitSelf, Seq: c.ops.Mark()}
}

// MarkPeer asks the peer for a mark over its operations; w wakes with it.
func (c *Conn[M]) MarkPeer(w *Waiter) error {
	id, err := c.request(w, wire.TypeMarked)
	if err == nil {
		c.Queue(wire.Mark{Request: id}.AppendTo(c.scratch[:0]))
	}
	return err
}

// Wait makes w wake when the operations that m covers have ended, with the
// result of the first that failed (scif_fence_wait). It reports false, with
// the result in w.Code, if that is so already. A mark over operations that
// never began is status.Invalid.
func (c *Conn[M]) Wait(m fence.Mark, w *Waiter) (pending bool, err error) {
	if m.Side == fence.InitPeer {
		id, err := c.request(w, wire.TypeWaited)
		if err != nil {
			return false, err
		}
		c.Queue(wire.Wait{Request: id, Seq: m.Seq}.AppendTo(c.scratch[:0]))
		return true, nil
	}
	if m.Side != fence.InitSelf || m.Seq > c.ops.Begun() {
		return false, status.Invalid
	}
	if c.ops.Reached(m.Seq) {
		w.Code = c.verdict(m.Seq)
		return false, nil
	}
	if !c.waits.Add(m.Seq, wait[M]{mark: m.Seq, waiter: w}) {
		return false, status.NoBufs
	}
	return true, nil
}

// Drain makes w wake when every operation of this end has ended; false if that is so
// already. It is for the close of the connection, and exempt from the bound of waits: a
// release of resources is never refused.
func (c *Conn[M]) Drain(w *Waiter) (pending bool) {
	c.waits.Max++
	pending, err := c.Wait(c.MarkSelf(), w)
	return pending && err == nil
}

// Ended returns how many operations of this end have ended, but for those that wait
// for an earlier one.
func (c *Conn[M]) Ended() uint64 { return c.ops.Done() }

// Forget takes back a wait or request whose caller gave up; w does not wake
// afterwards.
func (c *Conn[M]) Forget(w *Waiter) {
	c.waits.Remove(func(x wait[M]) bool { return x.waiter == w })
	for id, r := range c.requests {
		if r.waiter == w {
			c.requests[id] = request{answer: r.answer} // which still comes
		}
	}
	asked := c.asked.all()
	for i := range asked {
		if asked[i].waiter == w {
			asked[i].waiter = nil
		}
	}
	for _, op := range c.open.all() {
		if op.waiter == w {
			op.waiter = nil
		}
	}
}

// verdict is the result of waiting for a mark that is reached.
func (c *Conn[M]) verdict(mark uint64) status.Code {
	if c.firstBad != 0 && c.firstBad <= mark {
		return c.badCode
	}
	return c.failed
}

func (c *Conn[M]) request(w *Waiter, answer wire.Type) (uint64, error) {
	if c.failed != status.OK {
		return 0, c.failed
	}
	if len(c.requests) >= c.limits.Requests {
		return 0, status.NoBufs
	}
	c.lastRequest++
	c.requests[c.lastRequest] = request{answer, w}
	return c.lastRequest, nil
}

// reach performs an action that waited for a mark.
func (c *Conn[M]) reach(w wait[M]) {
	code := c.verdict(w.mark)
	switch {
	case w.waiter != nil:
		c.wake(w.waiter, code)
	case w.signal != nil:
		c.store(w, code)
	default:
		c.reply(wire.Waited{Request: w.request, Code: code}.AppendTo(c.scratch[:0]))
	}
}

// Signal stores s's values when the operations of this end have completed
// (scif_fence_signal with SCIF_FENCE_INIT_SELF). The own window stays until
// then; so does the peer's, whose unregister is not answered before. If one of
// the operations fails, nothing is stored; if that is known, it is the error.
func (c *Conn[M]) Signal(s fence.Signal) error {
	if c.failed != status.OK {
		return c.failed
	}
	if err := fence.CheckSignal(s); err != nil {
		return err
	}
	if s.By != fence.InitSelf {
		panic("BUG: core: Signal over the peer's operations")
	}
	w := wait[M]{mark: c.ops.Mark(), signal: &s}
	var err error
	if s.Where&fence.SignalLocal != 0 {
		if c.shut {
			return status.Reset
		}
		if w.local, err = c.own.Within(s.LocalOffset, 8, rma.ProtWrite); err != nil {
			return err
		}
	}
	if s.Where&fence.SignalRemote != 0 {
		if _, err = c.peer.Within(s.RemoteOffset, 8, rma.ProtWrite); err != nil {
			return err
		}
	}
	// Writes are applied in order, so a signal that only the peer sees needs
	// no round trip behind them. A read must have ended here first, and signals
	// that wait come before this one. Without room it waits too: the peer asks
	// for signals and may never answer them.
	if s.Where == fence.SignalRemote && c.reads == 0 && c.deferred == 0 && c.firstBad == 0 && c.Room() {
		c.signalPeer(&s)
		return nil
	}
	return c.storeAt(w)
}

// storeAt makes a signal happen at its mark, at once if that is reached.
func (c *Conn[M]) storeAt(w wait[M]) error {
	reached := c.ops.Reached(w.mark)
	if code := c.verdict(w.mark); reached && code != status.OK {
		return code
	}
	if !reached && !c.waits.Add(w.mark, w) {
		return status.NoBufs
	}
	if w.local.Window != nil {
		c.own.Retain(w.local.Window)
	}
	if w.signal.Where&fence.SignalRemote != 0 {
		c.deferred++
	}
	if reached {
		c.reach(w)
	}
	return nil
}

// store stores a signal's values, here first, unless an operation before it
// failed, and releases the window that the signal held.
func (c *Conn[M]) store(w wait[M], code status.Code) {
	s := w.signal
	if c.shut && w.local.Window != nil && code == status.OK {
		code = status.Reset
	}
	if w.local.Window != nil {
		if code == status.OK {
			c.effects.Stores = append(c.effects.Stores, Store[M]{w.local, s.LocalValue})
		}
		c.release(w.local.Window)
	}
	if s.Where&fence.SignalRemote != 0 {
		if code == status.OK {
			c.signalPeer(s)
		}
		c.deferred--
	}
}

func (c *Conn[M]) signalPeer(s *fence.Signal) {
	op := c.newOp(Op[M]{Kind: OpSignal, Offset: uint64(s.RemoteOffset), Length: 8})
	c.start(op, nil)
	c.Queue(wire.Signal{Op: op.Seq, Offset: op.Offset, Value: s.RemoteValue}.AppendTo(c.scratch[:0]))
}

// SignalByPeer asks the peer to store s's values when its operations have
// completed (SCIF_FENCE_INIT_PEER); w wakes when it has accepted or refused.
func (c *Conn[M]) SignalByPeer(s fence.Signal, w *Waiter) error {
	if c.failed != status.OK {
		return c.failed
	}
	if err := fence.CheckSignal(s); err != nil {
		return err
	}
	id, err := c.request(w, wire.TypePeerSignaled)
	if err != nil {
		return err
	}
	there := s.Swap()
	c.Queue(wire.PeerSignal{Request: id, Where: uint8(there.Where),
		LocalOffset: uint64(there.LocalOffset), LocalValue: there.LocalValue,
		RemoteOffset: uint64(there.RemoteOffset), RemoteValue: there.RemoteValue}.AppendTo(c.scratch[:0]))
	return nil
}
