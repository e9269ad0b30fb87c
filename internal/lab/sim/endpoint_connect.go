package sim

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// An attempt is one connect under way.
type attempt struct {
	e    *endpoint
	dst  addr.Addr
	c    *conn
	over bool
	done func(error)
}

var errNobodyAccepted = fmt.Errorf("%w: no accept in time", status.Refused)

// connect connects to dst within the node's bound.
func (e *endpoint) connect(dst addr.Addr, done func(error)) {
	if _, err := e.n.live(dst.Node); err != nil {
		done(err)
		return
	}
	if err := core.Check(core.CallConnect, e.state); err != nil {
		done(err)
		return
	}
	if e.state == core.Unbound {
		if _, err := e.bind(0); err != nil {
			done(err)
			return
		}
	}
	a := &attempt{e: e, dst: dst, done: done}
	e.state, e.trying = core.Connecting, a
	e.n.p.after(connectTimeout, func() { a.end(errNobodyAccepted) })
	a.enlist()
}

// enlist adds a connection to the link to the node, and asks.
func (a *attempt) enlist() {
	a.e.n.linkTo(a.dst.Node, func() bool { return a.over }, func(l *link, err error) {
		if a.over {
			return
		}
		if err != nil {
			a.end(err)
			return
		}
		c, err := l.add(a.e)
		if err == errLinkDown {
			a.e.n.p.hand(a.enlist)
			return
		}
		if err != nil {
			a.end(err)
			return
		}
		a.request(l, c)
	})
}

// request sends the connect request.
func (a *attempt) request(l *link, c *conn) {
	e := a.e
	a.c = c
	c.opsOut.stream, c.opsOut.busy = l.sess.open(), true // until the peer has granted
	c.opsOut.stream.room = c.kick
	e.conn, e.remote = c, a.dst
	l.onDown = append(l.onDown, func() { a.end(status.NoDevice) })
	c.opsOut.stream.write(wire.Connect{Conn: c.id, From: e.port, To: a.dst.Port, Limit: messageWindow}.AppendTo(nil))
	e.n.p.step(failpoint.ConnectSent)
}

// end ends the attempt. A failed one leaves the endpoint bound.
func (a *attempt) end(err error) {
	if a.over {
		return
	}
	e := a.e
	a.over = true
	if e.state == core.Connected && e.conn == a.c && a.c != nil {
		err = nil // granted in the same moment
	} else if e.state == core.Connecting {
		e.state, e.conn, e.trying = core.Bound, nil, nil
	}
	if err != nil && a.c != nil {
		a.c.fail(status.Reset) // ends the stream: the peer drops the request
		a.c.link.forget(a.c)
	}
	e.n.p.hand(func() { a.done(err) })
}

// granted makes c the endpoint's connection. It reports false if the endpoint
// has given up on it.
func (e *endpoint) granted(c *conn, f wire.Accept, r *frames) bool {
	if !e.n.p.step(failpoint.ConnectGranted) {
		return false
	}
	if e.conn != c || e.state != core.Connecting || c.failed {
		return false
	}
	c.opsIn.frames = r
	// The first frame notifies the acceptor that the grant has arrived.
	c.core.Queue(wire.Credit{Limit: messageWindow}.AppendTo(nil))
	c.opsOut.busy = false
	e.state = core.Connected
	a := e.trying
	e.trying = nil
	c.peer = f.Conn
	c.out.raise(f.Limit)
	c.kick()
	a.end(nil)
	return e.n.p.step(failpoint.ConnectConfirmed)
}

// refused passes on that the peer refused c.
func (e *endpoint) refused(c *conn, code status.Code) {
	if e.conn == c && e.trying != nil {
		e.trying.end(code)
	}
}

// A request is a connect request that waits in a listener's queue.
type request struct {
	link  *link
	frame wire.Connect
	r     *frames
	conn  *conn // set when it is accepted
}

func (r *request) refuse(code status.Code) {
	r.link.sendFrame(wire.Refuse{Peer: r.frame.Conn, Code: code}.AppendTo(nil))
	r.r.stream.drop()
}

// incoming handles a connect request, and then the connection's operations stream
// if it is accepted.
func (n *node) incoming(l *link, f wire.Connect, r *frames) {
	req := &request{link: l, frame: f, r: r}
	e := n.listeners[f.To]
	if e == nil || e.state != core.Listening {
		req.refuse(status.Refused)
		return
	}
	if !e.listener.Push(req) {
		req.refuse(status.Busy)
		return
	}
	r.stream.more = func() { e.requester(req) }
	e.changed.wake(e.n.p)
	e.grantNext()
	e.requester(req)
}

// requester looks at the stream of a request that may not be accepted yet: the peer sends
// nothing on it before, but may give up.
func (e *endpoint) requester(req *request) {
	if req.conn != nil {
		req.conn.readOps(req.r)
		return
	}
	h, _, err := req.r.Next()
	if err == errNothing {
		return
	}
	req.r.stream.more = nil
	e.listener.Remove(req)
	req.r.stream.drop()
	if err == nil {
		req.link.violated(fmt.Errorf("%w: %v before the connection was accepted", status.Protocol, h.Type))
	}
}

// accept waits for a connection.
func (e *endpoint) accept(done func(*endpoint, error)) {
	if err := core.Check(core.CallAccept, e.state); err != nil {
		done(nil, err)
		return
	}
	e.accepts = append(e.accepts, done)
	e.grantNext()
}

// grantNext gives confirmed connections to the calls that wait, and begins the grants that
// are due for the others.
func (e *endpoint) grantNext() {
	for len(e.accepts) > 0 {
		ep, ok := e.listener.Take()
		if !ok {
			break
		}
		done := e.accepts[0]
		e.accepts = e.accepts[1:]
		e.n.p.hand(func() { done(ep, nil) })
	}
	for e.state == core.Listening {
		r, ok := e.listener.Due(len(e.accepts), e.n.w.now)
		if !ok {
			return
		}
		ep := e.s.open()
		c, err := r.link.add(ep)
		if err != nil {
			e.s.forget(ep)
			r.refuse(status.Refused)
			continue // the requester's node went away
		}
		c.peer = r.frame.Conn
		c.out.raise(r.frame.Limit)
		e.n.ports.Retain(e.port)
		ep.state, ep.conn, ep.port, ep.holds = core.Connected, c, e.port, true
		ep.remote = addr.Addr{Node: r.link.peer.Incarnation.Node, Port: r.frame.From}
		r.conn = c
		e.listener.Begin(ep, e.n.w.now)
		e.grant(ep, c, r)
	}
}

// grant notifies the requester and hands the endpoint over when it has confirmed.
func (e *endpoint) grant(ep *endpoint, c *conn, r *request) {
	finish := once(func(ok bool) {
		c.onFirst = nil
		e.grantEnded(ep, c, ok && !c.failed)
	})
	c.opsOut.stream = c.link.sess.open()
	c.opsOut.stream.room = c.kick
	c.opsOut.stream.write(wire.Accept{Peer: c.peer, Conn: c.id, Limit: messageWindow}.AppendTo(nil))
	if !e.n.p.step(failpoint.AcceptGranted) {
		return
	}
	c.kick()
	c.onFirst = func() { e.n.p.hand(func() { finish(true) }) }
	c.link.onDown = append(c.link.onDown, func() { finish(false) })
	e.n.p.after(core.AcceptTimeout, func() { finish(false) })
	e.n.p.after(core.GrantPatience, e.grantNext)
	r.r.stream.more = c.pump
	c.readOps(r.r)
}

// grantEnded ends a grant.
func (e *endpoint) grantEnded(ep *endpoint, c *conn, ok bool) {
	keep := ok && e.state == core.Listening
	e.listener.End(ep, keep)
	if ok && !e.n.p.step(failpoint.AcceptConfirmed) {
		return
	}
	if keep {
		e.grantNext()
		return
	}
	if !ok {
		c.fail(status.Reset) // or close would wait for the requester
		// The stream's end may overtake the grant; then only this frame notifies the peer.
		c.link.sendFrame(wire.Refuse{Peer: c.peer, Code: status.Refused}.AppendTo(nil))
	}
	ep.end(wire.Close{Reset: true}, func(error) {})
	c.link.forget(c)
	e.grantNext()
}
