package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// An endpoint is one endpoint of an application. One endpoint of the session's account is charged for
// it until it is finally closed.
type endpoint struct {
	id uint32
	s  *session
	ep attach.NodeEndpoint

	direct    directAccess
	pairing   pairing
	closeSent atomic.Bool // the application has sent CLOSE

	pathRest atomic.Int64 // bytes of PATH_REST, each charged
	rmaAsked atomic.Bool  // RMA_PATH was received, and not answered for a passing reason

	mu        sync.Mutex // guards the fields below
	closing   bool
	mover     mover    // once connected
	following func()   // stops the notification of poll events; nil while there is none
	windows   []window // each charged

	pathAsked bool // PATH was received, and not answered without a path
	pathGot   bool // the application has got its end
	pathUsed  bool // JOINED has reported that the application uses it
}

// addEndpoint adds ep, which is charged, to the session, if err is nil. If the session is ending it closes ep.
func (s *session) addEndpoint(ep attach.NodeEndpoint, err error) (*endpoint, error) {
	if err == nil {
		e := &endpoint{s: s, ep: ep}
		if s.add(e) {
			return e, nil
		}
		ep.Abort(s.why())
		err = status.Reset
	}
	s.account.refund(endpoints, 1)
	return nil, err
}

// A window is a window of an endpoint and the memory behind it.
type window struct {
	proto.Span
	memory *memory
	prot   rma.Prot
}

// opened and gone maintain the windows' charges and their memory's counts.

func (e *endpoint) opened(w window) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		e.s.account.refund(windows, 1) // startClose counted the windows before this one was added
		w.memory.close(w.prot)
		return
	}
	e.windows = append(e.windows, w)
}

func (e *endpoint) gone(r proto.Span) {
	e.mu.Lock()
	before := len(e.windows)
	e.windows = slices.DeleteFunc(e.windows, func(w window) bool {
		in := w.Off >= r.Off && uint64(w.Off-r.Off) <= uint64(r.Len) && uint64(w.Len) <= uint64(r.Len)-uint64(w.Off-r.Off)
		if in {
			w.memory.close(w.prot)
		}
		return in
	})
	n := before - len(e.windows)
	e.mu.Unlock()
	e.s.account.refund(windows, int64(n))
}

// follow notifies the application of changes of the endpoint's poll events, until it is connected
// or closed: from then on its data socket shows them.
func (e *endpoint) follow() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing || e.mover != nil || e.following != nil {
		return
	}
	e.following = e.s.follow(func(changed chan<- struct{}) (stop func()) {
		changed <- struct{}{} // the current events are sent first
		return e.ep.Notify(changed)
	}, e.state)
}

// state sends the endpoint's poll events. It blocks while the application does not read: changes
// meanwhile are merged into one.
func (e *endpoint) state() {
	e.s.out.Wait(proto.MaxRequests)
	e.s.sendNotice(proto.Header{Op: proto.OpState, Endpoint: e.id}, &proto.ReadyBody{Events: uint16(e.events())})
}

// events returns the endpoint's poll events. An endpoint closed by the node reports the end of the
// connection; only one closed by the application is invalid.
func (e *endpoint) events() attach.Events {
	ev := e.ep.Ready()
	if ev&attach.PollNval != 0 && !e.closeStarted() {
		return attach.PollErr | attach.PollHup
	}
	return ev
}

// connect starts to move the bytes of the endpoint's connection through d, which it owns; nil if
// the application uses the node's endpoint itself. It reports false if the endpoint is closed or
// already connected.
func (e *endpoint) connect(d *socketPair) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing || e.mover != nil {
		d.close()
		return false
	}
	if e.following != nil {
		e.following()
	}
	p := e.newMover(d)
	e.mover = p
	e.s.srv.paired.enter(e)
	e.offerPath()
	ctx := e.s.srv.relays // a closed session's bytes are still delivered
	e.s.wg.Go(e.s.guarded(func() {
		defer e.s.account.refund(endpoints, 1)
		defer d.closeNear()
		p.run(ctx)
	}))
	return true
}

func (e *endpoint) newMover(d *socketPair) mover {
	if d == nil {
		return newHandedOver(e.ep, e.state)
	}
	return newRelay(e.ep, d.near, e.state, e.s.guarded)
}

// moves returns what moves the connection's bytes; nil before a connection.
func (e *endpoint) moves() mover {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mover
}

// fence makes the application's calls fail if the connection has ended: once the removal of a node
// is reported, no call may succeed as if that node were there.
func (e *endpoint) fence() {
	if p := e.moves(); p != nil && e.ep.Ready()&attach.PollHup != 0 {
		p.ended(e.s.ctx)
		if e.s.srv.paired.asked(e) {
			e.state() // the application does not poll its data socket
		}
	}
}

// A finish is the way an endpoint is ended: closed, or aborted for a cause.
type finish struct {
	abort bool
	cause string
}

func abortedBy(cause string) finish { return finish{abort: true, cause: cause} }

func (f finish) of(ep attach.NodeEndpoint) {
	if f.abort {
		ep.Abort(f.cause)
		return
	}
	ep.Close()
}

// startClose ends the endpoint, in the background if there are bytes to deliver: in the way of how,
// unless the application has closed it. It is called once.
func (e *endpoint) startClose(how finish) {
	if e.closeSent.Load() {
		how = finish{}
	}
	e.mu.Lock()
	e.closing = true
	p, following, open := e.mover, e.following, e.windows
	e.windows = nil
	e.mu.Unlock()
	for _, w := range open {
		w.memory.close(w.prot)
	}
	if following != nil {
		following()
	}
	e.direct.end(e.s)
	e.s.account.refund(windows, int64(len(open)))
	if p != nil {
		e.s.srv.paired.leave(e)
		p.close(how)
		return
	}
	how.of(e.ep)
	e.s.account.refund(endpoints, 1)
}

// closeStarted reports whether startClose was called, on the application's request or at its end.
func (e *endpoint) closeStarted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closing
}

// settle returns when the endpoint is closed, when the close waits for a peer that does not read,
// or when ctx is done.
func (e *endpoint) settle(ctx context.Context) {
	p := e.moves()
	if p == nil {
		return
	}
	done, stuck := p.settled()
	select {
	case <-done:
	case <-stuck:
	case <-ctx.Done():
	}
}

func doClose(ctx context.Context, s *session, r *request) (reply, error) {
	return s.finish(ctx, r, finish{})
}

func doAbort(ctx context.Context, s *session, r *request) (reply, error) {
	return s.finish(ctx, r, abortedBy(attach.CleanCause(r.in.(*proto.CauseBody).Cause)))
}

// finish ends an endpoint on its application's request.
func (s *session) finish(ctx context.Context, r *request, how finish) (reply, error) {
	s.mu.Lock()
	found := s.endpoints.all[r.Endpoint] == r.ep
	if found {
		delete(s.endpoints.all, r.Endpoint)
	}
	s.mu.Unlock()
	if !found {
		return reply{}, fmt.Errorf("endpoint %d: %w", r.Endpoint, status.BadFD)
	}
	r.ep.startClose(how)
	r.ep.settle(ctx)
	return reply{}, nil
}

// doShut makes the end of the application's bytes at the data socket, which follows, a half-close.
func doShut(_ context.Context, _ *session, r *request) (reply, error) {
	p := r.ep.moves()
	if p == nil {
		return reply{}, status.NotConn
	}
	p.halfClose()
	return reply{}, nil
}

// doConnect makes the data socket first: a node without free descriptors refuses before the peer
// learns of a connection that no application could use.
func doConnect(ctx context.Context, s *session, r *request) (reply, error) {
	return s.connected(r.ep, func() error {
		_, err := r.ep.ep.Connect(ctx, addr.Addr(*r.in.(*proto.Address)))
		return err
	})
}

// connected calls connect and answers the request that connects e.
func (s *session) connected(e *endpoint, connect func() error) (reply, error) {
	d, err := s.dataSocket()
	if err != nil {
		return reply{}, err
	}
	if err := connect(); err != nil {
		d.close()
		return reply{}, err
	}
	return e.established(d)
}

func doTryConnect(_ context.Context, s *session, r *request) (reply, error) {
	d, err := s.dataSocket()
	if err != nil {
		return reply{}, err
	}
	if _, err = r.ep.ep.TryConnect(addr.Addr(*r.in.(*proto.Address))); err == nil {
		return r.ep.established(d)
	}
	d.close()
	if status.Of(err) == status.InProgress {
		r.ep.follow()
	}
	return reply{}, err
}

func doAccept(ctx context.Context, s *session, r *request) (reply, error) {
	return s.accepted(r.ep, func() (attach.NodeEndpoint, addr.Addr, error) { return r.ep.ep.Accept(ctx) })
}

func doTryAccept(_ context.Context, s *session, r *request) (reply, error) {
	return s.accepted(r.ep, r.ep.ep.TryAccept)
}

// accepted adds the endpoint that accept returns to the session. If the application has no room for
// it, the requests queued at the listener are refused: they would only wait for their time-out.
func (s *session) accepted(listener *endpoint, accept func() (attach.NodeEndpoint, addr.Addr, error)) (reply, error) {
	if err := s.account.charge(endpoints, 1); err != nil {
		listener.ep.RefuseWaiting()
		return reply{}, err
	}
	ep, _, err := accept()
	e, err := s.addEndpoint(ep, err)
	if err != nil {
		return reply{}, err
	}
	d, err := s.dataSocket()
	var out reply
	if err == nil {
		out, err = e.established(d)
	}
	if err != nil {
		s.forget(e)
	}
	return out, err
}

// forget ends an endpoint that could not be reported to the application, unless teardown does.
func (s *session) forget(e *endpoint) {
	s.mu.Lock()
	found := s.endpoints.all[e.id] == e
	delete(s.endpoints.all, e.id)
	s.mu.Unlock()
	if found {
		e.startClose(abortedBy(proto.CauseNotTaken))
	}
}

// established answers a request that has connected the endpoint. It owns d.
func (e *endpoint) established(d *socketPair) (reply, error) {
	if !e.connect(d) {
		return reply{}, status.Reset
	}
	c := &proto.Connected{Endpoint: e.id, Local: e.ep.LocalAddr(), Remote: e.ep.RemoteAddr()}
	if d == nil {
		return reply{body: c}, nil
	}
	return e.s.account.answerTaken(c, d.far), nil
}
