package workload

import (
	"sync"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	maxStages  = 16
	stageBytes = 4 << 20 // of all of them, if more than two fit
)

// operate opens a window for the peer, writes to and reads from the peer's, and
// checks what the peer says it has written, until the connection or the
// application ends.
func (e *end) operate() {
	g := newGeometry(e.s.app.c.RMA)
	if !e.openWindow(g) {
		return
	}
	o := &operator{e: e, g: g, last: make([]uint64, g.slots)}
	peer := make(chan struct{}) // closed when the peer's window is known
	var wg sync.WaitGroup
	wg.Go(func() {
		defer e.cancel()
		o.hear(peer)
	})
	if n := e.s.app.c.Windows; n > 0 {
		wg.Go(func() { e.churn(n) })
	}
	select {
	case <-peer:
		o.work()
	case <-e.ctx.Done():
	}
	e.linger()
	wg.Wait()
	o.forget()
}

// openWindow registers a window and tells the peer.
func (e *end) openWindow(g geometry) bool {
	w, err := newWindow(e, g)
	if err != nil {
		e.s.app.note("window: %v", err)
		return false
	}
	err = e.try("register", func() (err error) {
		w.offset, err = e.ep.Register(w.bytes, 0, fabric.ProtRead|fabric.ProtWrite, 0)
		return err
	})
	if err != nil {
		w.free()
		return false
	}
	e.put(&history.Window{ConnEnd: e.id, ID: w.id, Owner: e.local, Offset: w.offset, Len: int64(g.window)})
	e.window.Store(w)
	_, err = e.send(putFrame(frameWindow, w.id, uint64(w.offset), uint64(g.window)))
	return err == nil
}

// churn registers and unregisters windows beside the RMA, n per second.
func (e *end) churn(n int) {
	mem, err := e.s.node.Alloc(churnSize)
	if err != nil {
		e.s.app.note("window: %v", err)
		return
	}
	defer mem.Close()
	defer e.s.app.active()()
	pace := e.s.app.atRate(n)
	defer pace.stop()
	for e.paced(pace) {
		var off int64
		err := e.try("register", func() (err error) {
			off, err = e.ep.Register(mem.Bytes(), 0, fabric.ProtRead, 0)
			return err
		})
		if err != nil || e.try("unregister", func() error { return e.ep.Unregister(off, churnSize) }) != nil {
			return
		}
	}
}

const churnSize = 4 * pageSize

// An operator is one end as an initiator.
type operator struct {
	e *end
	g geometry

	peerID  uint64 // of the peer's window; set before work
	peerOff int64  // of the peer's window in its space

	stages   []byte // memory of operations under way, one slot for each
	stageMem *fabric.Memory
	stageOff int64
	nstages  int

	n       uint64   // operations begun
	fenced  uint64   // highest operation that a fence has covered
	last    []uint64 // of each slot of the peer's window, the last write
	counter uint64   // atomics done
	reads   []pendingRead
	marks   int // fences so far
}

// A pendingRead is a read that a fence has to complete.
type pendingRead struct {
	n    uint64
	dst  []byte
	want func([]byte) int
}

// hear takes the peer's frames.
func (o *operator) hear(peer chan<- struct{}) {
	p := make([]byte, frameSize)
	for {
		if _, err := o.e.recv(p); err != nil {
			return
		}
		switch kind, a, b, _ := frameIn(p); kind {
		case frameWindow:
			if o.peerID == 0 && a != 0 {
				o.peerID, o.peerOff = a, int64(b)
				close(peer)
			}
		case frameDone:
			if w := o.e.window.Load(); w != nil {
				w.checkTold(a)
			}
		}
	}
}

// work makes operations at the workload's rate, and fences and signals between
// them, until one fails.
func (o *operator) work() {
	defer o.e.s.app.active()()
	if !o.stage() {
		return
	}
	r := o.e.s.app.c.RMA
	fences, signals := uint64(r.Fence), uint64(r.Signal)
	pace := o.e.s.app.atRate(r.Rate)
	defer pace.stop()
	for o.e.paced(pace) {
		if o.n-o.fenced >= uint64(o.nstages) && !o.fence() {
			return
		}
		if o.e.lookForSignal(); !o.next() ||
			fences > 0 && o.n%fences == 0 && !o.fence() ||
			signals > 0 && o.n%signals == 0 && !o.signal() {
			return
		}
	}
}

// lookForSignal looks at the word of the own window that the peer stores signals in.
func (e *end) lookForSignal() {
	if w := e.window.Load(); w != nil {
		w.lookForSignal()
	}
}

// stage makes the memory that operations are written from and read to. SCIF
// wants a protection that allows that; the peer does not know the window.
func (o *operator) stage() bool {
	o.nstages = max(2, min(maxStages, stageBytes/o.g.slot))
	size := (o.nstages*o.g.slot + pageSize - 1) / pageSize * pageSize
	mem, err := o.e.s.node.Alloc(size)
	if err != nil {
		o.e.s.app.note("stage: %v", err)
		return false
	}
	o.stageMem, o.stages = mem, mem.Bytes()
	return o.e.try("register", func() (err error) {
		o.stageOff, err = o.e.ep.Register(o.stages, 0, fabric.ProtRead|fabric.ProtWrite, 0)
		return err
	}) == nil
}

// forget gives the stages up, and what no fence has completed. What the ended
// connection has begun may still use the stages: the engine holds their pages.
func (o *operator) forget() {
	for _, r := range o.reads {
		o.done(r.n, nil, -1)
	}
	if o.stageMem != nil {
		o.stageMem.Close()
	}
}

// next makes one operation.
func (o *operator) next() bool {
	o.n++
	op := o.g.operation(o.e.id, o.n)
	at := int(o.n%uint64(o.nstages)) * o.g.slot
	switch {
	case op.verb == fetchAdd:
		return o.add(op)
	case op.verb.writes():
		return o.write(op, at)
	default:
		return o.read(op, at)
	}
}

// announce writes that an operation is about to begin.
func (o *operator) announce(op operation, sync bool) {
	o.e.put(&history.RMA{ConnEnd: o.e.id, Op: op.n, Name: op.verb.name(), Window: o.peerID,
		Offset: int64(op.off), Len: int64(op.len), Sync: sync})
}

// done writes how the call that began an operation ended.
func (o *operator) done(n uint64, err error, bad int) {
	r := &history.RMADone{ConnEnd: o.e.id, Op: n, Status: statusOf(err)}
	if bad >= 0 {
		at := int64(bad)
		r.Bad = &at
	}
	o.e.put(r)
}

func (o *operator) write(op operation, at int) bool {
	src := o.stages[at : at+op.len]
	stamp(src, writerOf(o.e.id), op.n)
	flags := map[verb]fabric.RMAFlags{syncWrite: fabric.Sync, orderedWrite: fabric.Ordered}[op.verb]
	dst := o.peerOff + int64(op.off)
	o.announce(op, op.verb == syncWrite)
	o.last[op.n%uint64(o.g.slots)] = op.n
	err := o.e.try(op.verb.name(), func() error {
		if op.verb == write {
			return o.e.ep.WriteTo(o.stageOff+int64(at), int64(op.len), dst, flags)
		}
		return o.e.ep.VWriteTo(src, dst, flags)
	})
	o.done(op.n, err, -1)
	return err == nil
}

// read reads a slot of the peer's window, which nobody else writes: it has to
// find the last write before it and nothing of a later one, because operations
// of an endpoint are applied in order.
func (o *operator) read(op operation, at int) bool {
	n, slot := op.len, op.off/o.g.slot
	last := o.last[slot]
	if last != 0 {
		n = o.g.operation(o.e.id, last).len
	}
	op.len = n
	want := func(p []byte) int { return o.found(p, slot, last) }
	dst := o.stages[at : at+n]
	clear(dst)
	sync := op.n%2 == 0
	var flags fabric.RMAFlags
	if sync {
		flags = fabric.Sync
	}
	src := o.peerOff + int64(op.off)
	o.announce(op, sync)
	err := o.e.try(op.verb.name(), func() error {
		if op.verb == read {
			return o.e.ep.ReadFrom(o.stageOff+int64(at), int64(n), src, flags)
		}
		return o.e.ep.VReadFrom(dst, src, flags)
	})
	switch {
	case err != nil:
		o.done(op.n, err, -1)
	case sync:
		o.done(op.n, nil, want(dst))
	default:
		o.reads = append(o.reads, pendingRead{op.n, dst, want})
	}
	return err == nil
}

// found returns the index of the first word of a slot that is not of operation
// last, -1 if there is none. A slot that last, 0, says nobody has written holds
// the window's own fill.
func (o *operator) found(p []byte, slot int, last uint64) int {
	writer, fill := writerOf(o.e.id), fillOf(o.peerID)
	for i := range len(p) / 8 {
		want := tagAt(fill, 0, slot*o.g.slot/8+i)
		if last != 0 {
			want = tagAt(writer, last, i)
		}
		if tag(loadWord(p[i*8:])) != want {
			return i
		}
	}
	return -1
}

// add adds 1 to the peer's counter, which is ours alone.
func (o *operator) add(op operation) bool {
	o.announce(op, true)
	var old uint64
	err := o.e.try("atomic", func() (err error) {
		old, err = o.e.ep.FetchAdd64(o.e.ctx, o.peerOff+int64(op.off), 1)
		return err
	})
	bad := -1
	if err == nil && old != o.counter {
		bad = 0
	}
	o.counter++
	o.done(op.n, err, bad)
	return err == nil
}

// fence waits until all operations so far have completed, checks what they
// read, and tells the peer to look. Every eighth time it also waits for what
// the peer has begun.
func (o *operator) fence() bool {
	upto := o.n
	err := o.fenceWait(fabric.InitSelf)
	for _, r := range o.reads {
		bad := -1
		if err == nil {
			bad = r.want(r.dst)
		}
		o.done(r.n, nil, bad)
	}
	o.reads = o.reads[:0]
	o.e.put(&history.Fenced{ConnEnd: o.e.id, Upto: upto, Status: statusOf(err)})
	if err != nil {
		return false
	}
	o.fenced = upto
	if _, err := o.e.send(putFrame(frameDone, upto, 0, 0)); err != nil {
		return false
	}
	o.marks++
	return o.marks%8 != 0 || o.fenceWait(fabric.InitPeer) == nil
}

// fenceWait takes a mark and waits for it.
func (o *operator) fenceWait(by fabric.Side) error {
	var m fabric.Mark
	err := o.e.try("fence_mark", func() (err error) {
		m, err = o.e.ep.FenceMark(by)
		return err
	})
	if err != nil {
		return err
	}
	call := o.e.begin("fence_wait", true)
	err = o.e.ep.FenceWait(o.e.ctx, m)
	o.e.end(call, 0, err)
	return err
}

// signal asks for the number of the last operation to be stored at the peer
// when all so far have completed.
func (o *operator) signal() bool {
	o.e.put(&history.Signal{ConnEnd: o.e.id, Value: o.n})
	return o.e.try("fence_signal", func() error {
		return o.e.ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote,
			RemoteOffset: o.peerOff + int64(o.g.signalAt()), RemoteValue: o.n})
	}) == nil
}
