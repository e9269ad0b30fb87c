package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/portmap"
)

// An endpoint is one endpoint of an application: its state, its port, and
// the fields of that state. It implements attach.NodeEndpoint.
type endpoint struct {
	n  *Node
	s  *session
	id uint64 // of the node, for people

	notes  attach.Notes
	gone   chan struct{} // closed by Close
	hungUp chan struct{} // closed when the connection has ended from the peer's side
	closed chan struct{} // closed when Close is through
	route  atomic.Pointer[route]
	linked atomic.Pointer[conn] // conn in Connected, else nil: calls need no lock to find it
	held   atomic.Bool          // conn is a request that Settle grants or refuses

	mu        sync.Mutex // guards the fields below
	state     core.State
	port      addr.Port // bound; 0 before
	holds     bool      // a reference on port
	shut      bool      // closeWindows was called, for the session or for this endpoint
	remote    addr.Addr
	conn      *conn          // in Connecting once the request is out; in Connected and Disconnected
	recvAt    time.Duration  // Node.now at which a slow receiver reads again
	peer      *access.Caller // of an acceptor's connection; of a connector's once Peer was called
	dialing   dialing
	listening listening
}

func newEndpoint(s *session, id uint64) *endpoint {
	return &endpoint{n: s.n, s: s, id: id, gone: make(chan struct{}), hungUp: make(chan struct{}), closed: make(chan struct{}), listening: listening{waits: newGate()}}
}

// connection returns the conn for a call that needs one: a send, a receive, or one
// about memory, which are all allowed in Connected.
func (e *endpoint) connection(c core.Call) (*conn, error) {
	if linked := e.linked.Load(); linked != nil {
		return linked, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := core.Check(c, e.state)
	if err == status.Reset && e.conn != nil {
		err = e.conn.asError(status.Reset)
	}
	return e.conn, err
}

// lastConn returns the connection that the endpoint has, or had; nil if there was none.
func (e *endpoint) lastConn() *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conn
}

// closeWindows is conn.closeWindows, for the connection that the endpoint has or will have.
func (e *endpoint) closeWindows() {
	e.mu.Lock()
	e.shut = true
	c := e.conn
	e.mu.Unlock()
	if c != nil {
		c.closeWindows()
	}
}

// holdLocked makes c the endpoint's connection. The caller holds mu.
func (e *endpoint) holdLocked(c *conn) {
	e.conn = c
	if e.shut {
		c.mu.Lock()
		c.core.CloseWindows() // no window is there yet
		c.mu.Unlock()
	}
}

// alive returns status.BadFD after Close: that comes before errors of the arguments of a call.
func (e *endpoint) alive() error {
	if isClosed(e.gone) {
		return status.BadFD
	}
	return nil
}

func (e *endpoint) Bind(port addr.Port) (addr.Port, error) {
	if err := e.alive(); err != nil {
		return 0, err
	}
	if err := e.mayBind(port); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := core.Check(core.CallBind, e.state); err != nil {
		return 0, err
	}
	return e.bindLocked(port)
}

// bindLocked binds an unbound endpoint. The caller holds e.mu.
func (e *endpoint) bindLocked(port addr.Port) (addr.Port, error) {
	choosable := e.choosable()
	e.n.mu.Lock()
	port, err := e.n.ports.BindAllowed(port, e.s.cred.Admin, choosable)
	e.n.mu.Unlock()
	if err != nil {
		return 0, err
	}
	e.port, e.holds, e.state = port, true, core.Bound
	return port, nil
}

func (e *endpoint) releasePort() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.releasePortLocked()
}

// releasePortLocked gives the port back. The caller holds e.mu.
func (e *endpoint) releasePortLocked() {
	if !e.holds {
		return
	}
	e.holds = false
	e.n.mu.Lock()
	if e.n.listeners[e.port] == e {
		delete(e.n.listeners, e.port)
	}
	e.n.ports.Release(e.port)
	named := e.dropNameLocked()
	e.n.mu.Unlock()
	if named {
		e.n.servesAnew()
	}
}

func (e *endpoint) Listen(backlog int, allow ...access.Subject) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := core.Check(core.CallListen, e.state); err != nil {
		return err
	}
	if backlog <= 0 || len(allow) > access.MaxSubjects {
		return status.Invalid
	}
	e.listening.allow = slices.Clone(allow)
	e.listening.Backlog = *portmap.NewBacklog[*request](min(backlog, core.MaxBacklog))
	e.state = core.Listening
	e.n.mu.Lock()
	e.n.listeners[e.port], e.listening.port = e, e.port
	e.n.mu.Unlock()
	e.servesLocked()
	return nil
}

func (e *endpoint) Send(ctx context.Context, p []byte) (int, error) {
	c, err := e.connection(core.CallSend)
	if err != nil {
		return 0, err
	}
	return c.out.send(ctx, p)
}

func (e *endpoint) TrySend(p []byte) (int, error) {
	c, err := e.connection(core.CallSend)
	if err != nil {
		return 0, err
	}
	return c.out.trySend(p)
}

func (e *endpoint) Recv(ctx context.Context, p []byte) (int, error) {
	c, err := e.connection(core.CallRecv)
	if err != nil {
		return 0, err
	}
	if e.n.cfg.Faults.SlowReceivers() {
		return e.recvSlowly(ctx, c, p)
	}
	return c.in.read(ctx, p)
}

func (e *endpoint) TryRecv(p []byte) (int, error) {
	c, err := e.connection(core.CallRecv)
	if err != nil {
		return 0, err
	}
	if e.n.cfg.Faults.SlowReceivers() {
		return e.tryRecvSlowly(c, p)
	}
	return c.in.tryRead(p)
}

// CloseWrite is attach.NodeEndpoint's.
func (e *endpoint) CloseWrite() error {
	c, err := e.connection(core.CallSend)
	if err != nil {
		return err
	}
	return c.closeWrite()
}

// Window is attach.NodeEndpoint's.
func (e *endpoint) Window() int {
	if c := e.linked.Load(); c != nil {
		return c.in.window
	}
	return 0
}

// disconnected records that c has ended from the peer's side.
func (e *endpoint) disconnected(c *conn) {
	e.mu.Lock()
	if e.conn == c && e.state == core.Connected {
		e.state = core.Disconnected
		e.linked.Store(nil)
		e.releasePortLocked()
		close(e.hungUp) // once: no endpoint connects again
	}
	e.mu.Unlock()
	e.changed()
}

func (e *endpoint) LocalAddr() addr.Addr {
	self := e.n.Self().Incarnation.Node
	e.mu.Lock()
	defer e.mu.Unlock()
	return addr.Addr{Node: self, Port: e.port}
}

func (e *endpoint) RemoteAddr() addr.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.remote
}

// Close closes the endpoint. A connection ends in order, which may take
// closeLinger if the peer does not answer.
func (e *endpoint) Close() error { return e.end(wire.Close{}) }

// Abort is Close, but the peer's application sees a reset with cause.
func (e *endpoint) Abort(cause string) error {
	return e.end(wire.Close{Reset: true, Cause: attach.CleanCause(cause)})
}

// Cause is attach.NodeEndpoint's.
func (e *endpoint) Cause() string {
	if c := e.lastConn(); c != nil {
		return c.why()
	}
	return ""
}

// end closes the endpoint, and its connection with bye.
func (e *endpoint) end(bye wire.Close) error {
	e.mu.Lock()
	if e.state == core.Closed {
		e.mu.Unlock()
		return status.BadFD
	}
	before, c := e.state, e.conn
	e.state = core.Closed
	e.linked.Store(nil)
	waiting, granting, unclaimed := e.listening.Close()
	if before == core.Listening || c == nil {
		e.releasePortLocked()
	}
	e.mu.Unlock()
	close(e.gone)
	e.changed()
	for _, r := range waiting {
		r.refuse(status.Refused)
	}
	for _, ep := range granting { // which notices e.gone a little later
		ep.releasePort()
	}
	for _, ep := range unclaimed {
		ep.Abort(causeListenerClosed)
	}
	if e.held.Load() {
		_ = e.Settle(status.Refused) // the error is its argument
	}
	if before == core.Connected || before == core.Disconnected {
		c.close(bye)
	}
	e.releasePort()
	e.s.forget(e)
	close(e.closed)
	return nil
}

// onGone calls f, on a goroutine of its own, when the endpoint is closed. undo ends that.
func (e *endpoint) onGone(f func()) (undo func()) {
	done := make(chan struct{})
	e.n.work.run(func() {
		select {
		case <-e.gone:
			f()
		case <-done:
		}
	})
	return func() { close(done) }
}

// Ready returns the poll events, as scif_poll has them: a disconnected
// endpoint is PollIn only while unread bytes are left.
func (e *endpoint) Ready() attach.Events {
	e.mu.Lock()
	state, c, async := e.state, e.conn, e.dialing.result
	requests, barred := e.listening.Waiting(), e.listening.barred
	e.mu.Unlock()
	switch state {
	case core.Listening:
		return when(requests > 0 || barred, attach.PollIn)
	case core.Connected:
		if async != nil && !async.ended() {
			return 0 // granted in this moment; the result follows
		}
		return when(c.in.readable() && !e.receivesLater(), attach.PollIn) | when(c.out.writable(), attach.PollOut) |
			when(c.in.drained(), attach.PollIn|attach.PollRdHup)
	case core.Disconnected:
		return when(c.in.readable() && !e.receivesLater(), attach.PollIn) | attach.PollHup
	case core.Closed:
		return attach.PollNval
	}
	if async != nil { // a non-blocking connect, pending or with a result to fetch
		return when(async.ended(), attach.PollOut)
	}
	return attach.PollErr
}

func when(cond bool, ev attach.Events) attach.Events {
	if cond {
		return ev
	}
	return 0
}

func (e *endpoint) Notify(ch chan<- struct{}) (stop func()) { return e.notes.Add(ch) }

func (e *endpoint) changed() { e.notes.Send() }
