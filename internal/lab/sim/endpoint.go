package sim

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/portmap"
	"github.com/fabricd/fabricd/rma"
)

// A session is one application's use of a node.
type session struct {
	n         *node
	app       *app
	endpoints []*endpoint
	events    []nodeEvent // that wait for the application's handler
	leaving   bool        // the application is about to close it
	closing   bool
}

// publish hands an event to the application, which runs its handler soon, one
// at a time and in order.
func (s *session) publish(ev nodeEvent) {
	s.events = append(s.events, ev)
	if len(s.events) == 1 {
		s.serve()
	}
}

func (s *session) serve() {
	a := s.app
	a.p.after(between(s.n.p.rng, 0, 100*time.Microsecond), func() {
		a.event(s, s.events[0])
		if s.events = s.events[1:]; len(s.events) > 0 {
			s.serve()
		}
	})
}

// close closes every endpoint, as the death of the application does.
func (s *session) close() {
	s.closing = true
	for len(s.endpoints) > 0 {
		s.endpoints[0].end(wire.Close{Reset: true}, func(error) {})
	}
	n := s.n
	for i, o := range n.sessions {
		if o == s {
			n.sessions = append(n.sessions[:i:i], n.sessions[i+1:]...)
			break
		}
	}
}

func (s *session) forget(e *endpoint) {
	for i, o := range s.endpoints {
		if o == e {
			s.endpoints = append(s.endpoints[:i:i], s.endpoints[i+1:]...)
			return
		}
	}
}

// An endpoint is one endpoint of an application. It follows engine's endpoint.
type endpoint struct {
	n  *node
	s  *session
	id uint64

	state  core.State
	port   addr.Port
	holds  bool
	remote addr.Addr
	conn   *conn
	trying *attempt

	// In Listening.
	backlog   *portmap.Backlog[*request]
	confirmed []*endpoint
	granting  int
	accepts   []func(*endpoint, error) // calls that wait
	changed   []func()                 // polls that wait

	through bool     // close is
	ended   []func() // that wait for it
}

// whenThrough calls f when a close that is under way is through.
func (e *endpoint) whenThrough(f func()) {
	if e.through {
		f()
		return
	}
	e.ended = append(e.ended, f)
}

func (s *session) open() *endpoint {
	s.n.lastEP++
	e := &endpoint{n: s.n, s: s, id: s.n.lastEP}
	s.endpoints = append(s.endpoints, e)
	return e
}

func (e *endpoint) bind(port addr.Port) (addr.Port, error) {
	if err := portmap.CheckPrivilege(port, false); err != nil {
		return 0, err
	}
	if err := core.Check(core.CallBind, e.state); err != nil {
		return 0, err
	}
	port, err := e.n.ports.Bind(port, false)
	if err != nil {
		return 0, err
	}
	e.port, e.holds, e.state = port, true, core.Bound
	return port, nil
}

func (e *endpoint) releasePort() {
	if !e.holds {
		return
	}
	e.holds = false
	if e.n.listeners[e.port] == e {
		delete(e.n.listeners, e.port)
	}
	e.n.ports.Release(e.port)
}

func (e *endpoint) listen(backlog int) error {
	if err := core.Check(core.CallListen, e.state); err != nil {
		return err
	}
	e.backlog = portmap.NewBacklog[*request](min(backlog, core.MaxBacklog))
	e.state = core.Listening
	e.n.listeners[e.port] = e
	return nil
}

// connection returns the conn for a call that needs one.
func (e *endpoint) connection(c core.Call) (*conn, error) { return e.conn, core.Check(c, e.state) }

// disconnected records that c has ended from the peer's side.
func (e *endpoint) disconnected(c *conn) {
	if e.conn == c && e.state == core.Connected {
		e.state = core.Disconnected
		e.releasePort()
	}
	e.changedNow()
}

func (e *endpoint) changedNow() {
	waiting := e.changed
	e.changed = nil
	for _, f := range waiting {
		e.n.p.hand(f)
	}
}

// An attempt is one connect under way.
type attempt struct {
	e    *endpoint
	dst  addr.Addr
	c    *conn
	over bool
	done func(error)
}

var errNobodyAccepted = fmt.Errorf("%w: nobody accepted in time", status.Refused)

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
	c.lane, c.busy = l.sess.open(), true // until the peer has granted
	c.lane.room = c.kick
	e.conn, e.remote = c, a.dst
	l.onDown = append(l.onDown, func() { a.end(status.NoDevice) })
	c.lane.write(wire.Connect{Conn: c.id, From: e.port, To: a.dst.Port, Limit: messageWindow}.AppendTo(nil))
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
		a.c.fail(status.Reset) // ends the lane: the peer drops the request
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
	c.in = r
	// The first frame tells the acceptor that the grant has arrived.
	c.put(wire.Credit{Limit: messageWindow}.AppendTo(nil))
	c.busy = false
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
	r.link.say(wire.Refuse{Peer: r.frame.Conn, Code: code}.AppendTo(nil))
	r.r.lane.drop()
}

// incoming handles a connect request, and then the connection's operations lane
// if it is accepted.
func (n *node) incoming(l *link, f wire.Connect, r *frames) {
	req := &request{link: l, frame: f, r: r}
	e := n.listeners[f.To]
	if e == nil || e.state != core.Listening {
		req.refuse(status.Refused)
		return
	}
	if !e.backlog.Push(req) {
		req.refuse(status.Busy)
		return
	}
	r.lane.more = func() { e.requester(req) }
	e.changedNow()
	e.grantNext()
	e.requester(req)
}

// requester looks at the lane of a request that may not be accepted yet: its
// requester says nothing before, but may give up.
func (e *endpoint) requester(req *request) {
	if req.conn != nil {
		req.conn.serve(req.r)
		return
	}
	h, _, err := req.r.Next()
	if err == errNothing {
		return
	}
	req.r.lane.more = nil
	e.backlog.Remove(req)
	req.r.lane.drop()
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
	e.handOver()
	e.grantNext()
}

// handOver gives confirmed connections to the calls that wait.
func (e *endpoint) handOver() {
	for len(e.confirmed) > 0 && len(e.accepts) > 0 {
		ep, done := e.confirmed[0], e.accepts[0]
		e.confirmed, e.accepts = e.confirmed[1:], e.accepts[1:]
		e.n.p.hand(func() { done(ep, nil) })
	}
}

// grantPatience is how long an acceptor waits for one requester's confirmation
// before it grants the next request too.
const grantPatience = 250 * time.Millisecond

// grantNext begins a grant for every acceptor that has none yet.
func (e *endpoint) grantNext() {
	for e.state == core.Listening && e.granting < len(e.accepts) {
		if !e.grantOne() {
			return
		}
	}
}

// grantOne grants the oldest request. It reports false if there is none.
func (e *endpoint) grantOne() bool {
	for {
		r, ok := e.backlog.Pop()
		if !ok {
			return false
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
		ep.remote = addr.Addr{Node: r.link.peer.Life.Node, Port: r.frame.From}
		r.conn = c
		e.granting++
		e.grant(ep, c, r)
		return true
	}
}

// acceptTimeout bounds the wait for a requester to confirm a grant.
const acceptTimeout = 3 * time.Second

// grant tells the requester and hands the endpoint over when it has confirmed.
func (e *endpoint) grant(ep *endpoint, c *conn, r *request) {
	over := false
	finish := func(ok bool) {
		if over {
			return
		}
		over = true
		c.onFirst = nil
		e.grantEnded(ep, c, ok && !c.failed)
	}
	c.lane = c.link.sess.open()
	c.lane.room = c.kick
	c.lane.write(wire.Accept{Peer: c.peer, Conn: c.id, Limit: messageWindow}.AppendTo(nil))
	if !e.n.p.step(failpoint.AcceptGranted) {
		return
	}
	c.kick()
	c.onFirst = func() { e.n.p.hand(func() { finish(true) }) }
	c.link.onDown = append(c.link.onDown, func() { finish(false) })
	e.n.p.after(acceptTimeout, func() { finish(false) })
	e.n.p.after(grantPatience, func() {
		if !over && e.state == core.Listening {
			e.grantOne() // this one must not hold up the others
		}
	})
	r.r.lane.more = c.pump
	c.serve(r.r)
}

// grantEnded ends a grant.
func (e *endpoint) grantEnded(ep *endpoint, c *conn, ok bool) {
	e.granting--
	if ok && !e.n.p.step(failpoint.AcceptConfirmed) {
		return
	}
	if ok && e.state == core.Listening {
		e.confirmed = append(e.confirmed, ep)
		e.handOver()
		e.grantNext()
		return
	}
	if !ok {
		c.fail(status.Reset) // or close would wait for the requester
		// The lane's end may overtake the grant; then only this tells.
		c.link.say(wire.Refuse{Peer: c.peer, Code: status.Refused}.AppendTo(nil))
	}
	ep.end(wire.Close{Reset: true}, func(error) {})
	c.link.forget(c)
	e.grantNext()
}

// close closes the endpoint. A connection ends in order.
func (e *endpoint) close(done func(error)) { e.end(wire.Close{}, done) }

// end closes the endpoint, and its connection with bye.
func (e *endpoint) end(bye wire.Close, done func(error)) {
	if e.state == core.Closed {
		done(status.BadFD)
		return
	}
	before, c := e.state, e.conn
	e.state = core.Closed
	unclaimed, waiting := e.confirmed, e.accepts
	e.confirmed, e.accepts = nil, nil
	if before == core.Listening || c == nil {
		e.releasePort()
	}
	e.changedNow()
	if e.backlog != nil {
		for _, r := range e.backlog.Drain() {
			r.refuse(status.Refused)
		}
	}
	for _, f := range waiting {
		e.n.p.hand(func() { f(nil, status.Intr) })
	}
	for _, ep := range unclaimed {
		ep.end(wire.Close{Reset: true}, func(error) {})
	}
	if e.trying != nil {
		e.trying.end(status.Reset)
	}
	finish := func() {
		e.releasePort()
		e.through = true
		e.n.p.hand(func() {
			done(nil)
			for _, f := range e.ended {
				f()
			}
		})
	}
	e.s.forget(e)
	if before == core.Connected || before == core.Disconnected {
		c.close(bye, finish)
		return
	}
	finish()
}

// send sends all of p, which belongs to the endpoint until done.
func (e *endpoint) send(p []byte, done func(n int, err error)) {
	c, err := e.connection(core.CallSend)
	if err != nil {
		done(0, err)
		return
	}
	c.out.send(p, done)
}

// recv waits for bytes and takes at most n. An orderly end is io.EOF.
func (e *endpoint) recv(n int, done func(p []byte, err error)) {
	c, err := e.connection(core.CallRecv)
	if err != nil {
		done(nil, err)
		return
	}
	try := func() bool {
		p, err, ok := c.read(n)
		if ok {
			c.soon(func() { done(p, err) })
		}
		return ok
	}
	if len(c.readers) > 0 || !try() {
		c.readers = append(c.readers, try)
	}
}

// poll waits until the endpoint is disconnected or closed.
func (e *endpoint) poll(done func()) {
	if e.state != core.Connected {
		e.n.p.hand(done)
		return
	}
	e.changed = append(e.changed, func() { e.poll(done) })
}

// memoryCall is a call of the memory side that waits.
func (e *endpoint) memoryCall(quits bool, f func(c *conn, w *core.Waiter) (bool, error), done func(code status.Code, value uint64)) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		done(status.Of(err), 0)
		return
	}
	c.call(quits, func(w *core.Waiter) (bool, error) { return f(c, w) }, done)
}

func (e *endpoint) register(m *memory, done func(off int64, err error)) {
	var off int64
	e.memoryCall(true, func(c *conn, w *core.Waiter) (wait bool, err error) {
		off, err = c.core.Register(m, int64(len(m.bytes)), 0, rma.ProtRead|rma.ProtWrite, 0, w)
		return err == nil, err
	}, func(code status.Code, _ uint64) { done(off, asError(code)) })
}

func (e *endpoint) unregister(off, n int64, done func(error)) {
	e.memoryCall(true, func(c *conn, w *core.Waiter) (bool, error) { return c.core.Unregister(off, n, w) },
		func(code status.Code, _ uint64) { done(asError(code)) })
}

// transfer begins a write or read. A synchronous one is done when it has ended.
func (e *endpoint) transfer(l core.Local, roff int64, read bool, flags rma.Flags, done func(error)) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		done(err)
		return
	}
	var x *pending
	var w *core.Waiter
	if flags&rma.Sync != 0 {
		// While the caller's own memory is in use it must not have it back.
		x = &pending{quits: l.Buf == nil, done: func(code status.Code, _ uint64) { done(asError(code)) }}
		w = &x.Waiter
	}
	may := c.core.MayBegin
	if !read {
		may = c.core.MayChange(l, roff, l.Length)
	}
	c.begin(may, func() error {
		if x != nil {
			c.calls = append(c.calls, x)
		}
		var err error
		if read {
			_, err = c.core.Read(l, roff, flags, w)
		} else {
			_, err = c.core.Write(l, roff, flags, w)
		}
		return err
	}, func(err error) {
		if x == nil {
			done(err)
		} else if err != nil {
			c.drop(x)
			done(err)
		}
	})
}

// drop takes back a call that was never begun.
func (c *conn) drop(x *pending) {
	for i, o := range c.calls {
		if o == x {
			c.calls = append(c.calls[:i:i], c.calls[i+1:]...)
			return
		}
	}
}

func (e *endpoint) fetchAdd(roff int64, delta uint64, done func(old uint64, err error)) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		done(0, err)
		return
	}
	x := &pending{quits: true, done: func(code status.Code, v uint64) { done(v, asError(code)) }}
	c.begin(c.core.MayChange(core.Local{}, roff, 8), func() error {
		c.calls = append(c.calls, x)
		return c.core.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff, Operand: delta}, &x.Waiter)
	}, func(err error) {
		if err != nil {
			c.drop(x)
			done(0, err)
		}
	})
}

func (e *endpoint) mark(by fence.Side, done func(fence.Mark, error)) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		done(fence.Mark{}, err)
		return
	}
	if by == fence.InitSelf {
		done(c.core.MarkSelf(), nil)
		return
	}
	c.call(true, func(w *core.Waiter) (bool, error) { return true, c.core.MarkPeer(w) },
		func(code status.Code, v uint64) { done(fence.Mark{Side: fence.InitPeer, Seq: v}, asError(code)) })
}

func (e *endpoint) wait(m fence.Mark, done func(error)) {
	e.memoryCall(true, func(c *conn, w *core.Waiter) (bool, error) { return c.core.Wait(m, w) },
		func(code status.Code, _ uint64) { done(asError(code)) })
}

func (e *endpoint) signal(s fence.Signal, done func(error)) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		done(err)
		return
	}
	c.begin(c.core.MayBegin, func() error { return c.core.Signal(s) }, done)
}

func asError(code status.Code) error {
	if code == status.OK {
		return nil
	}
	return code
}
