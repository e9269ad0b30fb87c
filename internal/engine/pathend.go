package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// How long a socket is kept for the bytes that its end has sent: after the last byte that came the
// other way, and in all.
const (
	pathDrain    = 10 * time.Second
	pathDrainAll = time.Minute
)

// refusePath ends the attempt of ours, or any if that is nil, for both ends. Unless why
// is status.NotSupp another one may follow.
func (c *conn) refusePath(ours *wire.Path, why error) {
	c.path.mu.Lock()
	c.refuseLocked(ours, why)
	c.path.mu.Unlock()
	c.kick(false)
	c.lastOfPath()
}

// refuseLocked is refusePath for a caller that holds path.mu.
func (c *conn) refuseLocked(ours *wire.Path, why error) {
	p := &c.path
	switch {
	case p.over, p.ours == nil && p.peer == nil, ours != nil && p.ours != ours:
		return // the attempt that the caller knows has ended
	}
	c.endAttemptLocked(why)
	p.noPathSent = true
	c.queueNoPath(why)
	c.note("path-refused", why.Error())
}

func (c *conn) queueNoPath(why error) {
	c.queueFrame(wire.NoPath{Reason: why.Error(), Passing: passes(why)}.AppendTo(nil))
}

// onNoPath handles the peer's NoPath.
func (c *conn) onNoPath(f wire.NoPath) error {
	p := &c.path
	p.mu.Lock()
	switch {
	case p.noPathSent: // the attempt is over at both ends
		p.noPathSent = false
	case p.over, p.ours == nil && p.peer == nil: // nothing is left to end
	default:
		why := peerSays(f.Reason, f.Passing)
		c.endAttemptLocked(why)
		c.queueNoPath(why)
		c.note("path-refused", why.Error())
	}
	p.mu.Unlock()
	c.kick(false)
	c.lastOfPath()
	return nil
}

// endAttemptLocked ends a path, made or not, for why: for good if that
// is status.NotSupp. The caller holds path.mu.
func (c *conn) endAttemptLocked(why error) {
	p := &c.path
	if s := c.leavePathLocked(why); s != nil { // with the lock: a call that finds it over finds it shut down
		s.Shutdown()
		c.closePath(s, p.freed)
	}
	p.over, p.failed = errors.Is(why, status.NotSupp), time.Now()
}

// endPath shuts the path down at once, and lets no other follow: neither application
// sends or receives a byte more. The connection has ended.
func (c *conn) endPath() {
	p := &c.path
	p.mu.Lock()
	if !p.over {
		c.endAttemptLocked(nil)
		p.over = true
	}
	p.mu.Unlock()
	c.lastOfPath()
}

// lastOfPath has the link forget a connection that it knew only for its path.
func (c *conn) lastOfPath() {
	if isClosed(c.ended) && !c.hasPath() {
		c.link.forget(c)
	}
}

// leavePathLocked makes nothing be left of the attempt but why it ended, and returns the
// node's duplicate, if there is one, which the caller ends and gives to closePath. The
// caller holds path.mu.
func (c *conn) leavePathLocked(why error) *path.Held {
	p, n := &c.path, c.link.n
	s, freed := p.socket, p.freed
	if p.ours != nil {
		n.paths.forget(path.Token(p.ours.Token))
		if !p.isMade() { // else it is closed
			close(p.made)
		}
		if s == nil {
			n.paths.left()
			n.work.run(freed) // not here: it takes locks of its own
		}
	}
	p.ours, p.peer, p.socket, p.rest, p.joined, p.why = nil, nil, nil, nil, false, why
	return s
}

// closePath closes a node's duplicate.
func (c *conn) closePath(s *path.Held, freed func()) {
	n := c.link.n
	n.counters.messages.carried(s.Moved())
	s.Close()
	n.paths.left()
	n.work.run(freed)
}

// mutePath ends the writes of this end's application: the peer's has closed. A path that is
// being made is none: the peer cannot have sent anything through it.
func (c *conn) mutePath() {
	p := &c.path
	p.mu.Lock()
	made := p.isMade()
	if made {
		p.socket.CloseWrite()
	}
	p.mu.Unlock()
	if !made {
		c.endPath()
	}
}

// hasPath reports whether the connection has a path that has not ended.
func (c *conn) hasPath() bool {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.socket != nil
}

// finishPath ends the path in order, behind the bytes that this end's application has written,
// and those that it has left to the node. The socket is kept, and counts, until all can have
// arrived: one that is closed with bytes unread resets, which can destroy them.
func (c *conn) finishPath() {
	defer c.link.forget(c)
	p := &c.path
	p.mu.Lock()
	freed, rest := p.freed, p.rest
	s := c.leavePathLocked(nil)
	p.over = true
	p.mu.Unlock()
	if s == nil {
		return
	}
	n := c.link.n
	n.counters.messages.carried(s.Moved()) // the end counts as a byte
	if len(rest) == 0 {
		s.CloseWrite()
	}
	f, err := s.Take()
	if err != nil { // it is closed
		c.closePath(s, freed)
		return
	}
	n.paths.finish(f, c.link.peer.Incarnation, len(rest) == 0) // before Leave looks
	n.work.run(func() {
		defer c.closePath(s, freed)
		defer f.Close()
		defer n.paths.finished(f)
		ctx := contextUntil(n.done)
		stop := context.AfterFunc(ctx, func() { f.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		ctx, stopAll := context.WithTimeout(ctx, pathDrainAll)
		defer stopAll()
		if len(rest) > 0 {
			f.SetWriteDeadline(time.Now().Add(pathDrainAll))
			// A removal may have cut the others before: then the link is down.
			if ctx.Err() != nil || isClosed(c.link.end.down) || path.SendRest(f, rest) != nil {
				path.Reset(f)
				return
			}
			n.paths.finish(f, c.link.peer.Incarnation, true)
		}
		drainSocket(ctx, f)
		awaitAcknowledged(ctx, f)
	})
}

// awaitAcknowledged waits until the peer's kernel has all bytes sent, and their end. The
// kernel does not notify: it is polled.
func awaitAcknowledged(ctx context.Context, f *os.File) {
	ask := time.NewTicker(20 * time.Millisecond)
	defer ask.Stop()
	for path.Unacknowledged(f) > 0 {
		select {
		case <-ask.C:
		case <-ctx.Done():
			return
		}
	}
}

// drainSocket reads until the peer's end, or until nothing has come for pathDrain.
func drainSocket(ctx context.Context, s *os.File) {
	path.Discard(s, func() bool {
		s.SetReadDeadline(time.Now().Add(pathDrain))
		return ctx.Err() == nil // its deadline may have been the one before
	})
}

// pathSilence is the least silence of a path that ends its connection: in less than that
// a network that loses one packet in ten may have lost every answer of the peer's kernel.
const pathSilence = 5 * time.Second

// watchPaths ends the connections with a silent path and a live link,
// as when a device between the nodes drops the one and not the other.
func (n *Node) watchPaths(now time.Duration) {
	bound := max(n.cfg.GiveUp, pathSilence)
	every := bound / 8
	if now-n.paths.looked < every {
		return
	}
	n.paths.looked = now
	for _, l := range n.allLinks() {
		for _, c := range l.allConns() {
			if quiet := max(c.path.silentFor(now, every), c.rma.out.silentFor(now, every), c.rma.in.silentFor(now, every)); quiet > bound {
				l.spawn(func() { c.reset(fmt.Sprintf("path silent %.1f s", quiet.Seconds())) })
			}
		}
	}
}

// resetTime bounds how long a connection that this node ends waits for the peer's node to answer.
const resetTime = time.Second

// reset ends the connection for cause, and lets the peer know it.
func (c *conn) reset(cause string) {
	c.mu.Lock()
	if isClosed(c.bye.closing) || c.bye.received || c.failed {
		c.mu.Unlock()
		c.endPath()
		return
	}
	c.blame(cause)
	c.mu.Unlock()
	c.refusePath(nil, fmt.Errorf("%s: %w", cause, status.NotSupp))
	c.endRMAPaths() // before the loss is reported: Close would wait for bytes that a silent path never brings
	c.awaitApplied()
	c.out.stop(attach.Lost(cause))
	c.in.lose(attach.Lost(cause))
	if bye := (wire.Close{Reset: true, Cause: cause}); c.canSay(bye) {
		bye.Sent = c.out.total()
		c.sendClose(bye)
		late := time.NewTimer(resetTime)
		defer late.Stop()
		select {
		case <-c.ended:
		case <-c.link.end.down:
		case <-late.C:
		}
	}
	c.fail(cause)
}
