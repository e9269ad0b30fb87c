// Package client is the application's end of the attach protocol: an attach.Session over a socket
// to the node. Applications link it without the server: it shares only package proto with the node.
// Its tests cover both ends.
package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// A session is a Session over a socket. One goroutine reads the socket and passes answers to the
// waiting calls.
type session struct {
	conn         attach.Packets
	out          *proto.Outbox
	watchers     watchers
	services     attach.Notes
	memory       memoryTable
	tuning       tuning
	nodesEnd     func(id uint32) attach.NodeEndpoint // returns the node's endpoint, if the node is in this process; else nil
	rings        ringSettings
	step         atomic.Pointer[func(string)] // called at the steps of an upgrade; tests stop there
	direct       directSession
	slots        [proto.Kinds]slots // limits on the calls of each kind that has one
	wg           sync.WaitGroup     // reader and outbox
	idle         sync.Pool          // calls to use again: a pool of the package would carry channels from one synctest bubble to another
	done         chan struct{}      // closed when the session has ended
	unresponsive atomic.Bool        // the node left a call unanswered for too long and has sent nothing since

	mu        sync.Mutex // guards the fields below
	closed    bool       // Close was called
	lost      bool       // the socket has ended
	next      uint64
	calls     map[uint64]*call
	endpoints map[uint32]*endpoint
	early     map[uint32]struct{} // endpoints not yet created whose peer asks for a shared-memory path or a path between nodes
	self      attach.Self
}

func newClient(conn attach.Packets) *session {
	c := &session{
		conn: conn, out: proto.NewOutbox(conn),
		done:      make(chan struct{}),
		calls:     make(map[uint64]*call),
		endpoints: make(map[uint32]*endpoint),
		early:     make(map[uint32]struct{}),
	}
	c.memory.init(c)
	c.direct.c = c
	c.watchers.init()
	return c
}

// maxKeptBody is the largest answer buffer that an idle call retains, in bytes.
const maxKeptBody = 1 << 10

// A call is a request that waits for its answer. The receiver of the answer releases the call.
type call struct {
	answer chan answer // receives the one answer
	body   []byte      // the answer's; the buffer is reused
	coder  proto.Coder // of the goroutine that receives the answer
	// late receives an answer after the caller has given up, or one whose descriptor was lost; nil:
	// drop it
	late func(answer)
	left bool  // the caller has given up; guarded by client.mu
	slot slots // the limit that the call counts towards until its answer comes; nil: none
}

// An answer is the reply to a call. Its receiver owns the descriptor.
type answer struct {
	h    proto.Header
	body []byte
	file *os.File
	err  error // the session ended, or the descriptor was lost
}

func (a answer) drop() {
	if a.file != nil {
		a.file.Close()
	}
}

// A request is one request to be sent.
type request struct {
	op       proto.Op
	endpoint uint32
	body     proto.Message
	file     *os.File        // to be passed
	quit     <-chan struct{} // ends the wait when closed
	ended    error           // the result in that case
	late     func(answer)
}

// ask sends q, waits for its answer and decodes it into out. If ctx ends, it cancels the request;
// an answer that succeeds nevertheless is the result.
func (c *session) ask(ctx context.Context, q request, out proto.Message) (*os.File, error) {
	if context.Cause(ctx) == errUnresponsive && q.op.Waits() != proto.GivesBack {
		return nil, errUnresponsive // do not queue up requests for a node that does not respond
	}
	slot := c.slots[q.op.Waits()]
	if slot != nil && !slot.acquire(ctx.Done(), q.quit, c.done) {
		return nil, c.slotError(ctx, q)
	}
	id, w, err := c.post(q, slot)
	if err != nil {
		return nil, err
	}
	var a answer
	select {
	case a = <-w.answer:
	case <-q.quit:
		if !c.leave(w) {
			a = <-w.answer
			break
		}
		return nil, q.ended
	case <-ctx.Done():
		if context.Cause(ctx) == errUnresponsive {
			c.unresponsive.Store(true)
		}
		var ok bool
		if a, ok = c.cancelRequest(id, w); !ok {
			return nil, ended(ctx)
		}
		if a.h.Code == status.Canceled {
			a.drop()
			return nil, ended(ctx)
		}
	}
	defer c.release(w)
	if errors.Is(a.err, shm.ErrDescriptorLost) && q.late != nil {
		q.late(a) // late undoes the node's part, which is useless without the descriptor
	}
	if a.err != nil {
		return nil, a.err
	}
	if err := w.coder.ParseAnswer(a.h, a.body, out); err != nil {
		a.drop()
		return nil, err
	}
	return a.file, nil
}

// slotError is the error of a call that gave up while waiting for its limit.
func (c *session) slotError(ctx context.Context, q request) error {
	if wait.Over(q.quit) {
		return q.ended
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return proto.ErrNodeGone
}

// release returns w to the pool, after its answer was received.
func (c *session) release(w *call) {
	w.late, w.slot, w.coder = nil, nil, proto.Coder{}
	if cap(w.body) > maxKeptBody {
		w.body = nil
	}
	c.idle.Put(w)
}

// post sends q. The call owns place, also on failure; nil: none.
func (c *session) post(q request, slot slots) (uint64, *call, error) {
	c.mu.Lock()
	var err error
	switch {
	case c.closed && !q.op.Ends():
		err = status.BadFD
	case c.lost:
		err = proto.ErrNodeGone
	}
	if err != nil {
		c.mu.Unlock()
		if slot != nil {
			slot.release()
		}
		return 0, nil, err
	}
	w, ok := c.idle.Get().(*call)
	if !ok {
		w = &call{answer: make(chan answer, 1)}
	}
	w.late, w.slot = q.late, slot
	c.next++
	id := c.next
	c.calls[id] = w
	c.mu.Unlock()
	// The caller keeps its descriptor open until the answer.
	l := proto.Packet{Header: proto.Header{Op: q.op, Endpoint: q.endpoint, Request: id}, Body: q.body, File: q.file}
	// The calls bound the queue: two packets each, the request and its CANCEL.
	c.out.Put(l) // an error is the end of the socket: read then answers all calls
	return id, w, nil
}

// abandon ends a connection that has no receiver, without waiting.
func (c *session) abandon(id uint32) {
	c.post(request{op: proto.OpAbort, endpoint: id, body: &proto.CauseBody{Cause: proto.CauseNotTaken}}, nil) // fails only when the session ends
}

// leave gives up w, unless its answer has arrived.
func (c *session) leave(w *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(w.answer) > 0 {
		return false
	}
	w.left = true
	return true
}

// read dispatches the node's packets until the socket ends.
func (c *session) read() {
	buf := make([]byte, proto.MaxFrame)
	var err error
	for err == nil {
		var n int
		var f *os.File
		n, f, err = c.conn.Recv(buf)
		if err == nil || errors.Is(err, shm.ErrDescriptorLost) {
			c.responded()
			err = c.take(buf[:n], f, err)
		}
	}
	c.end()
}

// take dispatches one packet; lost is not nil if this process had no room for its descriptor. An
// error ends the session.
func (c *session) take(p []byte, f *os.File, lost error) error {
	h, body, err := proto.ParseFrame(p)
	if err == nil && h.Op&proto.OpReply != 0 {
		c.deliver(h, answer{h: h, body: body, file: f, err: lost})
		return nil
	}
	if f != nil {
		f.Close()
	}
	if err != nil {
		return err
	}
	return c.notified(h, body)
}

// deliver passes an answer to its call. An answer to no call is dropped. The reader owns body.
func (c *session) deliver(h proto.Header, a answer) {
	c.mu.Lock()
	w := c.calls[h.Request]
	delete(c.calls, h.Request)
	left := w == nil || w.left
	if w != nil && w.slot != nil {
		w.slot.release()
	}
	if !left {
		w.body = append(w.body[:0], a.body...)
		a.body = w.body
		w.answer <- a // has room: it takes one answer
	}
	c.mu.Unlock()
	if left && w != nil && w.late != nil {
		w.late(a)
		return
	}
	if left {
		a.drop()
	}
}

// notified handles a notification of the node. Unknown ones, which a newer node may send, are ignored.
func (c *session) notified(h proto.Header, body []byte) error {
	switch h.Op {
	case proto.OpState:
		var m proto.ReadyBody
		if err := proto.ParseBody(body, &m); err != nil {
			return err
		}
		if e := c.endpointOf(h); e != nil {
			e.notified(attach.Events(m.Events))
		}
	case proto.OpStale:
		if e := c.endpointOf(h); e != nil {
			e.direct.invalidated()
		}
	case proto.OpEvent:
		var m proto.EventBody
		if err := proto.ParseBody(body, &m); err != nil {
			return err
		}
		return c.watchers.put(attach.Event(m))
	case proto.OpShared:
		var m proto.SharedBody
		if err := proto.ParseBody(body, &m); err != nil {
			return err
		}
		c.memory.shared(m)
	case proto.OpOffer:
		c.mu.Lock()
		e := c.endpoints[h.Endpoint]
		if e == nil && len(c.early) < proto.MaxRequests {
			c.early[h.Endpoint] = struct{}{}
		}
		c.mu.Unlock()
		if e != nil && !e.upgrade(true) {
			e.upgrades.offered.Store(true) // its connection may still be being established
		}
	case proto.OpServicesAnew:
		c.services.Send()
	case proto.OpSelfState:
		var m proto.SelfBody
		if err := proto.ParseBody(body, &m); err != nil {
			return err
		}
		c.mu.Lock()
		c.self = attach.Self(m)
		c.mu.Unlock()
	}
	return nil
}

// endpointOf returns the endpoint that a notification names; nil if it is closed.
func (c *session) endpointOf(h proto.Header) *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endpoints[h.Endpoint]
}

// end ends the session and every waiting call.
func (c *session) end() {
	c.direct.over.Store(true) // before any call returns
	c.conn.Close()
	c.out.Close()
	c.mu.Lock()
	c.lost = true
	calls := c.calls
	c.calls = make(map[uint64]*call)
	for _, w := range calls {
		if !w.left {
			w.answer <- answer{err: fmt.Errorf("the node is gone: %w", status.Reset)}
		}
	}
	all := slices.Collect(maps.Values(c.endpoints))
	c.mu.Unlock()
	for _, e := range all {
		e.cut(true)
		e.notify()
	}
	c.watchers.stop()
	c.services.Send() // a waiting reader sees the end of the session
	close(c.done)
}

// at marks a step of an upgrade for tests.
func (c *session) at(step string) {
	if f := c.step.Load(); f != nil {
		(*f)(step)
	}
}

// isLost reports whether the session has ended.
func (c *session) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func (c *session) Done() <-chan struct{} { return c.done }

// Self asks the node. If the node is gone or does not answer, Self returns the last known identity.
func (c *session) Self() attach.Self {
	ctx, cancel := c.patient()
	defer cancel()
	var m proto.SelfBody
	_, err := c.ask(ctx, request{op: proto.OpSelf}, &m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.self = attach.Self(m)
	}
	return c.self
}

func (c *session) Nodes() ([]addr.NodeID, addr.NodeID, error) {
	var m proto.NodesBody
	if _, err := c.ask(context.Background(), request{op: proto.OpNodes}, &m); err != nil {
		return nil, 0, err
	}
	var ids []addr.NodeID
	for i := range 8 * len(m.Set) {
		if m.Set[i/8]&(1<<(i%8)) != 0 {
			ids = append(ids, addr.NodeID(i))
		}
	}
	return ids, m.Self, nil
}

// Watch turns on the notification of events with the first watcher. It stays on until the session
// ends.
func (c *session) Watch(fn func(attach.Event)) (cancel func()) {
	cancel = c.watchers.add(fn)
	c.ask(context.Background(), request{op: proto.OpWatch, body: &proto.WatchBody{On: 1}}, nil) // fails only when no event can come
	return cancel
}

func (c *session) Open() (attach.Endpoint, error) { return c.OpenContext(context.Background()) }

func (c *session) OpenContext(ctx context.Context) (attach.Endpoint, error) {
	q := request{op: proto.OpOpen}
	q.late = func(a answer) { // no caller waits for the endpoint any more
		var m proto.EndpointBody
		if proto.ParseAnswer(a.h, a.body, &m) == nil {
			c.post(request{op: proto.OpClose, endpoint: m.Endpoint}, nil) // fails only when the session ends
		}
	}
	var m proto.EndpointBody
	if _, err := c.ask(ctx, q, &m); err != nil {
		return nil, err
	}
	return c.endpoint(m.Endpoint), nil
}

// endpoint creates the client's side of the node's endpoint id. It is closed if the session is.
func (c *session) endpoint(id uint32) *endpoint {
	e := newEndpoint(c, id)
	c.mu.Lock()
	c.endpoints[id] = e
	if _, offered := c.early[id]; offered {
		delete(c.early, id)
		e.upgrades.offered.Store(true)
	}
	closed := c.closed
	c.mu.Unlock()
	if closed {
		e.shut()
	}
	return e
}

// Close closes all endpoints and ends the session. It waits at most 2 seconds for a node that does
// not answer.
func (c *session) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	eps := slices.Collect(maps.Values(c.endpoints))
	c.mu.Unlock()
	if !first {
		<-c.done // the first Close does the work
		return nil
	}
	for _, e := range eps {
		e.shut()
	}
	ctx, cancel := c.patient()
	c.ask(ctx, request{op: proto.OpBye}, nil) // a node that does not get it sees the end of the socket
	cancel()
	c.conn.Close()
	c.out.Close()
	c.wg.Wait()
	for _, e := range eps {
		e.wg.Wait()
		e.free()
		e.finishPath(true) // endpoints that the application has not closed are reset
		e.closeData()
	}
	c.watchers.wait()
	c.memory.close()
	c.direct.close()
	return c.memory.moveExposed(true)
}
