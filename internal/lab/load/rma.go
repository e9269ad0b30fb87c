package load

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	maxStages  = 16
	stageBytes = 4 << 20 // of all of them, if more than two fit
)

// An operator is one end as an initiator of operations.
type operator struct {
	e *End
	g geometry

	peerID  uint64 // of the peer's window; 0: not known yet
	peerOff int64  // of the peer's window in its space

	stage   *stage
	nstages int

	pace    *Pacer
	n       uint64   // operations begun
	fenced  uint64   // highest operation that a fence has covered
	last    []uint64 // of each slot of the peer's window, the last write
	counter uint64   // atomics done
	reads   []pendingRead
	marks   int // fences so far
	signals int
}

// A pendingRead is a read that a fence has to complete.
type pendingRead struct {
	n    uint64
	dst  []byte
	want func([]byte) int
}

// A stage is the memory that operations are written from and read to, one part for each
// that is under way, and a word behind them in which signals are stored too.
type stage struct {
	mem    Memory
	offset int64
	signal uint64 // last value seen in the word
}

func (s *stage) signalAt() int { return len(s.mem.Bytes()) - 8 }

// operate opens a window for the peer, writes to and reads from the peer's window, and
// checks the operations that the peer reports as written.
func (e *End) operate() Step {
	g := newGeometry(e.plan.RMA)
	w, err := e.newWindow(g)
	if err != nil {
		return e.without(err)
	}
	c := Call{Do: Register, Mem: w.mem, From: guardSize, Len: g.window, Writes: true}
	return Step{Call: c, Then: func(r Result) Step {
		if r.Status != "" || r.Over {
			w.Free()
			return ended(r)
		}
		w.Offset = r.N
		e.window = w
		e.env.Put(&history.Window{ConnEnd: e.ID, ID: w.ID, Owner: e.Local, Offset: w.Offset, Len: int64(g.window)})
		return send(putFrame(frameWindow, w.ID, uint64(w.Offset), uint64(g.window)), func(r Result) Step {
			if r.Status != "" {
				return ended(r)
			}
			return (&operator{e: e, g: g, last: make([]uint64, g.slots)}).frames(r)
		})
	}}
}

// without ends a task for which there is no memory.
func (e *End) without(err error) Step {
	e.env.Put(&history.Note{Text: "no memory: " + err.Error()})
	return done
}

// frames takes the peer's frames. The first one describes its window; then work begins.
func (o *operator) frames(r Result) Step {
	return recvFull(frameSize, func(r Result) Step {
		if r.Status != "" || r.Over {
			return ended(r)
		}
		var begun []Task
		switch kind, a, b := frameIn(r.Data); {
		case kind == frameWindow && o.peerID == 0 && a != 0:
			o.peerID, o.peerOff = a, int64(b)
			begun = []Task{{First: o.begin(), Begins: true}}
		case kind == frameDone && o.e.window != nil:
			o.e.window.checkReported(a)
		case kind == frameLent:
			begun = []Task{{First: o.e.borrow(int64(a))}}
		}
		next := o.frames(r)
		next.Also = begun
		return next
	})
}

// begin registers the stage. SCIF wants a protection that allows its use; the peer does
// not know the window.
func (o *operator) begin() Step {
	o.nstages = max(2, min(maxStages, stageBytes/o.g.max))
	mem, err := o.e.env.Alloc(wholePages(o.nstages*o.g.max + 8))
	if err != nil {
		return o.e.without(err)
	}
	c := Call{Do: Register, Mem: mem, Len: len(mem.Bytes()), Writes: true}
	return Step{Call: c, Then: func(r Result) Step {
		o.stage = &stage{mem: mem, offset: r.N}
		if r.Status != "" {
			return o.end(r)
		}
		o.e.stage = o.stage
		o.pace = o.e.plan.AtRate(o.e.plan.RMA.Rate, r.Now)
		next := o.wait(r)
		if o.e.plan.Windows > 0 { // from now on, so that no other window is ever where lent ones are
			next.Also = []Task{{First: o.e.lend(r.Now), Begins: true}}
		}
		return next
	}}
}

// end ends the task. The status of operations that no fence has completed is not known.
// Operations of the ended connection may still use the stage: the engine holds its pages.
func (o *operator) end(r Result) Step {
	for _, p := range o.reads {
		o.done(p.n, "", -1)
	}
	o.reads, o.e.stage = nil, nil
	_ = o.stage.mem.Close() // unmaps; there is nothing to do about a failure
	return ended(r)
}

func (o *operator) wait(Result) Step { return Step{Call: Call{Do: Pace, Pace: o.pace}, Then: o.work} }

// work makes one operation, and fences and signals where they are due.
func (o *operator) work(r Result) Step {
	if r.Over {
		return o.end(r)
	}
	o.e.lookForSignal()
	if o.n-o.fenced >= uint64(o.nstages) {
		return o.fence(o.work)
	}
	return o.next(func(r Result) Step {
		if r.Status != "" {
			return o.end(r)
		}
		p := o.e.plan.RMA
		due := func(every int) bool { return every > 0 && o.n%uint64(every) == 0 }
		signal := o.wait
		if due(p.Signal) {
			signal = o.signal
		}
		if due(p.Fence) {
			return o.fence(signal)
		}
		return signal(r)
	})
}

// next makes one operation.
func (o *operator) next(then func(Result) Step) Step {
	o.n++
	op := o.g.operation(o.e.ID, o.n)
	switch {
	case op.Verb == fetchAdd:
		return o.add(op, then)
	case op.Verb.writes():
		return o.write(op, then)
	}
	return o.read(op, then)
}

// transfer returns the step of an operation, and its memory at this end.
func (o *operator) transfer(op Operation, sync bool, then func(Result) Step) (Step, []byte) {
	at := int(op.n%uint64(o.nstages)) * o.g.max
	c := Call{Do: Transfer, RMA: op, Buf: o.stage.mem.Bytes()[at : at+op.Len], Offset: o.stage.offset + int64(at),
		Remote: o.peerOff + int64(op.off), Sync: sync}
	o.announce(op, sync)
	return Step{Call: c, Then: then}, c.Buf
}

// announce writes that an operation is about to begin.
func (o *operator) announce(op Operation, sync bool) {
	o.e.env.Put(&history.RMA{ConnEnd: o.e.ID, Op: op.n, Name: op.Verb.Name(), Window: o.peerID,
		Offset: int64(op.off), Len: int64(op.Len), Sync: sync})
}

// done writes how the call that began an operation ended.
func (o *operator) done(n uint64, status string, bad int) {
	r := &history.RMADone{ConnEnd: o.e.ID, Op: n, Status: status}
	if bad >= 0 {
		r.Bad = new(int64(bad))
	}
	o.e.env.Put(r)
}

func (o *operator) write(op Operation, then func(Result) Step) Step {
	s, src := o.transfer(op, op.Verb == SyncWrite, func(r Result) Step {
		o.done(op.n, r.Status, -1)
		return then(r)
	})
	stamp(src, writerOf(o.e.ID), op.n)
	o.last[op.n%uint64(o.g.slots)] = op.n
	return s
}

// read reads a slot of the peer's window that only this end writes. It has to find the
// last write before it and nothing of a later one, because operations of an endpoint
// are applied in order.
func (o *operator) read(op Operation, then func(Result) Step) Step {
	off, last := op.off, o.last[op.off/o.g.max]
	if last != 0 {
		op.Len = o.g.operation(o.e.ID, last).Len
	}
	want := func(p []byte) int { return o.found(p, off, last) }
	sync := op.n%2 == 0
	var dst []byte
	s, dst := o.transfer(op, sync, func(r Result) Step {
		switch {
		case r.Status != "":
			o.done(op.n, r.Status, -1)
		case sync:
			o.done(op.n, "", want(dst))
		default:
			o.reads = append(o.reads, pendingRead{op.n, dst, want})
		}
		return then(r)
	})
	clear(dst)
	return s
}

// found returns the index of the first word of a slot at off that is not of operation
// last, -1 if there is none. If last is 0, the slot was never written and holds the
// window's own fill.
func (o *operator) found(p []byte, off int, last uint64) int {
	writer, fill := writerOf(o.e.ID), fillOf(o.peerID)
	for i := range len(p) / 8 {
		want := tagAt(fill, 0, off/8+i)
		if last != 0 {
			want = tagAt(writer, last, i)
		}
		if tag(o.e.env.Load(p[i*8:])) != want {
			return i
		}
	}
	return -1
}

// add adds 1 to the peer's counter, which is ours alone.
func (o *operator) add(op Operation, then func(Result) Step) Step {
	o.announce(op, true)
	return Step{Call: Call{Do: FetchAdd, Remote: o.peerOff + int64(op.off)}, Then: func(r Result) Step {
		bad := -1
		if r.Status == "" && uint64(r.N) != o.counter {
			bad = 0
		}
		o.counter++
		o.done(op.n, r.Status, bad)
		return then(r)
	}}
}

// fence waits until all operations so far have completed, checks the bytes that they read, and
// notifies the peer. Every eighth fence also waits for the operations that the peer has begun.
func (o *operator) fence(then func(Result) Step) Step {
	upto := o.n
	return fenceWait(false, func(r Result) Step {
		o.e.noteUnexpected(r.Status)
		for _, p := range o.reads {
			bad := -1
			if r.Status == "" {
				bad = p.want(p.dst)
			}
			o.done(p.n, "", bad)
		}
		o.reads = o.reads[:0]
		o.e.env.Put(&history.Fenced{ConnEnd: o.e.ID, Upto: upto, Status: r.Status})
		if r.Status != "" {
			return o.end(r)
		}
		o.fenced = upto
		return send(putFrame(frameDone, upto), func(r Result) Step {
			if r.Status != "" {
				return o.end(r)
			}
			if o.marks++; o.marks%8 != 0 {
				return then(r)
			}
			return fenceWait(true, orEnd(o.end, then))
		})
	})
}

// orEnd goes on with then if a call has worked, and else with end.
func orEnd(end, then func(Result) Step) func(Result) Step {
	return func(r Result) Step {
		if r.Status != "" {
			return end(r)
		}
		return then(r)
	}
}

// fenceWait takes a mark and waits for it.
func fenceWait(peer bool, then func(Result) Step) Step {
	return Step{Call: Call{Do: Mark, Peer: peer}, Then: func(r Result) Step {
		if r.Status != "" {
			return then(r)
		}
		return Step{Call: Call{Do: Wait, Mark: r.Mark, AtOnce: true}, Then: then}
	}}
}

// noteUnexpected notes an operation that was begun well and failed although nothing happened to
// the connection: its window was taken away under it.
func (e *End) noteUnexpected(status string) {
	if !slices.Contains([]string{"", "ECONNRESET", "ENODEV", "ECANCELED", "EINTR", "EBADF", "ENOTCONN"}, status) {
		e.env.Bug("an operation that was begun in order failed: %s", status)
	}
}

// signal asks for the number of the last operation to be stored at the peer when all so
// far have completed, and every second time at this end too.
func (o *operator) signal(Result) Step {
	o.e.env.Put(&history.Signal{ConnEnd: o.e.ID, Value: o.n})
	c := Call{Do: Signal, Remote: o.peerOff + int64(o.g.signalAt()), Value: o.n}
	if o.signals++; o.signals%2 == 0 {
		c.Offset = o.stage.offset + int64(o.stage.signalAt())
	}
	return Step{Call: c, Then: orEnd(o.end, o.wait)}
}

// Look reads the words that signals are stored in, as a spinning thread may, and
// returns the tasks that follow.
func (e *End) Look() []Task {
	e.lookForSignal()
	s := e.stage
	if s == nil {
		return nil
	}
	v := e.env.Load(s.mem.Bytes()[s.signalAt():])
	if v == s.signal {
		return nil
	}
	s.signal = v // all operations up to it have completed, as after a fence
	e.env.Put(&history.Fenced{ConnEnd: e.ID, Upto: v})
	return []Task{{First: send(putFrame(frameDone, v), func(r Result) Step { return Step{Over: r.Status == ""} })}}
}

// lookForSignal looks at the word of the own window that the peer stores signals in.
func (e *End) lookForSignal() {
	if e.window != nil {
		e.window.lookForSignal()
	}
}
