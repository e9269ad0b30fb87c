package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// maxEvents bounds the notifications queued for an application. An application that does not read
// for so long loses its session: events must not be lost.
const maxEvents = 4096

// stages bounds the VWRITETO and VREADFROM of a session that hold a buffer of the node at a time.
const stages = 4

// A session is one attached application. Its reader goroutine receives requests; those that
// may wait have goroutines of their own. Everything ends with the application's socket.
type session struct {
	srv     *Server
	conn    attach.Packets
	out     *proto.Outbox
	node    attach.NodeSession
	account *account
	uid     uint32
	// inProcess: the application is in this process, and uses the node's endpoints of its
	// connections itself.
	inProcess bool
	shares    atomic.Bool // the application shares its windows' memory with other users' applications
	log       zerolog.Logger
	ended     func() // called when the connection no longer counts as a session

	ctx     context.Context // of requests; done when the socket has ended
	cancel  context.CancelFunc
	wg      sync.WaitGroup // requests, relays and helpers
	staging stagingBuffers
	epochs  epochs

	warned atomic.Bool // a connection without the expected shared-memory path was logged

	copies copyGuard

	mu        sync.Mutex // guards the fields below
	closing   bool       // no endpoint and no memory may be added
	endpoints numbered[*endpoint]
	memory    numbered[*memory]
	mappings  numbered[attach.Region] // of peers' memory
	requests  runningRequests
	unwatch   subscriptions
	self      attach.Self // as last sent to the application
}

// subscriptions are the functions that end notifications; nil while there are none.
type subscriptions struct{ events, services func() }

// runningRequests are the requests that are not answered yet.
type runningRequests struct {
	cancel  map[uint64]context.CancelFunc // by number
	waiting [proto.Kinds]int              // of each kind
	bounds  [proto.Kinds]int              // of waiting
}

// stagingBuffers are the buffers of the node that a session uses.
type stagingBuffers struct {
	tokens chan struct{} // one for each in use, at most stages
	bytes  int64         // of them; guarded by server.staging.mu
}

// A copyGuard guards the copies of bytes to an application's memory.
type copyGuard struct {
	sync.RWMutex      // held for reading during a copy; guards over
	over         bool // no more copies
}

// numbered are objects of a session by the application's numbers.
type numbered[T any] struct {
	last uint32
	all  map[uint32]T
}

func newNumbered[T any]() numbered[T] { return numbered[T]{all: make(map[uint32]T)} }

// next returns an unused number.
func (n *numbered[T]) next() uint32 {
	for {
		n.last++
		if _, used := n.all[n.last]; n.last != 0 && !used {
			return n.last
		}
	}
}

// take removes and returns the object with number id.
func (n *numbered[T]) take(id uint32) (v T, ok bool) {
	v, ok = n.all[id]
	delete(n.all, id)
	return v, ok
}

func newSession(srv *Server, conn attach.Packets, node attach.NodeSession, uid uint32, a *account) *session {
	s := &session{
		srv: srv, conn: conn, out: proto.NewOutbox(conn), node: node, uid: uid, account: a,
		staging:   stagingBuffers{tokens: make(chan struct{}, stages)},
		endpoints: newNumbered[*endpoint](), memory: newNumbered[*memory](), mappings: newNumbered[attach.Region](),
		requests: runningRequests{cancel: make(map[uint64]context.CancelFunc), bounds: bounds(a)},
		self:     node.Self(),
	}
	s.epochs.account = a
	// Not srv.ctx: a request that ends with the server has no answer, instead of the answer that it
	// was canceled.
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// serve runs the session. When it returns, only resources that peers still use are left of it.
func (s *session) serve() {
	s.log.Debug().Msg("application attached")
	s.wg.Go(s.guarded(s.out.Run))
	s.wg.Go(s.guarded(s.endWithNode))
	var err error
	s.guarded(func() { err = s.read() })()
	_ = s.srv.opt.Faults.Hit(failpoint.AppDied)
	s.teardown()
	_ = s.srv.opt.Faults.Hit(failpoint.AppReleased)
	s.log.Debug().AnErr("cause", err).Msg("application detached")
}

// endWithNode ends the session when the node's own session or the server ends: no peer may change
// the application's windows after the application can see the end.
func (s *session) endWithNode() {
	select {
	case <-s.srv.ctx.Done():
		s.node.CloseWindows()
		s.copies.Lock() // waits for running copies
		s.copies.over = true
		s.copies.Unlock()
		s.conn.Close()
	case <-s.node.Done():
		s.conn.Close()
	case <-s.ctx.Done():
	}
}

// read receives requests until the application is gone or violates the protocol. It pauses while
// the application does not receive its answers.
func (s *session) read() error {
	buf := make([]byte, proto.MaxFrame)
	for {
		s.out.Wait(proto.MaxRequests)
		n, f, err := s.conn.Recv(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		lost := errors.Is(err, shm.ErrDescriptorLost)
		if err == nil || lost {
			err = s.take(buf[:n], f, lost)
		}
		if err != nil {
			if status.Of(err) == status.Protocol {
				s.log.Warn().Err(err).Msg("application broke the attach protocol")
			}
			return err
		}
	}
}

// take starts one request; lost: this process had no room for its descriptor. An error ends the
// session: no correct program sends such a packet.
func (s *session) take(p []byte, f *os.File, lost bool) error {
	r, err := s.parse(p, f, lost)
	if err != nil {
		if f != nil {
			f.Close()
		}
		if r != nil && r.Request != 0 {
			s.answer(r, nil, nil, err)
		}
		return err
	}
	if lost {
		s.answer(r, nil, nil, shm.ErrDescriptorLost)
		return nil
	}
	if r.Op == proto.OpCancel {
		s.cancelRequest(r.in.(*proto.Cancel).Request)
		return nil
	}
	if r.do == nil {
		s.answer(r, nil, nil, fmt.Errorf("operation %d is not known: %w", r.Op, status.NotSupp))
		return nil
	}
	return s.begin(r)
}

// parse checks a packet as far as its own bytes permit. The request is not nil if its header could
// be read.
func (s *session) parse(p []byte, f *os.File, lost bool) (*request, error) {
	h, body, err := proto.ParseFrame(p)
	if err != nil {
		return nil, err
	}
	r := &request{Header: h}
	spec, known := operations[h.Op]
	switch {
	case h.Code != 0:
		return r, fmt.Errorf("request with code %d: %w", h.Code, status.Protocol)
	case (h.Request == 0) != (h.Op == proto.OpCancel):
		return r, fmt.Errorf("operation %d with request %d: %w", h.Op, h.Request, status.Protocol)
	case (f != nil || lost) != (known && spec.takesFile):
		return r, fmt.Errorf("operation %d: wrong number of descriptors: %w", h.Op, status.Protocol)
	case !known:
		return r, nil
	}
	r.operation, r.file = spec, f
	if spec.in != nil {
		r.in = spec.in()
	}
	return r, proto.ParseBody(body, r.in)
}

// begin runs a request: here if it cannot wait, else in its own goroutine.
func (s *session) begin(r *request) error {
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	waits := r.Op.Waits()
	_, twice := s.requests.cancel[r.Request]
	full := waits != proto.AtOnce && s.requests.waiting[waits] >= s.requests.bounds[waits]
	if !twice && !full {
		s.requests.cancel[r.Request] = cancel
		s.requests.waiting[waits]++
	}
	if e := s.endpoints.all[r.Endpoint]; e != nil && r.Op == proto.OpClose && !twice && !full {
		e.closeSent.Store(true) // in the order of the packets: a BYE, or the end, may follow
	}
	s.mu.Unlock()
	if twice || full {
		cancel()
		r.drop()
		if twice {
			return fmt.Errorf("request %d is used twice: %w", r.Request, status.Protocol)
		}
		s.answer(r, nil, nil, fmt.Errorf("%d requests of its kind are outstanding: %w", s.requests.bounds[waits], status.NoBufs))
		return nil
	}
	run := func() {
		defer cancel()
		s.perform(ctx, r)
	}
	if waits != proto.AtOnce {
		s.wg.Go(s.guarded(run))
	} else {
		run()
	}
	return nil
}

// perform performs r and answers it.
func (s *session) perform(ctx context.Context, r *request) {
	defer r.drop() // also after a panic
	var out reply
	var err error
	if r.Endpoint != 0 || r.endpoint {
		s.mu.Lock()
		r.ep = s.endpoints.all[r.Endpoint]
		s.mu.Unlock()
		if r.ep == nil || !r.endpoint {
			err = fmt.Errorf("endpoint %d: %w", r.Endpoint, status.BadFD)
		}
	}
	if err == nil {
		out, err = r.do(ctx, s, r)
		err = r.notByApplication(err)
	}
	r.drop()
	// The request's number is free before the application can see the answer.
	s.mu.Lock()
	delete(s.requests.cancel, r.Request)
	s.requests.waiting[r.Op.Waits()]--
	s.mu.Unlock()
	if err != nil {
		out.end()
		out = reply{}
	}
	s.answer(r, out.body, &out, err)
}

// answer sends the answer to r. For an application that does not read, at most MaxRequests answers
// are queued before read pauses, plus those to the requests outstanding then.
func (s *session) answer(r *request, body proto.Message, out *reply, err error) {
	l := proto.Packet{Header: proto.Header{Op: r.Op | proto.OpReply, Endpoint: r.Endpoint, Request: r.Request, Code: status.Of(err)}, Body: body}
	if err != nil {
		l.Body = &proto.Refusal{Text: err.Error()}
	}
	if out != nil {
		l.File, l.After = out.file, out.after
	}
	s.out.Put(l) // an error is the session's end
}

// cancelRequest cancels a request that still waits. Its answer reports the result.
func (s *session) cancelRequest(id uint64) {
	s.mu.Lock()
	cancel := s.requests.cancel[id]
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// sendNotice sends a notification.
func (s *session) sendNotice(h proto.Header, body proto.Message) {
	if err := s.out.Notify(proto.Packet{Header: h, Body: body}, maxEvents); errors.Is(err, status.NoBufs) {
		s.log.Warn().Msg("application does not read its events; session ended")
		s.conn.Close()
	}
}

// add assigns a number to e, which is charged. It returns false if the session is ending.
func (s *session) add(e *endpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	e.id = s.endpoints.next()
	s.endpoints.all[e.id] = e
	return true
}

// why returns the cause for the connections of a session whose socket has ended.
func (s *session) why() string {
	select {
	case <-s.srv.ctx.Done():
	case <-s.node.Done():
	default:
		return attach.CauseDied
	}
	return attach.CauseStopped(s.node.Self().Incarnation.Node)
}

// teardown ends the work that read has started: it cancels requests, aborts endpoints that the
// application has not closed, and waits for peers to receive pending bytes, unless the server ends.
func (s *session) teardown() {
	s.conn.Close()
	s.out.Close()
	s.cancel()
	s.mu.Lock()
	s.closing = true
	eps, unwatch := s.endpoints.all, s.unwatch
	s.endpoints.all, s.unwatch = nil, subscriptions{}
	s.mu.Unlock()
	for _, end := range []func(){unwatch.events, unwatch.services} {
		if end != nil {
			end()
		}
	}
	how := abortedBy(s.why())
	for _, e := range eps {
		e.startClose(how)
	}
	s.ended()
	s.wg.Wait()
	s.node.Close()
	// No other goroutine is left: the fields need no lock.
	for _, r := range s.mappings.all {
		r.Release()
		s.account.refund(mappings, 1)
	}
	for _, r := range s.memory.all {
		r.Release()
		s.account.refund(memories, 1)
	}
	s.epochs.close()
}
