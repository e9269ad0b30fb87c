package core

import (
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// A windowAnswer is Registered or Unregistered, to be sent when the operations
// of this end up to after have ended. Answers keep the order of the requests.
type windowAnswer struct {
	after     uint64
	offset    uint64
	withdrawn bool
}

func (c *Conn[M]) onRegister(f wire.Register) error {
	if err := c.peer.Announce(int64(f.Offset), int64(f.Length), rma.Prot(f.Prot)); err != nil {
		return status.Protocol
	}
	return c.answerLater(windowAnswer{offset: f.Offset})
}

// onUnregister withdraws a window. Reads that are under way need it until their
// data have come, and signals that wait will store into it; everything else of
// this end is on the stream already.
func (c *Conn[M]) onUnregister(f wire.Unregister) error {
	if err := c.peer.Withdraw(int64(f.Offset), int64(f.Length)); err != nil {
		return status.Protocol
	}
	a := windowAnswer{offset: f.Offset, withdrawn: true}
	if c.reads > 0 || c.deferred > 0 {
		a.after = c.ops.Begun()
	}
	return c.answerLater(a)
}

func (c *Conn[M]) answerLater(a windowAnswer) error {
	if c.answers.len() >= 2*c.limits.Windows {
		return status.Protocol // each window of a peer that waits has two at most
	}
	c.answers.push(a)
	c.answerWindows()
	return nil
}

func (c *Conn[M]) answerWindows() {
	for c.answers.len() > 0 && c.ops.Reached(c.answers.front().after) {
		if a := c.answers.pop(); a.withdrawn {
			c.replyBehind(wire.Unregistered{Offset: a.offset}.AppendTo(c.scratch[:0]))
		} else {
			c.reply(wire.Registered{Offset: a.offset}.AppendTo(c.scratch[:0]))
		}
	}
}

// onAnnounced takes the answer to the oldest Register or Unregister.
func (c *Conn[M]) onAnnounced(offset uint64, withdrawn bool) error {
	if c.asked.len() == 0 {
		return status.Protocol
	}
	a := c.asked.front()
	if a.withdrawn != withdrawn || uint64(a.window.Offset) != offset {
		return status.Protocol
	}
	c.asked.pop()
	if withdrawn {
		c.retire(a.window)
	}
	c.wake(a.waiter, status.OK)
	return nil
}

func (c *Conn[M]) onMark(f wire.Mark) error {
	c.replyBehind(wire.Marked{Request: f.Request, Seq: c.ops.Mark()}.AppendTo(c.scratch[:0]))
	return nil
}

// reply queues an answer unless the connection has failed.
func (c *Conn[M]) reply(frame []byte) {
	if c.failed == status.OK {
		c.Queue(frame)
	}
}

// replyBehind is reply with an answer for which NextBehind asks.
func (c *Conn[M]) replyBehind(frame []byte) {
	if c.failed == status.OK {
		c.out.put(frame, true)
	}
}

func (c *Conn[M]) onWait(f wire.Wait) error {
	code := status.OK
	switch {
	case f.Seq > c.ops.Begun():
		code = status.Invalid
	case c.ops.Reached(f.Seq):
		code = c.verdict(f.Seq)
	case c.waits.Add(f.Seq, wait[M]{mark: f.Seq, request: f.Request}):
		return nil
	default:
		code = status.NoBufs
	}
	c.reply(wire.Waited{Request: f.Request, Code: code}.AppendTo(c.scratch[:0]))
	return nil
}

func (c *Conn[M]) onPeerSignal(f wire.PeerSignal) error {
	err := c.Signal(fence.Signal{By: fence.InitSelf, Where: fence.Where(f.Where),
		LocalOffset: int64(f.LocalOffset), LocalValue: f.LocalValue,
		RemoteOffset: int64(f.RemoteOffset), RemoteValue: f.RemoteValue})
	c.reply(wire.PeerSignaled{Request: f.Request, Code: status.Of(err)}.AppendTo(c.scratch[:0]))
	return nil
}

// onReply wakes the call that made a request, unless its caller gave up.
func (c *Conn[M]) onReply(t wire.Type, id uint64, code status.Code, value uint64) error {
	r, ok := c.requests[id]
	if !ok || r.answer != t {
		return status.Protocol
	}
	delete(c.requests, id)
	if r.waiter != nil {
		r.waiter.Value = value
		c.wake(r.waiter, code)
	}
	return nil
}
