package sim

import (
	"time"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// onClose handles the peer's Close: a new one, or the answer to ours.
func (c *conn) onClose(f wire.Close) error {
	if c.closeRecv {
		return status.Protocol
	}
	c.closeRecv = true
	ours := c.closeSent
	if ours {
		c.core.End()
	}
	if !c.inflow.End(f.Sent, f.Reset) {
		return status.Protocol
	}
	c.wakeReaders()
	c.ep.disconnected(c)
	if ours {
		c.kick()
		return nil
	}
	c.out.abort()
	c.core.Fail(status.Reset)
	c.perform()
	c.answerClose()
	return nil
}

// answerClose answers the peer's Close once all its bytes are here.
func (c *conn) answerClose() {
	if c.closeRecv && !c.closeSent && c.inflow.Over() {
		c.sendClose(wire.Close{Sent: c.out.flow.Sent()})
		c.step(failpoint.CloseAnswered)
	}
}

func (c *conn) sendClose(f wire.Close) {
	if !c.closeSent {
		c.closeSent = true
		c.core.Queue(f.AppendTo(nil))
	}
	if c.closeRecv {
		c.core.End()
	}
	c.kick()
}

// closeLinger bounds how long a close waits for the peer.
const closeLinger = 10 * time.Second

// close ends the connection, and notifies the peer with bye: operations complete, sent
// bytes are delivered, then the windows go.
func (c *conn) close(bye wire.Close, done func()) {
	c.closing = true
	for _, x := range c.calls {
		if x.quits {
			c.giveUp(x)
		}
	}
	c.inflow.Mute()
	c.inbox = nil
	c.wakeReaders()
	c.readMore()
	c.out.stop(status.Reset)
	over := false
	finish := func() {
		if !over {
			over = true
			c.fail(status.Reset)
			c.core.Close(status.Reset)
			c.perform()
			done()
		}
	}
	c.link.n.p.after(closeLinger, finish)
	if c.failed {
		finish()
		return
	}
	c.drain(func() {
		if over || c.failed {
			finish()
			return
		}
		c.out.finish()
		c.opsIn.onEnded = finish
		c.link.onDown = append(c.link.onDown, finish)
		bye.Sent = c.out.flow.Sent()
		c.sendClose(bye)
		c.step(failpoint.CloseSent)
		if c.opsIn.ended {
			finish()
		}
	})
}

// drain waits until the operations of this end have ended.
func (c *conn) drain(done func()) {
	c.await(false, func(w *core.Waiter) (bool, error) { return c.core.Drain(w), nil }, func(status.Code, uint64) { done() })
}

// giveUp ends a call that its caller has abandoned.
func (c *conn) giveUp(x *pending) {
	c.core.Forget(&x.Waiter)
	c.calls = without(c.calls, x)
	c.soon(func() { x.done(status.Reset, 0) })
}

// fail cuts the connection off: whatever is under way ends with code.
func (c *conn) fail(code status.Code) {
	if !c.failed {
		c.failed = true
		c.core.Fail(code)
		if c.opsOut.stream != nil {
			c.opsOut.stream.cancel()
		}
		if c.opsOut.writing {
			c.written(c.opsOut.segment)
		}
		c.core.Break()
		c.perform()
	}
	c.out.abort()
	c.inflow.Lose()
	c.wakeReaders()
	if c.opsIn.frames != nil && !c.opsIn.ended {
		c.soon(c.readerCut)
	}
	if c.messages != nil {
		c.messages.stream.drop()
	}
	c.ep.disconnected(c)
	c.first()
}
