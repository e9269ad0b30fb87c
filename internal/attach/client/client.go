// Package client is the application's end of the attach protocol: an attach.Session over a
// socket to the node. Applications link it and not the server: it knows of the node what
// package proto says. Its tests are those of both ends.
package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A client is a Session over a socket. One goroutine reads the socket and hands
// answers to the calls that wait for them.
type client struct {
	conn     *net.UnixConn
	out      *proto.Outbox
	watchers watchers
	services serviceNotes
	memory   memoryTable
	tuning   tuning
	nodesEnd func(id uint32) attach.Endpoint // of an endpoint, where the node is in this process; else nil
	rings    ringHabits
	step     atomic.Pointer[func(string)] // called at the steps of an upgrade, for tests that end there
	direct   directSession
	places   [proto.Kinds]*places // of the calls that the node bounds by their number
	wg       sync.WaitGroup       // reader and outbox
	done     chan struct{}        // closed when the session has ended
	still    atomic.Bool          // the node has left a call unanswered for too long, and said nothing since

	mu        sync.Mutex // guards the fields below
	closed    bool       // Close was called
	lost      bool       // the socket has ended
	next      uint64
	calls     map[uint64]*call
	endpoints map[uint32]*clientEndpoint
	early     map[uint32]struct{} // endpoints to come whose peer asks for a channel or a path
	self      attach.Self
}

func newClient(conn *net.UnixConn) *client {
	c := &client{
		conn: conn, out: proto.NewOutbox(conn),
		done:      make(chan struct{}),
		calls:     make(map[uint64]*call),
		endpoints: make(map[uint32]*clientEndpoint),
		early:     make(map[uint32]struct{}),
	}
	c.memory.init(c)
	c.direct.c = c
	c.watchers.init()
	return c
}

// maxKeptBody bounds the memory that a call without use keeps.
const maxKeptBody = 1 << 10

// calls are those that nobody uses.
var calls = sync.Pool{New: func() any { return &call{answer: make(chan answer, 1)} }}

// A call is a request that waits for its answer. Who takes the answer gives the
// call back.
type call struct {
	answer chan answer // takes the one answer
	body   []byte      // the answer's; its memory is kept
	coder  proto.Coder // of the call that takes it
	// late takes an answer that came when the caller had given up, or one whose
	// descriptor was lost; nil: drop it
	late  func(answer)
	left  bool    // the caller has given up; guarded by client.mu
	place *places // that the call has one of until its answer comes; nil for none
}

// An answer is what came for a call. The descriptor belongs to who takes it.
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

// A question is one request to be made.
type question struct {
	op       proto.Op
	endpoint uint32
	body     proto.Message
	file     *os.File        // to pass along
	quit     <-chan struct{} // ends the wait when closed
	ended    error           // the result then
	late     func(answer)
}

// ask makes q and waits for its answer, which is decoded into out. A ctx that
// ends withdraws the request; its result stands if there is one nevertheless.
func (c *client) ask(ctx context.Context, q question, out proto.Message) (*os.File, error) {
	if context.Cause(ctx) == errStill && q.op.Waits() != proto.GivesBack {
		return nil, errStill // nothing is piled up for a node that stands still
	}
	place := c.places[q.op.Waits()]
	if place != nil && !place.take(ctx.Done(), q.quit, c.done) {
		return nil, c.waitedInVain(ctx, q)
	}
	id, w, err := c.post(q, place)
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
		if context.Cause(ctx) == errStill {
			c.still.Store(true)
		}
		var ok bool
		if a, ok = c.withdraw(id, w); !ok {
			return nil, fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
		}
		if a.h.Code == status.Canceled {
			a.drop()
			return nil, fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
		}
	}
	defer w.release()
	if errors.Is(a.err, shm.ErrDescriptorLost) && q.late != nil {
		q.late(a) // what the node has made for it is of no use without
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

// waitedInVain is the error of a call for which there was no place.
func (c *client) waitedInVain(ctx context.Context, q question) error {
	select {
	case <-q.quit:
		return q.ended
	default:
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
	}
	return proto.ErrNodeGone
}

// release gives w back, after its answer was taken.
func (w *call) release() {
	w.late, w.place, w.coder = nil, nil, proto.Coder{}
	if cap(w.body) > maxKeptBody {
		w.body = nil
	}
	calls.Put(w)
}

// post sends q. The call takes place, which is nil for none, also when it fails.
func (c *client) post(q question, place *places) (uint64, *call, error) {
	c.mu.Lock()
	var err error
	switch {
	case c.closed && q.op != proto.OpBye && q.op != proto.OpClose && q.op != proto.OpAbort:
		err = status.BadFD
	case c.lost:
		err = proto.ErrNodeGone
	}
	if err != nil {
		c.mu.Unlock()
		if place != nil {
			place.give()
		}
		return 0, nil, err
	}
	w := calls.Get().(*call)
	w.late, w.place = q.late, place
	c.next++
	id := c.next
	c.calls[id] = w
	c.mu.Unlock()
	// The caller keeps its descriptor open until the answer.
	l := proto.Letter{Header: proto.Header{Op: q.op, Endpoint: q.endpoint, Request: id}, Body: q.body, File: q.file}
	// The calls bound the queue: two packets for each, with its withdrawal.
	c.out.Put(l) // an error is the end of the socket: read answers all calls
	return id, w, nil
}

// abandon ends a connection that nobody takes, and waits for nothing. A node that
// does not know ABORT closes it.
func (c *client) abandon(id uint32) {
	q := question{op: proto.OpAbort, endpoint: id, body: &proto.CauseBody{Cause: proto.CauseUnheard}}
	q.late = func(a answer) {
		if a.h.Code == status.NotSupp {
			c.post(question{op: proto.OpClose, endpoint: id}, nil) // fails only when the session ends
		}
		a.drop()
	}
	_, w, err := c.post(q, nil) // fails only when the session ends
	if err == nil && !c.leave(w) {
		q.late(<-w.answer)
	}
}

// leave gives up w, unless its answer is there.
func (c *client) leave(w *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(w.answer) > 0 {
		return false
	}
	w.left = true
	return true
}

// read hands out what the node sends until the socket ends.
func (c *client) read() {
	in, buf := shm.NewReceiver(c.conn), make([]byte, proto.MaxFrame)
	var err error
	for err == nil {
		var n int
		var f *os.File
		n, f, err = in.Recv(buf)
		if err == nil || errors.Is(err, shm.ErrDescriptorLost) {
			c.heard()
			err = c.take(buf[:n], f, err)
		}
	}
	c.end()
}

// take hands out one packet; lost is not nil if its descriptor found no room in this
// process. An error ends the session.
func (c *client) take(p []byte, f *os.File, lost error) error {
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
	return c.told(h, body)
}

// deliver gives an answer to its call. An answer to nothing is dropped. The body is
// the reader's.
func (c *client) deliver(h proto.Header, a answer) {
	c.mu.Lock()
	w := c.calls[h.Request]
	delete(c.calls, h.Request)
	left := w == nil || w.left
	if w != nil && w.place != nil {
		w.place.give()
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

// told takes what the node tells unasked. What a newer node may tell is
// passed over.
func (c *client) told(h proto.Header, body []byte) error {
	switch h.Op {
	case proto.OpState:
		var m proto.ReadyBody
		if err := proto.ParseBody(body, &m); err != nil {
			return err
		}
		c.mu.Lock()
		e := c.endpoints[h.Endpoint]
		c.mu.Unlock()
		if e != nil {
			e.told(attach.Events(m.Events))
		}
	case proto.OpStale:
		c.mu.Lock()
		e := c.endpoints[h.Endpoint]
		c.mu.Unlock()
		if e != nil {
			e.direct.told()
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
		c.memory.told(m)
	case proto.OpOffer:
		c.mu.Lock()
		e := c.endpoints[h.Endpoint]
		if e == nil && len(c.early) < proto.MaxRequests {
			c.early[h.Endpoint] = struct{}{}
		}
		c.mu.Unlock()
		if e != nil && !e.upgrade(true) {
			e.asks.offered.Store(true) // its connection may be being established
		}
	case proto.OpServicesAnew:
		c.services.send()
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

// end ends the session, and with it every call that waits.
func (c *client) end() {
	c.direct.over.Store(true) // before any call returns
	c.conn.Close()
	c.out.Close()
	c.mu.Lock()
	c.lost = true
	calls, eps := c.calls, c.endpoints
	c.calls = make(map[uint64]*call)
	for _, w := range calls {
		if !w.left {
			w.answer <- answer{err: fmt.Errorf("the node is gone: %w", status.Reset)}
		}
	}
	all := make([]*clientEndpoint, 0, len(eps))
	for _, e := range eps {
		all = append(all, e)
	}
	c.mu.Unlock()
	for _, e := range all {
		e.cut(true)
		e.notify()
	}
	c.watchers.stop()
	c.services.send() // a reader that waits finds the end
	close(c.done)
}

// at marks a step of an upgrade.
func (c *client) at(step string) {
	if f := c.step.Load(); f != nil {
		(*f)(step)
	}
}

// isLost reports whether the session has ended.
func (c *client) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func (c *client) Done() <-chan struct{} { return c.done }

// Self asks the node; when it is gone, or does not answer, the last known place is
// returned.
func (c *client) Self() attach.Self {
	ctx, cancel := c.patient()
	defer cancel()
	var m proto.SelfBody
	_, err := c.ask(ctx, question{op: proto.OpSelf}, &m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.self = attach.Self(m)
	}
	return c.self
}

func (c *client) Nodes() ([]addr.NodeID, addr.NodeID, error) {
	var m proto.NodesBody
	if _, err := c.ask(context.Background(), question{op: proto.OpNodes}, &m); err != nil {
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

// Watch begins the telling of events with the first watcher. It goes on until
// the session ends.
func (c *client) Watch(fn func(attach.Event)) (cancel func()) {
	cancel = c.watchers.add(fn)
	c.ask(context.Background(), question{op: proto.OpWatch, body: &proto.WatchBody{On: 1}}, nil) // fails only when no event can come
	return cancel
}

func (c *client) Open() (attach.Endpoint, error) { return c.OpenContext(context.Background()) }

func (c *client) OpenContext(ctx context.Context) (attach.Endpoint, error) {
	q := question{op: proto.OpOpen}
	q.late = func(a answer) { // nobody waits for the endpoint any more
		var m proto.EndpointBody
		if proto.ParseAnswer(a.h, a.body, &m) == nil {
			c.post(question{op: proto.OpClose, endpoint: m.Endpoint}, nil) // fails only when the session ends
		}
	}
	var m proto.EndpointBody
	if _, err := c.ask(ctx, q, &m); err != nil {
		return nil, err
	}
	return c.endpoint(m.Endpoint), nil
}

// endpoint takes the endpoint that the node calls id. It is closed if the
// session is.
func (c *client) endpoint(id uint32) *clientEndpoint {
	e := newClientEndpoint(c, id)
	c.mu.Lock()
	c.endpoints[id] = e
	if _, offered := c.early[id]; offered {
		delete(c.early, id)
		e.asks.offered.Store(true)
	}
	closed := c.closed
	c.mu.Unlock()
	if closed {
		e.shut()
	}
	return e
}

// Close closes all endpoints and takes leave. A node that does not answer is
// left after 2 seconds.
func (c *client) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	eps := make([]*clientEndpoint, 0, len(c.endpoints))
	for _, e := range c.endpoints {
		eps = append(eps, e)
	}
	c.mu.Unlock()
	if !first {
		<-c.done // the first Close does the rest
		return nil
	}
	for _, e := range eps {
		e.shut()
	}
	ctx, cancel := c.patient()
	c.ask(ctx, question{op: proto.OpBye}, nil) // the node finds out by the socket at the latest
	cancel()
	c.conn.Close()
	c.out.Close()
	c.wg.Wait()
	for _, e := range eps {
		e.wg.Wait()
		e.free()
		e.finishPath(true) // what has not closed its endpoint is reset
		e.closeData()
	}
	c.watchers.wait()
	c.memory.close()
	c.direct.close()
	return c.memory.withdraw(true)
}
