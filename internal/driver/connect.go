package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// An attempt is one connect under way. Its result is set before done is closed.
type attempt struct {
	verdict chan status.Code // the peer's answer, capacity 1
	closed  chan struct{}    // the endpoint's gone
	done    chan struct{}
	port    addr.Port
	err     error
}

func newAttempt(closed chan struct{}) *attempt {
	return &attempt{verdict: make(chan status.Code, 1), closed: closed, done: make(chan struct{})}
}

func (a *attempt) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// answer passes on the peer's answer; only the first counts.
func (a *attempt) answer(code status.Code) {
	select {
	case a.verdict <- code:
	default:
	}
}

func (e *endpoint) Connect(ctx context.Context, dst addr.Addr) (addr.Port, error) {
	a, err := e.begin(dst, false)
	if err != nil || a.ended() {
		if err == nil {
			return a.port, a.err
		}
		return 0, err
	}
	e.attempt(ctx, a, dst)
	return a.port, a.err
}

func (e *endpoint) TryConnect(dst addr.Addr) (addr.Port, error) {
	a, err := e.begin(dst, true)
	if err != nil {
		return 0, err
	}
	if a.ended() {
		return a.port, a.err
	}
	e.n.work.run(func() { e.attempt(context.Background(), a, dst) })
	return 0, status.InProgress
}

// begin checks a connect in SCIF's order (node, port, state, a port to bind)
// and begins an attempt. An attempt that has ended is the result of an earlier
// non-blocking one, which is returned once.
func (e *endpoint) begin(dst addr.Addr, async bool) (*attempt, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	if err := e.n.knows(dst.Node); err != nil {
		return nil, err
	}
	if dst.Port == 0 {
		return nil, status.Invalid
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.async; a != nil && e.state != core.Closed {
		if !a.ended() {
			if async {
				return nil, status.InProgress
			}
			return nil, status.IsConn
		}
		e.async = nil
		return a, nil
	}
	if err := core.Check(core.CallConnect, e.state); err != nil {
		return nil, err
	}
	if e.state == core.Unbound {
		if _, err := e.bindLocked(0); err != nil {
			return nil, err
		}
	}
	a := newAttempt(e.gone)
	e.state = core.Connecting
	e.trying = a
	if async {
		e.async = a
	}
	return a, nil
}

// knows reports status.NoDevice for a node that is not live.
func (n *Node) knows(id addr.NodeID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == n.self.Life.Node && n.self.Life.Generation != 0 && !n.closed {
		return nil
	}
	_, err := n.liveLocked(id)
	return err
}

// attempt carries out a connect that began and sets its result. A failed one
// leaves the endpoint bound, ready for another.
func (e *endpoint) attempt(ctx context.Context, a *attempt, dst addr.Addr) {
	limit, cancel := context.WithTimeoutCause(ctx, e.n.cfg.ConnectTimeout, errNobodyAccepted)
	defer cancel()
	limit, quit := context.WithCancelCause(limit)
	defer quit(nil)
	defer e.onGone(func() { quit(status.Reset) })()
	c, err := e.request(limit, dst)
	if err == nil {
		err = e.awaitVerdict(limit, a, c)
	}
	e.mu.Lock()
	if e.state == core.Connected && e.conn == c && c != nil {
		err = nil // granted in the same moment
	}
	switch {
	case err == nil:
		a.port = e.port
	case e.state == core.Connecting:
		e.state, e.conn, e.trying = core.Bound, nil, nil
	}
	a.err = err
	e.mu.Unlock()
	if err != nil && c != nil {
		c.fail(status.Reset) // ends the lane: the peer drops the request
		c.link.forget(c)
	}
	close(a.done)
	e.changed()
}

var errNobodyAccepted = fmt.Errorf("%w: nobody accepted in time", status.Refused)

// linkTries is how many links a connect takes that end under it.
const linkTries = 3

// request sends the connect request. A link that its other end has just given
// up, and that ends while the request is being written, is replaced: the node
// may well be live, and nobody there has seen the request.
func (e *endpoint) request(ctx context.Context, dst addr.Addr) (*conn, error) {
	for try := 1; ; try++ {
		c, err := e.requestOnce(ctx, dst)
		// A lane may have its session's end before the session says so.
		ended := closeError(err) != nil || c != nil && c.link.sess.Err() != nil
		if err == nil || c == nil || try == linkTries || ctx.Err() != nil || !ended {
			return c, err
		}
		e.mu.Lock()
		if e.conn == c {
			e.conn = nil
		}
		e.mu.Unlock()
		c.fail(status.Reset)
		c.link.forget(c)
		select {
		case <-c.link.down: // by then the node has forgotten the link
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (e *endpoint) requestOnce(ctx context.Context, dst addr.Addr) (*conn, error) {
	l, c, err := e.enlist(ctx, dst.Node)
	if err != nil {
		return nil, err
	}
	lane, err := l.sess.OpenLane(ctx)
	if err != nil {
		return c, linkError(ctx, err)
	}
	c.mu.Lock()
	c.ops.lane, c.ops.busy = lane, true // until the peer has granted
	failed := c.failed
	c.mu.Unlock()
	if failed { // before it had the lane to cancel
		lane.Cancel()
		return c, linkError(ctx, status.Reset)
	}
	e.mu.Lock()
	closed := e.state == core.Closed
	if !closed {
		e.holdLocked(c)
		e.remote = dst
	}
	from := e.port
	e.mu.Unlock()
	if closed {
		return c, status.Reset
	}
	frame := wire.Connect{Conn: c.id, From: from, To: dst.Port, Limit: uint64(e.n.cfg.MessageWindow)}
	if _, err := lane.Write(frame.AppendTo(nil)); err != nil {
		return c, linkError(ctx, err)
	}
	if err := e.n.cfg.Faults.Hit(failpoint.ConnectSent); err != nil {
		return c, linkError(ctx, err)
	}
	return c, nil
}

// enlist adds a connection to the link to a node. A link that is found down is
// replaced as long as the node is live and ctx not done.
func (e *endpoint) enlist(ctx context.Context, node addr.NodeID) (*link, *conn, error) {
	for {
		l, err := e.n.linkTo(ctx, node)
		if err != nil {
			return nil, nil, err
		}
		c, err := l.add(e)
		if err != errLinkDown {
			return l, c, err
		}
		<-l.down // by then the node has forgotten the link
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
	}
}

// linkError is the error of a connect whose link broke: the node cannot be
// reached any more.
func linkError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", status.NoDevice, err)
}

// awaitVerdict waits for the peer's answer.
func (e *endpoint) awaitVerdict(ctx context.Context, a *attempt, c *conn) error {
	select {
	case code := <-a.verdict:
		if code != status.OK {
			return code
		}
		return nil
	case <-c.link.down:
		return status.NoDevice
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// granted makes c the endpoint's connection. It reports false if the endpoint
// has given up on it.
func (e *endpoint) granted(c *conn, f wire.Accept, lane transport.RecvLane) bool {
	if e.n.cfg.Faults.Hit(failpoint.ConnectGranted) != nil {
		return false
	}
	e.mu.Lock()
	if e.conn != c || e.state != core.Connecting {
		e.mu.Unlock()
		return false
	}
	c.mu.Lock()
	if c.failed { // the connect is about to notice
		c.mu.Unlock()
		e.mu.Unlock()
		return false
	}
	c.opsIn = lane
	// The first frame tells the acceptor that the grant has arrived.
	c.ops.put(wire.Credit{Limit: uint64(e.n.cfg.MessageWindow)}.AppendTo(nil))
	c.ops.busy = false
	c.mu.Unlock()
	e.state = core.Connected
	a := e.trying
	e.trying = nil
	c.peer = f.Conn
	c.out.raise(f.Limit)
	e.linked.Store(c) // last: whoever finds it there needs no lock
	e.mu.Unlock()
	c.kick(false)
	a.answer(status.OK)
	_ = e.n.cfg.Faults.Hit(failpoint.ConnectConfirmed)
	return true
}

// refused passes on that the peer refused c.
func (e *endpoint) refused(c *conn, code status.Code) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == c && e.trying != nil {
		e.trying.answer(code)
	}
}

// acceptTimeout bounds the wait for a requester to confirm a grant (SCIF's 3 s).
const acceptTimeout = 3 * time.Second
