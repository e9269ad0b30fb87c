package workload

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/wait"
)

// An end is one end of a connection: it makes the calls that package load asks for.
type end struct {
	s    *session
	conn *fabric.Conn
	ep   *fabric.Endpoint

	ctx    context.Context // done when the application ends or one of the end's tasks does
	cancel context.CancelFunc
	wg     sync.WaitGroup // of the tasks

	mu    sync.Mutex // guards load, and the fields below
	load  *load.End
	over  bool // nothing begins any more
	freed bool // the window's memory is gone
}

// An env implements [load.Env] with an application and its node.
type env struct {
	*App
	node *fabric.Node
}

// Alloc returns memory that can be registered.
func (v env) Alloc(n int) (load.Memory, error) {
	mem, err := v.node.Alloc(n)
	if err != nil {
		return nil, err
	}
	return mem, nil
}

// newEnd returns an end that has not greeted the other one yet. The incarnation is asked for
// after the connection was made, and the connection used after it was asked for: so it
// is the connection's.
func (s *session) newEnd(conn *fabric.Conn, kind load.Kind) *end {
	e := &end{s: s, conn: conn, ep: conn.Endpoint(), load: load.NewEnd(env{s.app, s.node}, &s.app.c.Plan, kind)}
	e.ctx, e.cancel = context.WithCancel(s.ctx)
	peer := conn.RemoteAddr().(fabric.Addr)
	e.load.Local, e.load.Peer = s.node.Incarnation(), peer.Node
	e.load.LocalPort, e.load.RemotePort = conn.LocalAddr().(fabric.Addr).Port, peer.Port
	return e
}

// dial connects to peer and greets it; nil if that failed.
func (s *session) dial(node int, kind load.Kind) *end {
	call := s.app.calls.begin(history.Call{Name: "connect", To: &node}, true)
	conn, err := s.node.DialAddr(s.ctx, fabric.Addr{Node: s.app.nodeOf(node), Port: Port})
	s.app.calls.end(call, 0, statusOf(err))
	if err != nil {
		return nil
	}
	return s.newEnd(conn, kind).greet()
}

// greet greets the other end; nil if that failed. No other goroutine has the connection yet.
func (e *end) greet() *end {
	e.chain(e.load.Greet().First)
	if !e.load.Open {
		e.cancel()
		e.conn.Close()
		return nil
	}
	e.s.app.known(e.load)
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.s.ends[e] = struct{}{}
	return e
}

// run runs the tasks of the connection until it ends, and closes it.
func (e *end) run() {
	defer e.cancel()
	e.mu.Lock()
	tasks := e.load.Tasks()
	e.mu.Unlock()
	e.begin(tasks)
	if len(tasks) == 0 {
		e.cancel() // another program's client
	}
	<-e.ctx.Done()
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.wg.Wait()
	e.close()
}

// begin begins tasks.
func (e *end) begin(tasks []load.Task) {
	for _, t := range tasks {
		e.wg.Go(func() {
			if t.Begins {
				defer e.s.app.active()()
			}
			if !e.chain(t.First) {
				e.cancel()
			}
		})
	}
}

// A runner makes the calls of one task.
type runner struct {
	*end
	timer *time.Timer
	buf   []byte // holds the bytes received last
}

// chain makes the calls of a task one after the other; false: the connection is to end.
func (e *end) chain(s load.Step) bool {
	t := &runner{end: e, timer: time.NewTimer(0)}
	defer t.timer.Stop()
	for {
		e.begin(s.Also)
		if s.Then == nil {
			return s.Over
		}
		r := t.perform(s.Call)
		r.Now = e.s.app.Now()
		e.mu.Lock()
		s = s.Then(r)
		e.mu.Unlock()
	}
}

// perform makes a call.
func (e *runner) perform(c load.Call) (r load.Result) {
	switch c.Do {
	case load.Pace:
		return load.Result{Over: !e.s.app.paced(c.Pace, e.timer, e.ctx.Done(), e.s.over)}
	case load.Sleep:
		return load.Result{Over: !wait.For(e.ctx.Done(), c.For)}
	}
	if c.Quiet {
		r.Status = statusOf(e.do(c, &r))
	} else {
		call := e.call(c.Name())
		call.Idle = c.Idle()
		open := e.s.app.calls.begin(call, c.AtOnce)
		r.Status = statusOf(e.do(c, &r))
		bytes := len(r.Data)
		if c.Do == load.Send {
			bytes = int(r.N)
		}
		e.end.end(open, bytes, r.Status)
	}
	r.Over = e.ctx.Err() != nil
	return r
}

func (e *runner) do(c load.Call, r *load.Result) (err error) {
	n := 0
	switch c.Do {
	case load.Send:
		n, err = e.ep.Send(e.ctx, c.Data)
		r.N = int64(n)
	case load.Recv:
		r.Data, err = e.receive(c)
	case load.Poll:
		_, err = e.s.node.Poll(e.ctx, []fabric.PollItem{{Endpoint: e.ep}})
	case load.Register:
		prot := fabric.ProtRead
		if c.Writes {
			prot |= fabric.ProtWrite
		}
		r.N, err = e.ep.Register(c.Mem.Bytes()[c.From:][:c.Len], 0, prot, 0)
	case load.Unregister:
		err = e.ep.Unregister(c.Offset, int64(c.Len))
	case load.Transfer:
		err = e.transfer(c)
	case load.FetchAdd:
		var old uint64
		old, err = e.ep.FetchAdd64(e.ctx, c.Remote, 1)
		r.N = int64(old)
	case load.Mark:
		side := fabric.InitSelf
		if c.Peer {
			side = fabric.InitPeer
		}
		r.Mark, err = e.ep.FenceMark(side)
	case load.Wait:
		err = e.ep.FenceWait(e.ctx, c.Mark.(fabric.Mark))
	case load.Signal:
		s := fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: c.Remote, RemoteValue: c.Value}
		if c.Offset != 0 {
			s.Where |= fabric.SignalLocal
			s.LocalOffset, s.LocalValue = c.Offset, c.Value
		}
		err = e.ep.FenceSignal(s)
	}
	return err
}

// transfer makes an RMA operation.
func (e *end) transfer(c load.Call) error {
	var flags fabric.RMAFlags
	if c.Sync {
		flags = fabric.Sync
	}
	switch n := int64(c.RMA.Len); c.RMA.Verb {
	case load.Write:
		return e.ep.WriteTo(c.Offset, n, c.Remote, flags)
	case load.Read:
		return e.ep.ReadFrom(c.Offset, n, c.Remote, flags)
	case load.VRead:
		return e.ep.VReadFrom(c.Buf, c.Remote, flags)
	case load.OrderedWrite:
		flags |= fabric.Ordered
	}
	return e.ep.VWriteTo(c.Buf, c.Remote, flags)
}

// receive receives all that a call wants, or the bytes available: at least one.
func (e *runner) receive(c load.Call) ([]byte, error) {
	e.buf = slices.Grow(e.buf[:0], c.Len)
	p := e.buf[:c.Len]
	if c.Full {
		n, err := e.ep.Recv(e.ctx, p)
		return p[:n], err
	}
	n, err := e.ep.TryRecv(p)
	if n > 0 || err != nil {
		return p[:n], err
	}
	if n, err = e.ep.Recv(e.ctx, p[:1]); err != nil {
		return p[:n], err
	}
	more, err := e.ep.TryRecv(p[1:])
	return p[:n+more], err
}

// close closes the end and writes how it ended.
func (e *end) close() {
	e.s.mu.Lock()
	delete(e.s.ends, e)
	e.s.mu.Unlock()
	e.mu.Lock()
	w, failed := e.load.TakeWindow(), e.load.Failed
	e.mu.Unlock()
	if w != nil && failed == "" && !e.s.abrupt.Load() {
		call := e.begun("unregister", false)
		e.end(call, 0, statusOf(e.ep.Unregister(w.Offset, int64(w.Len()))))
	}
	call := e.begun("close", false)
	e.end(call, 0, statusOf(e.conn.Close()))
	e.s.app.log.Put(e.load.Closed())
	if w != nil {
		e.s.app.endedWindows.add(endedWindow{e: e, w: w}, e.s.graceOf())
	}
}

// begun registers a call on this connection.
func (e *end) begun(name string, atOnce bool) *openCall {
	return e.s.app.calls.begin(e.call(name), atOnce)
}

func (e *end) call(name string) history.Call {
	c := history.Call{Name: name, Peer: e.load.Remote}
	if e.load.ID.Conn != 0 {
		c.Conn, c.Side = e.load.ID.Conn, e.load.ID.Side
	}
	return c
}

// end registers its return.
func (e *end) end(o *openCall, n int, status string) {
	e.s.app.calls.end(o, n, status)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.load.Note(status)
}

// probe makes a call towards an incarnation whose removal was just reported to the application:
// it has to fail.
func (e *end) probe() {
	call := e.begun("fence_mark", true)
	_, err := e.ep.FenceMark(fabric.InitSelf)
	e.s.app.calls.end(call, 0, statusOf(err))
}

// flush writes the sent and received ranges that are not written yet.
func (e *end) flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.load.Flush()
}

// look looks at the words that signals are stored in.
func (e *end) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.begin(e.load.Look())
	}
}

// scan writes down the content of a window of this end, its own one if w is nil.
func (e *end) scan(w *load.Window) {
	var s *load.Scan
	torn := func(look func() bool) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return !e.freed && look()
	}
	again := torn(func() bool {
		if w == nil {
			w = e.load.Window()
		}
		if w == nil {
			return false
		}
		s = w.Scan()
		return s.Torn()
	})
	for range tornLooks {
		if !again {
			break
		}
		wait.For(nil, tornEvery)
		again = torn(s.Torn)
	}
	torn(func() bool {
		if s != nil {
			e.s.app.log.Put(s.Record())
		}
		return false
	})
}

// Words that do not fit are looked at again so often, at such intervals.
const (
	tornLooks = 100
	tornEvery = 5 * time.Millisecond
)
