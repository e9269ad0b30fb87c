package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// An endpoint is an endpoint of an attached application. Its messages go
// through its data socket, everything else through the session.
type endpoint struct {
	c    *session
	id   uint32
	open context.Context // ends with Close
	stop context.CancelFunc
	quit <-chan struct{} // of open
	wg   sync.WaitGroup  // of the goroutines that watch for readiness and upgrades
	ends endNotice

	direct direct
	live   atomic.Pointer[liveStream] // data while the endpoint is connected and open

	// The locks cover whole calls, so that the bytes of two calls do not mix; a ctx ends the wait.
	sending, receiving Mutex

	shmPath  atomic.Pointer[shmPath]
	path     atomic.Pointer[messagePath]
	far      farPeer
	shutOut  atomic.Bool // CloseWrite was called; set under sending
	moved    movedBytes
	upgrades upgradeState

	mu            sync.Mutex // guards the fields below
	closed        bool
	data          nodeStream // once connected
	local, remote addr.Addr
	polled        pollers
}

// A liveStream is a nodeStream that calls read without a lock.
type liveStream struct{ nodeStream }

// An endNotice is the node's notification of a connection's end.
type endNotice struct {
	reported atomic.Bool
	once     sync.Once     // guards closing done
	done     chan struct{} // closed when the node has reported the end, or is gone
}

// A farPeer is the state for accesses to the memory of a peer on another node.
type farPeer struct {
	is    atomic.Bool // the peer is on another node
	path  atomic.Pointer[farPath]
	wants farCount
}

// movedBytes counts the bytes that go through the data socket.
type movedBytes struct {
	got   atomic.Uint64 // received; changed under receiving
	sent  uint64        // sent and calls are guarded by sending
	calls uint64
}

// upgradeState is the endpoint's state of asking for a shared-memory path or a path between nodes.
// It is guarded by the endpoint's mu, except where noted.
type upgradeState struct {
	offered   atomic.Bool   // the node has reported the peer's request before live was set
	freeing   sync.Once     // guards unmapping the shared-memory paths' memory
	tries     int           // attempts to get a shared-memory path; guarded by sending
	upgrading bool          // a shared-memory path has been asked for, or waits for the peer
	spent     []*shmPath    // abandoned ones
	joining   chan struct{} // closed when the request for a path has a result; nil before the first
	pause     backoff       // after a failed request for a path
}

func newEndpoint(c *session, id uint32) *endpoint {
	e := &endpoint{
		c: c, id: id, ends: endNotice{done: make(chan struct{})},
		polled: pollers{listeners: make(map[*chan<- struct{}]chan<- struct{})},
	}
	e.open, e.stop = context.WithCancel(context.Background())
	e.quit = e.open.Done()
	e.local.Node = c.lastSelf().Incarnation.Node
	e.direct.e = e
	e.sending.Init()
	e.receiving.Init()
	return e
}

func (c *session) lastSelf() attach.Self {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.self
}

// ask sends a request on the endpoint. Close ends it with ended.
func (e *endpoint) ask(ctx context.Context, op proto.Op, in, out proto.Message) error {
	_, err := e.request(ctx, request{op: op, body: in, ended: status.Reset}, out)
	return err
}

func (e *endpoint) request(ctx context.Context, q request, out proto.Message) (*os.File, error) {
	if wait.Over(e.quit) {
		return nil, status.BadFD
	}
	q.endpoint, q.quit = e.id, e.quit
	f, err := e.c.ask(ctx, q, out)
	if q.ended != status.OK && errors.Is(err, status.BadFD) && wait.Over(e.quit) {
		err = q.ended // the node has seen the close first, which was sent later
	}
	return f, err
}

func (e *endpoint) Bind(port addr.Port) (addr.Port, error) {
	var local proto.Address
	if err := e.ask(context.Background(), proto.OpBind, &proto.Address{Port: port}, &local); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.local = addr.Addr(local)
	return local.Port, nil
}

func (e *endpoint) Listen(backlog int, allow ...access.Subject) error {
	// The clamp preserves the sign of a backlog that does not fit an int32.
	backlog = max(min(backlog, 1<<20), -1)
	if len(allow) == 0 {
		return e.ask(context.Background(), proto.OpListen, &proto.ListenBody{Backlog: uint32(int32(backlog))}, nil)
	}
	if len(allow) > access.MaxSubjects { // the encoder would leave some out
		return status.Invalid
	}
	in := &proto.ListenAllowBody{Backlog: uint32(int32(backlog))}
	for _, s := range allow {
		in.Allow = append(in.Allow, s.String())
	}
	return e.ask(context.Background(), proto.OpListenAllow, in, nil)
}

func (e *endpoint) Peer() (attach.Peer, error) {
	var p proto.PeerBody
	if err := e.ask(context.Background(), proto.OpPeer, nil, &p); err != nil {
		return attach.Peer{}, err
	}
	return attach.Peer(p), nil
}

func (e *endpoint) Connect(ctx context.Context, dst addr.Addr) (addr.Port, error) {
	return e.connect(ctx, proto.OpConnect, (*proto.Address)(&dst))
}

func (e *endpoint) TryConnect(dst addr.Addr) (addr.Port, error) {
	return e.connect(context.Background(), proto.OpTryConnect, (*proto.Address)(&dst))
}

func (e *endpoint) connect(ctx context.Context, op proto.Op, to proto.Message) (addr.Port, error) {
	var m proto.Connected
	q := request{op: op, body: to, ended: status.Reset}
	q.late = func(a answer) { // connected after all: establish it as if the answer had been in time
		var m proto.Connected
		if proto.ParseAnswer(a.h, a.body, &m) == nil {
			e.establish(m, a.file)
		} else {
			a.drop()
		}
	}
	f, err := e.request(ctx, q, &m)
	if err != nil {
		e.refresh()
		return 0, err
	}
	return m.Local.Port, e.establish(m, f)
}

// refresh reads the port that a connect has bound the endpoint to. The endpoint keeps it when the
// connect fails.
func (e *endpoint) refresh() {
	if e.LocalAddr().Port != 0 {
		return
	}
	ctx, cancel := e.c.patient()
	defer cancel()
	var local proto.Address
	if e.ask(ctx, proto.OpAddress, nil, &local) == nil {
		e.mu.Lock()
		e.local = addr.Addr(local)
		e.mu.Unlock()
	}
}

// stream returns the endpoint's stream of messages, over f unless that is nil.
func (e *endpoint) stream(f *os.File) (nodeStream, error) {
	if f != nil {
		conn, err := shm.Conn(f)
		return dataSocket{conn}, err
	}
	if e.c.nodesEnd == nil {
		return nil, fmt.Errorf("node sent no data socket: %w", status.Protocol)
	}
	ep := e.c.nodesEnd(e.id)
	if ep == nil {
		return nil, status.Reset // the node's endpoint has ended
	}
	return newInProcess(ep, e.open), nil
}

// establish makes the endpoint connected, with f as its data socket.
func (e *endpoint) establish(m proto.Connected, f *os.File) error {
	data, err := e.stream(f)
	if err != nil {
		return err
	}
	e.mu.Lock()
	if e.closed || e.data != nil {
		e.mu.Unlock()
		data.close()
		return status.Reset
	}
	e.data, e.local, e.remote = data, m.Local, m.Remote
	e.far.is.Store(m.Local.Node != m.Remote.Node)
	e.live.Store(&liveStream{data})
	e.watchAll()
	e.mu.Unlock()
	e.notify()
	if e.upgrades.offered.Load() {
		e.upgrade(true)
	}
	return nil
}

func (e *endpoint) Accept(ctx context.Context) (attach.Endpoint, addr.Addr, error) {
	if ctx.Err() == nil {
		return e.accept(ctx, proto.OpAccept)
	}
	soon, cancel := e.c.patient()
	defer cancel()
	ep, from, err := e.accept(soon, proto.OpTryAccept) // a call that need not wait succeeds although ctx is done
	if errors.Is(err, status.Again) || soon.Err() != nil {
		err = ended(ctx)
	}
	return ep, from, err
}

func (e *endpoint) TryAccept() (attach.Endpoint, addr.Addr, error) {
	return e.accept(context.Background(), proto.OpTryAccept)
}

func (e *endpoint) accept(ctx context.Context, op proto.Op) (attach.Endpoint, addr.Addr, error) {
	var m proto.Connected
	q := request{op: op, ended: status.Intr}
	q.late = func(a answer) { // no caller waits for the connection any more
		var m proto.Connected
		if proto.ParseAnswer(a.h, a.body, &m) == nil {
			e.c.abandon(m.Endpoint)
		}
		a.drop()
	}
	f, err := e.request(ctx, q, &m)
	if err != nil {
		return nil, addr.Addr{}, err
	}
	ep := e.c.endpoint(m.Endpoint)
	if err := ep.establish(m, f); err != nil {
		ep.Abort(proto.CauseNotTaken)
		return nil, addr.Addr{}, err
	}
	return ep, m.Remote, nil
}

// socket returns the stream of messages to the node.
func (e *endpoint) socket() (nodeStream, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return nil, status.BadFD
	case e.data == nil:
		return nil, status.NotConn
	}
	return e.data, nil
}

func (e *endpoint) LocalAddr() addr.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.local
}

func (e *endpoint) RemoteAddr() addr.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.remote
}

// Close leaves the delivery of sent bytes to the node.
func (e *endpoint) Close() error { return e.end(request{op: proto.OpClose}) }

func (e *endpoint) Abort(cause string) error {
	return e.end(request{op: proto.OpAbort, body: &proto.CauseBody{Cause: attach.CleanCause(cause)}})
}

// Cause asks the node, unless the node is gone.
func (e *endpoint) Cause() string {
	if e.c.isLost() {
		return attach.CauseNodeGone
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var m proto.CauseBody
	if err := e.ask(ctx, proto.OpCause, nil, &m); err != nil && e.c.isLost() {
		return attach.CauseNodeGone
	}
	return attach.CleanCause(m.Cause)
}

// end closes the endpoint and sends q.
func (e *endpoint) end(q request) error {
	if !e.shut() {
		return status.BadFD
	}
	e.c.mu.Lock()
	delete(e.c.endpoints, e.id)
	e.c.mu.Unlock()
	e.wg.Wait()
	e.finishFar()
	e.free()
	if e.path.Load() != nil {
		if !e.finishPath(q.op == proto.OpAbort) {
			q = request{op: proto.OpAbort, body: &proto.CauseBody{Cause: causeUnread}}
		}
		e.closeData()
	}
	// The node closes it in any case: with this request, or with the session. The call does not
	// wait long for a node that does not answer.
	ctx, cancel := e.c.patient()
	defer cancel()
	q.endpoint = e.id
	e.c.ask(ctx, q, nil)
	_ = e.c.memory.moveExposed(e.c.isLost()) // memory that could not be moved is tried again
	return nil
}

// causeUnread is the cause of a reset because the peer did not read all sent bytes.
const causeUnread = "the peer did not read what was sent, and it was closed"

// shutting reports whether Close was called.
func (e *endpoint) shutting() bool { return wait.Over(e.quit) }

func (e *endpoint) closeData() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.data != nil {
		e.data.close()
	}
}

// shut ends the endpoint's state in this process; false if that was done before.
func (e *endpoint) shut() bool {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	e.live.Store(nil)
	data, watching := e.data, e.polled.by
	if sp := e.shmPath.Load(); sp != nil && first {
		sp.hangUp()
	}
	if p := e.path.Load(); p != nil && first {
		p.interrupt()
	}
	if p := e.far.path.Load(); p != nil && first {
		p.conn.Interrupt()
	}
	e.mu.Unlock()
	if !first {
		return false
	}
	e.stop()
	e.direct.close()
	switch {
	case data == nil:
	case e.path.Load() != nil: // it ends after the path: its end is the end of the sent bytes
		data.interrupt()
	default:
		data.close()
	}
	for _, w := range watching {
		w.Close()
	}
	e.notify()
	return true
}

// dataError maps a failure of the data socket: whichever side ended it, the connection is reset.
func dataError(err error) error {
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || err == nil:
		return status.Reset
	case errors.Is(err, status.Reset):
		return err
	}
	return fmt.Errorf("%w: %w", status.Reset, err)
}
