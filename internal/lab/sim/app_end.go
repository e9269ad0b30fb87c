package sim

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/status"
)

// An appEnd is an application's end of a connection: it makes the calls that package
// load asks for.
type appEnd struct {
	*load.End
	a  *app
	s  *session
	ep *endpoint

	canceled bool // its tasks are to end
	closing  bool // it is being closed
	closed   bool // Closed is written
	tasks    int
	pauses   []*pause
	after    func() // when it has ended
}

// dial connects to the node with an index and runs the connection. It calls after when it has
// ended, or if it has failed.
func (a *app) dial(s *session, index int, kind load.Kind, after func()) {
	peer := a.w.machines[index].id
	e := &appEnd{End: load.NewEnd(a, &a.w.load.Plan, kind), a: a, s: s}
	a.do(history.Call{Name: "connect", To: &index}, nil, true, func(answer func(int64, error)) {
		e.ep = s.open()
		e.ep.connect(addr.Addr{Node: peer, Port: appPort}, func(err error) { answer(0, err) })
	}, func(_ int64, err error) {
		if err != nil {
			e.drop()
			after()
			return
		}
		e.greet(peer, after)
	})
}

// greet greets the other end, which is to be at a node, and runs the connection.
func (e *appEnd) greet(peer addr.NodeID, after func()) {
	e.Local, e.Peer = e.s.n.self.Incarnation, peer
	e.LocalPort, e.RemotePort = e.ep.port, e.ep.remote.Port
	e.ep.stored = e.look
	e.chain(e.Greet().First, func(bool) {
		if !e.Open {
			e.drop()
			after()
			return
		}
		e.a.writers.Add(e.End)
		e.a.ends = append(e.a.ends, e)
		e.run(after)
	})
}

// drop closes an end that was never open.
func (e *appEnd) drop() {
	if ep := e.ep; ep != nil && e.a.s == e.s {
		e.s.n.p.soon(func() { ep.close(func(error) {}) })
	}
}

// run runs the tasks of the connection until it ends, closes it and calls after.
func (e *appEnd) run(after func()) {
	e.after = after
	e.tasks++ // run itself
	e.begin(e.Tasks())
	e.taskEnded(true)
}

// begin begins tasks.
func (e *appEnd) begin(tasks []load.Task) {
	for _, t := range tasks {
		e.tasks++
		e.chain(t.First, e.taskEnded)
	}
}

// chain makes the calls of a task one after the other.
func (e *appEnd) chain(s load.Step, ended func(over bool)) {
	e.begin(s.Also)
	if s.Then == nil {
		ended(s.Over)
		return
	}
	e.perform(s.Call, func(r load.Result) {
		r.Now = e.a.w.now
		e.chain(s.Then(r), ended)
	})
}

// over reports whether nothing more is to begin.
func (e *appEnd) over() bool { return e.canceled || e.closed }

// perform makes a call.
func (e *appEnd) perform(c load.Call, then func(load.Result)) {
	answer := func(r load.Result, err error) {
		r.Status, r.Over = errnoName(err), e.over()
		then(r)
	}
	switch c.Do {
	case load.Pace:
		e.pause(c.Pace, then)
	case load.Sleep:
		e.a.p.after(c.For, func() { answer(load.Result{}, nil) })
	case load.Recv:
		e.receive(c, nil, answer)
	default:
		e.call(c, answer)
	}
}

// receive receives behind the bytes in come: all that the call wants, or those available.
func (e *appEnd) receive(c load.Call, come []byte, then func(load.Result, error)) {
	part := c
	part.Len -= len(come)
	e.call(part, func(r load.Result, err error) {
		come = append(come, r.Data...)
		if c.Full && err == nil && len(come) < c.Len {
			e.receive(c, come, then)
			return
		}
		then(load.Result{Data: come}, err)
	})
}

// call makes a call of load's. The first one that fails is how the connection ends.
func (e *appEnd) call(c load.Call, then func(load.Result, error)) {
	if c.Quiet {
		e.s.n.p.soon(func() {
			e.ep.perform(c, func(r load.Result, err error) { e.a.p.soon(func() { then(r, err) }) })
		})
		return
	}
	var result load.Result
	call := e.callOf(c.Name())
	call.Idle = c.Idle()
	e.a.do(call, e, c.AtOnce, func(done func(int64, error)) {
		e.ep.perform(c, func(r load.Result, err error) {
			result = r
			done(r.N, err)
		})
	}, func(_ int64, err error) {
		e.Note(errnoName(err))
		then(result, err)
	})
}

// A pause is a task that waits for its pace.
type pause struct {
	e    *appEnd
	pace *load.Pacer
	then func(load.Result) // nil: it is over
}

// pause waits until the next step of a pace is due, or the end is canceled.
func (e *appEnd) pause(pace *load.Pacer, then func(load.Result)) {
	p := &pause{e, pace, then}
	e.pauses = append(e.pauses, p)
	e.a.p.after(max(pace.Due(e.a.w.now)-e.a.w.now, 0), p.end)
}

func (p *pause) end() {
	then := p.then
	if then == nil {
		return
	}
	p.then = nil
	p.e.pauses = without(p.e.pauses, p)
	p.pace.Taken(p.e.a.w.now)
	then(load.Result{Over: p.e.over()})
}

// look looks at the words that signals are stored in, in the moment in which something
// was stored, as a thread that spins on the words may.
func (e *appEnd) look() {
	if e.a.p.dead || e.a.p.paused || e.over() {
		return
	}
	for _, t := range e.Look() {
		e.a.p.after(0, func() {
			if !e.over() {
				e.begin([]load.Task{t})
			}
		})
	}
}

// taskEnded counts a task that has ended. Unless nothing more was to begin, the others
// end too.
func (e *appEnd) taskEnded(over bool) {
	if e.tasks--; !over {
		e.cancel()
	}
	if e.tasks == 0 {
		e.close()
	}
}

// cancel ends the calls and tasks of the end.
func (e *appEnd) cancel() {
	if e.canceled {
		return
	}
	e.canceled = true
	for _, o := range e.a.calls.Open() {
		if o.Of.end == e && o.Idle {
			e.a.finish(o, 0, status.Canceled)
		}
	}
	for _, p := range e.pauses {
		e.a.p.after(0, p.end)
	}
}

// gone ends the end because its fabricd is gone: there is nothing to close.
func (e *appEnd) gone() {
	e.canceled = true
	e.Note(errnoName(status.Reset))
	e.wrapUp()
}

// close closes the end and writes how it ended.
func (e *appEnd) close() {
	if e.closed || e.closing {
		return
	}
	e.closing = true
	w := e.Window()
	if w == nil || e.Failed != "" || e.a.s != e.s {
		e.closeNow()
		return
	}
	c := load.Call{Do: load.Unregister, Offset: w.Offset, Len: w.Len()}
	e.perform(c, func(load.Result) { e.closeNow() })
}

func (e *appEnd) closeNow() {
	if e.closed {
		return
	}
	e.a.do(e.callOf("close"), e, false, func(done func(int64, error)) {
		e.ep.close(func(err error) { done(0, err) })
	}, func(_ int64, err error) {
		if status.Of(err) != status.BadFD || e.a.s != e.s {
			e.wrapUp()
			return
		}
		// Its fabricd is closing it already. Until that is through the peer's
		// operations that were under way may still arrive.
		e.s.n.p.soon(func() { e.ep.whenThrough(func() { e.a.p.soon(e.wrapUp) }) })
	})
}

// wrapUp writes the end of the end.
func (e *appEnd) wrapUp() {
	if e.closed {
		return
	}
	e.closed = true
	a := e.a
	a.ends = without(a.ends, e)
	a.put(e.Closed())
	if w := e.TakeWindow(); w != nil {
		if p := e.s.n.p; p.leaving && !p.dead { // it completes the operations under way
			a.p.after(leaveTime, func() { a.keepOld(w) })
		} else {
			a.keepOld(w)
		}
	}
	if e.after != nil {
		e.after()
	}
}

func (e *appEnd) callOf(name string) history.Call {
	c := history.Call{Name: name, Peer: e.Remote}
	if e.ID.Conn != 0 {
		c.Conn, c.Side = e.ID.Conn, e.ID.Side
	}
	return c
}

// probe makes a call towards an incarnation whose removal was just reported to the application:
// it has to fail.
func (e *appEnd) probe() {
	if e.closed {
		return
	}
	e.a.do(e.callOf("fence_mark"), e, true, func(done func(int64, error)) {
		e.ep.perform(load.Call{Do: load.Mark}, func(_ load.Result, err error) { done(0, err) })
	}, func(int64, error) {})
}

// keepOld keeps a window whose connection has ended: no peer may write to it any more. The
// oldest of too many is scanned a last time and given up.
func (a *app) keepOld(w *load.Window) {
	a.put(&history.WindowGone{ID: w.ID})
	a.scan(w)
	a.oldWindows = append(a.oldWindows, w)
	if len(a.oldWindows) > load.MaxGraves {
		a.scan(a.oldWindows[0])
		a.oldWindows = slices.Delete(a.oldWindows, 0, 1)
	}
}

// scan writes down the content of a window. Here no word is half written.
func (a *app) scan(w *load.Window) { a.put(w.Scan().Record()) }

// errnoName returns the status of a [load.Result] for an error.
func errnoName(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, io.EOF):
		return history.HowEOF
	}
	return history.Errno(status.Of(err).Errno())
}

// The methods from Now on implement [load.Env].

// Now returns the virtual time.
func (a *app) Now() time.Duration { return a.w.now }

// Put writes that something has happened now.
func (a *app) Put(b history.Body) { a.put(b) }

// Bug writes that a promise was broken which no other record shows.
func (a *app) Bug(format string, args ...any) { a.w.watch.at(a.src, format, args...) }

// Nonce returns a number that no other connection or window of the run has.
func (a *app) Nonce() uint64 {
	a.nonces++
	return load.Nonce(a.w.seed, a.src, a.nonces)
}

// A slab is memory of an application.
type slab []byte

// Bytes returns the memory.
func (s slab) Bytes() []byte { return s }

// Close does nothing: the garbage collector frees the memory.
func (s slab) Close() error { return nil }

// Alloc returns memory that can be registered.
func (a *app) Alloc(n int) (load.Memory, error) { return make(slab, n), nil }

// Load loads a word.
func (a *app) Load(word []byte) uint64 { return binary.LittleEndian.Uint64(word) }

// Writer returns the end that a writer field stands for.
func (a *app) Writer(hash uint32, conn uint64) (load.Known, bool) { return a.writers.Find(hash, conn) }

// Slow returns how many messages a second each connection receives; 0: all.
func (a *app) Slow() int { return a.slow }
