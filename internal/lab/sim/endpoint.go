package sim

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/verdict"
	"github.com/fabricd/fabricd/portmap"
	"github.com/fabricd/fabricd/rma"
)

// A session is one application's use of a node.
type session struct {
	n         *node
	app       *app
	endpoints []*endpoint
	events    []verdict.Event // that wait for the application's handler
	leaving   bool            // the application is about to close it
	closing   bool
}

// publish hands an event to the application, which runs its handler soon, one
// at a time and in order.
func (s *session) publish(e verdict.Event) {
	s.events = append(s.events, e)
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
	s.endpoints = slices.DeleteFunc(slices.Clone(s.endpoints), func(o *endpoint) bool { return o == e })
}

// An endpoint is one endpoint of an application. It follows engine's endpoint.
type endpoint struct {
	n *node
	s *session

	state  core.State
	port   addr.Port
	holds  bool
	remote addr.Addr
	conn   *conn
	trying *attempt

	listener core.Listener[*request, *endpoint]
	accepts  []func(*endpoint, error) // calls that wait
	changed  []func()                 // polls that wait

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
	e := &endpoint{n: s.n, s: s}
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
	e.listener.Backlog = *portmap.NewBacklog[*request](min(backlog, core.MaxBacklog))
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
	requests, granting, unclaimed := e.listener.Close()
	waiting := e.accepts
	e.accepts = nil
	if before == core.Listening || c == nil {
		e.releasePort()
	}
	e.changedNow()
	for _, r := range requests {
		r.refuse(status.Refused)
	}
	for _, ep := range granting {
		ep.releasePort()
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
	c.calls = slices.DeleteFunc(slices.Clone(c.calls), func(o *pending) bool { return o == x })
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
