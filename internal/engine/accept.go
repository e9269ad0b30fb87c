package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// listening is the state of an endpoint in Listening. Guarded by endpoint.mu, but for waits.
type listening struct {
	core.Listener[*request, *endpoint]
	waits     gate // something waits for a call that accepts
	acceptors int  // calls that accept
	hold      bool // Hold was called: acceptors get requests that are not granted

	allow    []access.Subject // callers that may connect; nil: all that the node's rules allow
	refused  uint64           // connects, by the node's rules or by allow
	overflow uint64           // connects that found the queue full
	refusals refusals         // by allow

	service string    // that is served; empty: none
	barred  bool      // the host does not announce it, and no Accept has failed for that yet
	port    addr.Port // at which the endpoint listens; guarded by Node.mu, 0 before Listen
}

// A request is a connect request that waits in a listener's queue.
type request struct {
	link   *link
	frame  wire.Connect
	stream transport.RecvStream
	from   access.Caller
	conn   *conn // set when it is accepted; guarded by the listener's mu
}

// refuse notifies the requester. A whole backlog may be refused at once, which the control
// stream has no room for: each waits for its turn.
func (r *request) refuse(code status.Code) {
	r.link.spawn(func() {
		r.link.sendFrameInTurn(wire.Refuse{Peer: r.frame.Conn, Code: code}.AppendTo(nil))
		r.stream.Cancel()
	})
}

// incoming handles a connect request, and then the connection's operations stream if it is
// accepted. It runs on the stream's reader. An error is a violation of the protocol by the peer.
func (n *Node) incoming(req *request, r *wire.Reader) error {
	e := n.ask(req)
	if e == nil {
		return nil
	}
	h, body, err := r.Next() // the requester sends nothing before it is accepted
	if c := e.claim(req); c != nil {
		c.readOn(r, req.stream, h, body, err)
		return nil
	}
	req.stream.Cancel()
	if err == nil {
		return fmt.Errorf("%w: %v before the connection was accepted", status.Protocol, h.Type)
	}
	return nil
}

// ask queues a request at the endpoint that listens for it, which it returns; or refuses it
// and returns nil.
func (n *Node) ask(req *request) *endpoint {
	l, f := req.link, &req.frame
	n.mu.Lock()
	e := n.listeners[f.To]
	if !n.servedLocked(e, f.Service) {
		e = nil
	}
	req.from = n.callerLocked(l, f.UID)
	n.mu.Unlock()
	// The rules first: a connect that they refuse looks the same with a listener and without.
	code := status.Refused
	admitted := n.admits(l, e, f.To, req.from)
	if admitted && e != nil {
		code = e.enqueue(req)
	}
	n.counters.incoming(incomingResult(code, admitted))
	if code == status.OK {
		return e
	}
	// Many may ask at once. Their streams bound them, so this one waits
	// rather than let the answers overrun the control stream.
	l.sendFrameInTurn(wire.Refuse{Peer: f.Conn, Code: code}.AppendTo(nil))
	req.stream.Cancel()
	return nil
}

// enqueue puts a request into the queue. It returns status.Busy if that is full,
// status.Refused if the endpoint does not listen any more.
func (e *endpoint) enqueue(r *request) status.Code {
	e.mu.Lock()
	listens := e.state == core.Listening
	ok := listens && e.listening.Push(r)
	if listens && !ok {
		e.listening.overflow++
	}
	e.mu.Unlock()
	switch {
	case !listens:
		return status.Refused
	case !ok:
		return status.Busy
	}
	e.listening.waits.signal()
	e.changed()
	return status.OK
}

// RefuseWaiting refuses the requests that wait, because the application has no room
// for their connections.
func (e *endpoint) RefuseWaiting() {
	e.mu.Lock()
	waiting := e.listening.Drain()
	e.mu.Unlock()
	for _, r := range waiting {
		r.refuse(status.Refused)
	}
}

// claim returns the connection that a request has become, or takes the request out of the queue.
func (e *endpoint) claim(r *request) *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.conn == nil {
		e.listening.Remove(r)
	}
	return r.conn
}

// Accept waits for a request, grants it and waits for the confirmation. Once a grant is under way
// ctx does not end it: the requester may have been notified already, and would lose its connection.
func (e *endpoint) Accept(ctx context.Context) (attach.NodeEndpoint, addr.Addr, error) {
	return e.accept(ctx, true)
}

// TryAccept accepts the first request that still has its requester. It waits
// for nothing but the requester's confirmation.
func (e *endpoint) TryAccept() (attach.NodeEndpoint, addr.Addr, error) {
	return e.accept(context.Background(), false)
}

func (e *endpoint) accept(ctx context.Context, wait bool) (attach.NodeEndpoint, addr.Addr, error) {
	e.accepting(1)
	defer e.accepting(-1)
	for {
		if err := e.takeBar(); err != nil {
			return nil, addr.Addr{}, err
		}
		ep, patience, err := e.next()
		if err != nil {
			return nil, addr.Addr{}, err
		}
		if ep != nil {
			return ep, ep.RemoteAddr(), nil
		}
		if patience == 0 && !wait {
			return nil, addr.Addr{}, status.Again
		}
		if err = e.awaitGrant(ctx, patience); err != nil {
			return nil, addr.Addr{}, err
		}
	}
}

// accepting counts the calls that accept.
func (e *endpoint) accepting(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listening.acceptors += n
}

// awaitGrant waits for a request or, with patience, for a grant under way, but not longer.
func (e *endpoint) awaitGrant(ctx context.Context, patience time.Duration) error {
	var over <-chan time.Time
	done := ctx.Done()
	if patience > 0 {
		t := time.NewTimer(patience)
		defer t.Stop()
		over, done = t.C, nil
	}
	select {
	case <-e.listening.waits:
	case <-over:
	case <-e.gone:
		return status.Intr
	case <-done:
		return context.Cause(ctx)
	}
	return nil
}

// next returns an endpoint that its requester has confirmed. If there is none it
// begins the grants that are due, and returns the patience with those under way.
func (e *endpoint) next() (*endpoint, time.Duration, error) {
	for {
		r, ep, patience, err := e.step()
		switch {
		case r == nil:
			return ep, patience, err
		case ep != nil && ep.held.Load():
			return ep, 0, nil
		case ep != nil:
			e.n.work.run(func() {
				defer guard.Recover(r.link.panicked)
				e.grant(ep, r.conn)
			})
			continue
		}
		r.refuse(status.Refused)
		if err != nil {
			return nil, 0, err
		}
	}
}

// grant notifies the requester of c and hands its endpoint to the acceptors when
// the requester has confirmed.
func (e *endpoint) grant(ep *endpoint, c *conn) {
	err := c.grantTo(e.gone)
	e.mu.Lock()
	keep := err == nil && e.state == core.Listening
	e.listening.End(ep, keep)
	if !keep {
		ep.releasePort() // Close of e does not see it any more
	}
	e.mu.Unlock()
	e.listening.waits.signal()
	if keep {
		c.noteOpen()
		e.changed()
		return
	}
	if err != nil {
		c.refuse(status.Refused)
	}
	ep.Abort(causeListenerClosed)
	c.link.forget(c)
}

// refuse ends a connection that its requester has not confirmed.
func (c *conn) refuse(code status.Code) {
	c.fail("") // or Abort would wait for the requester
	// The stream's end may overtake a grant; then only this reports it.
	c.link.sendFrameInTurn(wire.Refuse{Peer: c.peer, Code: code}.AppendTo(nil))
}

// Hold is attach.NodeEndpoint's.
func (e *endpoint) Hold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listening.hold = true
}

// Settle is attach.NodeEndpoint's.
func (e *endpoint) Settle(code status.Code) error {
	if !e.held.Swap(false) {
		return nil
	}
	c := e.lastConn()
	if code == status.OK {
		err := c.grantTo(e.gone)
		if err == nil {
			c.noteOpen()
			return nil
		}
		code = status.Refused
	}
	c.refuse(code)
	return code
}

// step is one step of next. A request that it returns is to be granted with the endpoint
// or, without one, to be refused: it has become void, or there is an error.
func (e *endpoint) step() (*request, *endpoint, time.Duration, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ep, ok := e.listening.Take(); ok {
		if e.listening.Waiting() > 0 {
			e.listening.waits.signal() // for another acceptor
		}
		return nil, ep, 0, nil
	}
	if err := core.Check(core.CallAccept, e.state); err != nil {
		return nil, nil, 0, err
	}
	now := e.n.now()
	r, ok := e.listening.Due(e.listening.acceptors, now)
	if !ok {
		return nil, nil, e.listening.Patience(now), nil
	}
	ep, err := e.s.newEndpoint()
	if err != nil {
		return r, nil, 0, err
	}
	c, err := r.link.add(ep)
	if err != nil {
		e.s.forget(ep)
		return r, nil, 0, nil // the requester's node went away, or there is no room for another connection
	}
	if !ep.take(c, r, e.port) {
		r.link.forget(c)
		c.release()
		return r, nil, 0, status.BadFD // the session is closing
	}
	r.conn = c
	if ep.held.Store(e.listening.hold); !e.listening.hold {
		e.listening.Begin(ep, now)
	}
	return r, ep, 0, nil
}

// take makes a fresh endpoint the accepted end of c, on its listener's port. It
// reports false if the endpoint has been closed meanwhile, by its session.
func (e *endpoint) take(c *conn, r *request, port addr.Port) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != core.Unbound {
		return false
	}
	e.peer = new(r.from)
	c.peer = r.frame.Conn
	c.out.raise(r.frame.Limit)
	c.mu.Lock()
	c.opsIn = r.stream
	c.mu.Unlock()
	e.n.mu.Lock()
	e.n.ports.Retain(port)
	e.n.mu.Unlock()
	e.holdLocked(c)
	e.state, e.port, e.holds = core.Connected, port, true
	e.remote = addr.Addr{Node: r.link.peer.Incarnation.Node, Port: r.frame.From}
	if r.link.otherEnd != nil {
		if otherEnd := r.link.otherEnd.conn(r.frame.Conn); otherEnd != nil {
			c.otherEnd.Store(otherEnd)
			otherEnd.otherEnd.Store(c)
		}
	}
	e.linked.Store(c) // last: a goroutine that finds it there needs no lock
	return true
}

// causeListenerClosed is the cause of the end of a connection that no acceptor took.
const causeListenerClosed = "its listener was closed"

var errRequesterGone = errors.New("the requester is gone")

// grantTo notifies the requester and waits until it has confirmed. The error is
// errRequesterGone, or status.Intr when gone is closed.
func (c *conn) grantTo(gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), core.AcceptTimeout)
	defer cancel()
	stream, err := c.openOps(ctx)
	if err != nil {
		return errRequesterGone
	}
	stream.SetWriteDeadline(time.Now().Add(core.AcceptTimeout))
	_, err = stream.Write(wire.Accept{Peer: c.peer, Conn: c.id, Limit: uint64(c.in.window)}.AppendTo(nil))
	stream.SetWriteDeadline(time.Time{})
	c.mu.Lock()
	c.ops.busy = false
	c.mu.Unlock()
	if err == nil {
		err = c.link.n.cfg.Faults.Hit(failpoint.AcceptGranted)
	}
	if err != nil {
		return errRequesterGone
	}
	c.kick(false)
	select {
	case <-c.first:
	case <-c.link.end.down:
		return errRequesterGone
	case <-ctx.Done():
		return errRequesterGone
	case <-gone:
		return status.Intr
	}
	if c.isFailed() || c.link.n.cfg.Faults.Hit(failpoint.AcceptConfirmed) != nil {
		return errRequesterGone
	}
	return nil
}
