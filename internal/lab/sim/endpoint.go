package sim

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/lab/load"
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
	s.n.sessions = without(s.n.sessions, s)
}

func (s *session) forget(e *endpoint) { s.endpoints = without(s.endpoints, e) }

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
	stored func() // a word of a window was stored; nil: not watched

	listener core.Listener[*request, *endpoint]
	accepts  []func(*endpoint, error) // calls that wait
	changed  waiters                  // polls

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

// disconnected records that c has ended from the peer's side.
func (e *endpoint) disconnected(c *conn) {
	if e.conn == c && e.state == core.Connected {
		e.state = core.Disconnected
		e.releasePort()
	}
	e.changed.wake(e.n.p)
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
	e.changed.wake(e.n.p)
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

// perform makes a call that package load asks for. Its answer is the result, but for
// the status.
func (e *endpoint) perform(c load.Call, done func(load.Result, error)) {
	kind := core.CallMemory
	switch c.Do {
	case load.Poll:
		e.poll(func() { done(load.Result{}, nil) })
		return
	case load.Send:
		kind = core.CallSend
	case load.Recv:
		kind = core.CallRecv
	}
	x := e.conn
	if err := core.Check(kind, e.state); err != nil {
		done(load.Result{}, err)
		return
	}
	switch c.Do {
	case load.Send:
		x.out.send(c.Data, func(n int, err error) { done(load.Result{N: int64(n)}, err) })
	case load.Recv:
		x.recv(c.Len, func(p []byte, err error) { done(load.Result{N: int64(len(p)), Data: p}, err) })
	case load.Transfer:
		x.transfer(c, func(_ uint64, err error) { done(load.Result{}, err) })
	default:
		x.memory(c, e.stored, done)
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

// recv waits for bytes and takes at most n. An orderly end is io.EOF.
func (c *conn) recv(n int, done func(p []byte, err error)) {
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

// memory makes a call about windows and fences, and an atomic one. stored is called when
// a word of a window that it registers is stored.
func (c *conn) memory(x load.Call, stored func(), done func(load.Result, error)) {
	var r load.Result
	ended := func(code status.Code, _ uint64) { done(r, asError(code)) }
	switch x.Do {
	case load.Register:
		m := &memory{bytes: x.Mem.Bytes()[x.From:][:x.Len], stored: stored}
		c.call(func(w *core.Waiter) (_ bool, err error) {
			r.N, err = c.core.Register(m, int64(x.Len), 0, rma.ProtRead|rma.ProtWrite, 0, w)
			return err == nil, err
		}, ended)
	case load.Unregister:
		c.call(func(w *core.Waiter) (bool, error) { return c.core.Unregister(x.Offset, int64(x.Len), w) }, ended)
	case load.Wait:
		c.call(func(w *core.Waiter) (bool, error) { return c.core.Wait(x.Mark.(fence.Mark), w) }, ended)
	case load.Mark:
		if !x.Peer {
			done(load.Result{Mark: c.core.MarkSelf()}, nil)
			return
		}
		c.call(func(w *core.Waiter) (bool, error) { return true, c.core.MarkPeer(w) }, func(code status.Code, v uint64) {
			done(load.Result{Mark: fence.Mark{Side: fence.InitPeer, Seq: v}}, asError(code))
		})
	case load.FetchAdd:
		c.operate(true, true, c.core.MayChange(core.Local{}, x.Remote, 8), func(w *core.Waiter) error {
			return c.core.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: x.Remote, Operand: 1}, w)
		}, func(old uint64, err error) { done(load.Result{N: int64(old)}, err) })
	case load.Signal:
		s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: x.Remote, RemoteValue: x.Value}
		if x.Offset != 0 {
			s.Where |= fence.SignalLocal
			s.LocalOffset, s.LocalValue = x.Offset, x.Value
		}
		c.begin(c.core.MayBegin, func() error { return c.core.Signal(s) }, func(err error) { done(r, err) })
	}
}

// transfer begins a write or read. A synchronous one is done when it has ended.
func (c *conn) transfer(x load.Call, done func(uint64, error)) {
	var flags rma.Flags
	if x.Sync {
		flags = rma.Sync
	}
	if x.RMA.Verb == load.OrderedWrite {
		flags |= rma.Ordered
	}
	l := core.Local{Buf: x.Buf, Length: int64(x.RMA.Len)}
	if x.RMA.Verb.Registered() {
		l = core.Local{Offset: x.Offset, Length: int64(x.RMA.Len)}
	}
	may, begin := c.core.MayBegin, c.core.Read
	if !x.RMA.Verb.Reads() {
		may, begin = c.core.MayChange(l, x.Remote, l.Length), c.core.Write
	}
	// While the caller's own memory is in use it must not have it back.
	c.operate(x.Sync, l.Buf == nil, may, func(w *core.Waiter) error {
		_, err := begin(l, x.Remote, flags, w)
		return err
	}, done)
}

// operate begins an operation once it may, and if it is to be waited for, waits for its
// end. quits: a close of this end ends the wait.
func (c *conn) operate(waits, quits bool, may func() (fence.Mark, bool), begin func(*core.Waiter) error, done func(uint64, error)) {
	c.begin(may, func() error {
		if !waits {
			return begin(nil)
		}
		c.await(quits, func(w *core.Waiter) (bool, error) { return true, begin(w) },
			func(code status.Code, v uint64) { done(v, asError(code)) })
		return nil
	}, func(err error) {
		if err != nil || !waits {
			done(0, err)
		}
	})
}

func asError(code status.Code) error {
	if code == status.OK {
		return nil
	}
	return code
}
