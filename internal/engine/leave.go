package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// Leave ends the node's connections: sent bytes are delivered, and every peer's
// application sees a loss behind it, unless its own peer has closed. Links stay
// until Close. Peers that do not read may take three quarters of the time.
func (n *Node) Leave(ctx context.Context) error {
	most, cancel := mostOf(ctx)
	defer cancel()
	n.closeSessions(most)
	n.awaitArrival(most)
	var notified group
	for _, l := range n.allLinks() {
		if l.otherEnd == nil {
			notified.run(func() {
				defer guard.Recover(l.panicked)
				l.bye(ctx, "leaving")
			})
		}
	}
	notified.wait()
	return ctx.Err()
}

// mostOf returns a context that ends when three quarters of ctx's time have passed.
func mostOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
}

// awaitArrival waits until all bytes sent by paths have arrived at the peers' machines, or
// ctx is done. Their nodes end the paths when this one has gone; bytes that have arrived stay
// readable. The kernel does not notify: it is polled.
func (n *Node) awaitArrival(ctx context.Context) {
	ask := time.NewTicker(5 * time.Millisecond)
	defer ask.Stop()
	for !n.paths.arrived() {
		select {
		case <-ask.C:
		case <-ctx.Done():
			return
		}
	}
}

// closeSessions closes every session, waiting no longer than ctx.
func (n *Node) closeSessions(ctx context.Context) {
	n.mu.Lock()
	sessions := slices.Collect(maps.Keys(n.sessions))
	n.mu.Unlock()
	var closing group
	for _, s := range sessions {
		closing.run(func() {
			s.CloseWindows() // Close notifies the application of its end, long before it is through
			s.end(attach.CauseStopped(s.n.Self().Incarnation.Node))
		})
	}
	closed := make(chan struct{})
	n.work.run(func() {
		closing.wait()
		close(closed)
	})
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// parting is how far the two Byes of a link have come. The link's mu guards it.
type parting struct {
	byPeer bool          // the peer has sent Bye
	acked  chan struct{} // closed when the peer answered ours
}

// bye notifies the peer that this node leaves and waits until it has received
// everything sent before.
func (l *link) bye(ctx context.Context, reason string) {
	l.sendFrame(wire.Bye{Reason: reason}.AppendTo(nil))
	select {
	case <-l.parting.acked:
	case <-l.end.down:
	case <-ctx.Done():
	}
}

func (l *link) onBye(wire.Bye) error {
	l.mu.Lock()
	l.parting.byPeer = true
	l.mu.Unlock()
	l.sendFrame(wire.ByeAck{}.AppendTo(nil))
	return nil
}

func (l *link) onByeAck() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.parting.acked) {
		return fmt.Errorf("%w: a second ByeAck", status.Protocol)
	}
	close(l.parting.acked)
	return nil
}
