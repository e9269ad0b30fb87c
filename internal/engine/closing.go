package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// A closeHandshake is how far the close of a connection has come. The conn's mu guards it.
type closeHandshake struct {
	closing        chan struct{} // closed when this end begins to close
	sent, received bool
}

// handshaken reports whether both ends have sent Close.
func (c *conn) handshaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bye.sent && c.bye.received
}

// onClose handles the peer's Close: a new one, or the answer to ours.
func (c *conn) onClose(f wire.Close) error {
	c.invalidation.end()
	lost := error(status.Reset)
	var behind error // the error after the last byte, if not a good end
	if f.Reset {
		lost = attach.Lost(f.Cause)
		behind = lost
	}
	c.mu.Lock()
	if c.bye.received {
		c.mu.Unlock()
		return status.Protocol
	}
	c.blame(f.Cause)
	c.bye.received = true
	ours := c.bye.sent
	if ours {
		c.core.End()
	}
	c.mu.Unlock()
	if !ours { // else finishPath ends it, behind the rest
		c.mutePath()
	}
	if f.Reset { // it comes behind nothing that an RMA path carries
		c.endRMAPaths()
		c.awaitApplied()
	}
	if !c.in.end(f.Sent, behind) {
		return status.Protocol
	}
	c.ep.disconnected(c)
	if ours {
		c.kick(false)
		return nil
	}
	c.out.abort(lost)
	c.mu.Lock()
	c.core.Fail(status.Reset)
	c.mu.Unlock()
	<-c.in.full // in.lose closes full too, as when the link is lost
	c.sendClose(wire.Close{Sent: c.out.total()})
	_ = c.hit(failpoint.CloseAnswered)
	return nil
}

// onEnd handles the end of the peer's direction.
func (c *conn) onEnd(f wire.End) error {
	if c.closedByPeer() || !c.in.shut(f.Sent) {
		return status.Protocol
	}
	return nil
}

// sendClose queues Close, unless that has been done.
func (c *conn) sendClose(f wire.Close) {
	c.mu.Lock()
	if !c.bye.sent {
		c.bye.sent = true
		if passed, ok := c.passed(); ok {
			c.core.Queue(f.AppendTo(passed))
		}
	}
	if c.bye.received {
		c.core.End()
	}
	c.mu.Unlock()
	c.kick(false)
}

// closedByPeer reports whether the peer has sent Close.
func (c *conn) closedByPeer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bye.received
}

// halfVersion is the first version of the protocol that has End.
const halfVersion = 3

// closeWrite ends this end's direction. It waits for a send that is under way.
func (c *conn) closeWrite() error {
	if c.link.version < halfVersion {
		return fmt.Errorf("the peer's fabricd knows no half-close: %w", status.NotSupp)
	}
	sent, first, err := c.out.shut()
	if err != nil || !first {
		return err
	}
	c.mu.Lock()
	if !c.bye.sent {
		c.core.Queue(wire.End{Sent: sent}.AppendTo(nil))
	}
	c.mu.Unlock()
	c.kick(false)
	return nil
}

// close ends the connection, and notifies the peer with bye: operations complete,
// sent bytes are delivered, then the windows go. It blocks as long as that makes progress,
// and at most about closeLinger when it does not.
func (c *conn) close(bye wire.Close) {
	ctx, cancel := c.whileMoving()
	defer cancel()
	c.mu.Lock()
	close(c.bye.closing)
	c.mu.Unlock()
	c.in.mute()
	c.out.stop(status.Reset)
	if !c.isFailed() && c.drain(ctx) {
		if sent, err := c.out.finish(ctx); err == nil && c.canSay(bye) {
			bye.Sent = sent
			c.sendClose(bye)
			_ = c.hit(failpoint.CloseSent)
			select {
			case <-c.ended:
			case <-c.link.end.down:
			case <-ctx.Done():
			}
			c.finishPath()
		}
	}
	c.fail("")
	c.mu.Lock()
	c.core.Close(status.Reset)
	c.mu.Unlock()
	c.release()
}

// release gives back the connection's share of the budget, once: there is no reader any more. A
// connection that an endpoint has had releases itself when it is closed.
func (c *conn) release() {
	if !c.released.Swap(true) {
		c.link.n.budget.give(c.ep.s, c.in.window)
	}
}

// drain waits until the operations of this end have ended. It reports false if they do not in time.
func (c *conn) drain(ctx context.Context) bool {
	w := c.newWaiter()
	c.mu.Lock()
	pending := c.core.Drain(w)
	c.mu.Unlock()
	if !pending {
		c.freeWaiter(w)
		return true
	}
	c.kick(false)
	_, err := c.await(ctx, w, nil) // an operation that failed has ended too
	return !errors.Is(err, errStalled)
}
