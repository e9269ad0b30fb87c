package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// dialing are an endpoint's connects. The endpoint's mu guards it.
type dialing struct {
	under  *attempt // in Connecting
	result *attempt // a non-blocking connect with a result not fetched yet
}

// An attempt is one connect under way. Its result is set before done is closed.
type attempt struct {
	verdict chan status.Code // the peer's answer, capacity 1
	closed  chan struct{}    // the endpoint's gone
	service string           // that the peer has to serve; empty: any
	done    chan struct{}
	port    addr.Port
	err     error
}

func newAttempt(closed chan struct{}) *attempt {
	return &attempt{verdict: make(chan status.Code, 1), closed: closed, done: make(chan struct{})}
}

func (a *attempt) ended() bool { return isClosed(a.done) }

// answer passes on the peer's answer; only the first counts.
func (a *attempt) answer(code status.Code) {
	select {
	case a.verdict <- code:
	default:
	}
}

func (e *endpoint) Connect(ctx context.Context, dst addr.Addr) (addr.Port, error) {
	return e.connect(ctx, dst, "")
}

// connect is Connect to the endpoint that serves the name, unless that is empty.
func (e *endpoint) connect(ctx context.Context, dst addr.Addr, service string) (addr.Port, error) {
	a, err := e.begin(dst, false)
	if err != nil || a.ended() {
		if err == nil {
			return a.port, a.err
		}
		return 0, err
	}
	a.service = service
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

// begin checks a connect in SCIF's order (node, port, state, a port to bind) and begins an attempt.
// An attempt that has ended is the result of an earlier non-blocking one, which is returned once.
func (e *endpoint) begin(dst addr.Addr, async bool) (*attempt, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	if err := e.n.knows(dst.Node); err != nil {
		e.n.counters.outgoing(err)
		return nil, err
	}
	if dst.Port == 0 {
		return nil, status.Invalid
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.dialing.result; a != nil && e.state != core.Closed {
		if !a.ended() {
			if async {
				return nil, status.InProgress
			}
			return nil, status.IsConn
		}
		e.dialing.result = nil
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
	e.dialing.under = a
	if async {
		e.dialing.result = a
	}
	return a, nil
}

// knows reports status.NoDevice for a node that is not live.
func (n *Node) knows(id addr.NodeID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == n.self.Incarnation.Node && n.self.Incarnation.Generation != 0 && !n.closed {
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
	c, err := e.request(limit, a, dst)
	e.mu.Lock()
	if c != nil && e.grantedLocked(c) {
		err = nil // in the same moment
	}
	switch {
	case err == nil:
		a.port = e.port
	case e.state == core.Connecting:
		e.state, e.conn, e.dialing.under = core.Bound, nil, nil
	}
	a.err = err
	e.mu.Unlock()
	e.n.counters.outgoing(err)
	if err == nil {
		c.noteOpen()
	} else {
		e.n.cfg.Record.Note(flight.Failed, "connect-failed", addr.Incarnation{Node: dst.Node}, "", fmt.Sprintf("to %v: %v", dst, err))
	}
	if err != nil && c != nil {
		c.fail("") // ends the stream: the peer drops the request
		c.link.forget(c)
		c.release()
	}
	close(a.done)
	e.changed()
}

var errNobodyAccepted = fmt.Errorf("%w: no accept in time", status.Refused)

// linkTries is how many links a connect takes that end under it.
const linkTries = 3

// relinkPatience is how long a connect waits for another link: a node that is there answers soon,
// and one that is not must not keep a connect that waits much longer than its silence is borne.
func (n *Node) relinkPatience() time.Duration { return n.cfg.SilenceBound / 2 }

// request sends the connect request and waits for the peer's answer. A link that its other end has
// given up, or has replaced by a newer one, takes the request with it, but not the connect: the
// node may well be live. A request that was granted there has not been confirmed, and acceptors get
// confirmed ones only: none sees two.
func (e *endpoint) request(ctx context.Context, a *attempt, dst addr.Addr) (*conn, error) {
	for try, waited := 1, false; ; try++ {
		c, err := e.enlist(ctx, dst.Node, waited)
		if err != nil {
			return c, err
		}
		again := false
		if err = e.send(ctx, a, c, dst); err != nil {
			again, waited = c.link.endedUnder(ctx, err), false
		} else if err = e.awaitVerdict(ctx, a, c); err == errLinkDown {
			again, waited = e.n.mayPass(c.link), true
		}
		if err == nil || !again || try == linkTries || !e.withdraw(c) {
			return c, err
		}
	}
}

// endedUnder reports whether a request could not be written, for err, because the
// link has ended. By then the node has forgotten the link.
func (l *link) endedUnder(ctx context.Context, err error) bool {
	// A stream may have its session's end before the session reports it.
	if closeError(err) == nil && l.sess.Err() == nil || ctx.Err() != nil {
		return false
	}
	select {
	case <-l.end.down:
		return true
	case <-ctx.Done():
		return false
	}
}

// grantedLocked reports whether the peer has granted c, which may have ended
// since. The caller holds mu.
func (e *endpoint) grantedLocked(c *conn) bool {
	return e.conn == c && (e.state == core.Connected || e.state == core.Disconnected)
}

// withdraw takes back the request of c, so that the endpoint can send another one. It reports false
// if c has been granted in the same moment, or the endpoint has been closed.
func (e *endpoint) withdraw(c *conn) bool {
	e.mu.Lock()
	if e.state != core.Connecting {
		e.mu.Unlock()
		return false
	}
	e.conn = nil
	e.mu.Unlock()
	c.fail("")
	c.link.forget(c)
	c.release()
	return true
}

// send opens the stream of c and writes the request.
func (e *endpoint) send(ctx context.Context, a *attempt, c *conn, dst addr.Addr) error {
	stream, err := c.openOps(ctx)
	if err != nil {
		return linkError(ctx, err)
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
		return status.Reset
	}
	frame := wire.Connect{Conn: c.id, From: from, To: dst.Port, Limit: uint64(c.in.window), UID: e.s.cred.UID}
	if c.link.version >= serviceVersion {
		frame.Service = a.service
	}
	if _, err := stream.Write(frame.AppendTo(nil)); err != nil {
		return linkError(ctx, err)
	}
	if err := e.n.cfg.Faults.Hit(failpoint.ConnectSent); err != nil {
		return linkError(ctx, err)
	}
	return nil
}

// enlist adds a connection to the link to a node. A link that is found down is
// replaced as long as the node is live and ctx not done. One for a request that has
// waited on another link is there within relinkPatience.
func (e *endpoint) enlist(ctx context.Context, node addr.NodeID, waited bool) (*conn, error) {
	if waited {
		soon, cancel := context.WithTimeoutCause(ctx, e.n.relinkPatience(), errNoLink)
		defer cancel()
		ctx = soon
	}
	for {
		l, err := e.n.linkTo(ctx, node)
		if err != nil {
			return nil, err
		}
		c, err := l.add(e)
		if err != errLinkDown {
			return c, err
		}
		<-l.end.down // by then the node has forgotten the link
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// linkError is the error of a connect when its link broke: the node cannot be reached any more.
func linkError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return unreachable{err}
}

// codeError returns code as an error, nil for status.OK.
func codeError(code status.Code) error {
	if code == status.OK {
		return nil
	}
	return code
}

// awaitVerdict waits for the peer's answer. The error is errLinkDown if the link ends first.
func (e *endpoint) awaitVerdict(ctx context.Context, a *attempt, c *conn) error {
	select {
	case code := <-a.verdict:
		return codeError(code)
	case <-c.link.end.down:
		select {
		case code := <-a.verdict: // came before the end
			return codeError(code)
		default:
			return errLinkDown
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// granted makes c the endpoint's connection. It reports false if the endpoint has given up on it.
func (e *endpoint) granted(c *conn, f wire.Accept, stream transport.RecvStream) bool {
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
	c.opsIn = stream
	// The first frame reports to the acceptor that the grant has arrived.
	c.core.Queue(wire.Credit{Limit: uint64(c.in.window)}.AppendTo(nil))
	c.ops.busy = false
	c.mu.Unlock()
	e.state = core.Connected
	a := e.dialing.under
	e.dialing.under = nil
	c.peer = f.Conn
	c.out.raise(f.Limit)
	e.linked.Store(c) // last: a goroutine that finds it there needs no lock
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
	if e.conn == c && e.dialing.under != nil {
		e.dialing.under.answer(code)
	}
}
