package sim

import (
	"encoding/binary"
	"slices"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

const maxStages = 8 // operations that are not covered by a fence

// What the two ends of an RMA connection tell each other, in 32 bytes.
const (
	frameSize   = 32
	frameWindow = 'W' // id, offset, length of the sender's window
	frameDone   = 'F' // all operations up to the number are there
)

func putFrame(kind byte, a, b, c uint64) []byte {
	p := make([]byte, frameSize)
	p[0] = kind
	binary.BigEndian.PutUint64(p[8:], a)
	binary.BigEndian.PutUint64(p[16:], b)
	binary.BigEndian.PutUint64(p[24:], c)
	return p
}

// An operator is one end as an initiator of operations.
type operator struct {
	e *appEnd
	g geometry

	peerID  uint64 // of the peer's window; 0: not known yet
	peerOff int64

	stage    *memory // of operations under way, one slot for each
	stageOff int64

	n       uint64
	fenced  uint64   // highest operation that a fence has covered
	last    []uint64 // of each slot of the peer's window, the last write
	counter uint64   // atomics done
	reads   []pendingRead
	marks   int
	signals int
	pace    *pace
}

// A pendingRead is a read that a fence has to complete.
type pendingRead struct {
	n    uint64
	dst  []byte
	want func([]byte) int
}

// operate opens a window for the peer, writes to and reads from the peer's, and
// checks what the peer says it has written.
func (e *appEnd) operate() {
	l := e.a.w.load.rma
	o := &operator{e: e, g: l.geometry, last: make([]uint64, l.geometry.slots)}
	e.loops += 2
	o.openWindow()
}

// openWindow registers a window and tells the peer.
func (o *operator) openWindow() {
	e := o.e
	w := newWindow(e, o.g)
	e.try("register", func(done func(int64, error)) {
		e.ep.register(w.mem, done)
	}, func(off int64, err error) {
		if err != nil || e.canceled || e.closed {
			e.loopEnded(true)
			e.loopEnded(true)
			return
		}
		w.offset = off
		e.put(&history.Window{ConnEnd: e.id, ID: w.id, Owner: e.local, Offset: off, Len: int64(o.g.window)})
		e.window = w
		e.send(putFrame(frameWindow, w.id, uint64(off), uint64(o.g.window)), func(_ int64, err error) {
			if err != nil {
				e.loopEnded(true)
				e.loopEnded(true)
				return
			}
			o.hear()
		})
	})
}

// hear takes the peer's frames. The first tells its window; then work begins.
func (o *operator) hear() {
	e := o.e
	e.recvFull(frameSize, nil, func(p []byte, err error) {
		if err != nil || e.canceled {
			if o.peerID == 0 {
				e.loopEnded(true) // work has not begun
			}
			e.loopEnded(true)
			return
		}
		a, b := binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[16:])
		switch {
		case p[0] == frameWindow && o.peerID == 0 && a != 0:
			o.peerID, o.peerOff = a, int64(b)
			o.begin()
		case p[0] == frameDone && e.window != nil:
			e.window.checkTold(a)
		case p[0] == frameLent:
			e.borrow(int64(a))
		}
		o.hear()
	})
}

// begin registers the memory that operations are written from and read to.
func (o *operator) begin() {
	e := o.e
	size := (maxStages*o.g.max + 8 + rma.PageSize - 1) / rma.PageSize * rma.PageSize
	o.stage = &memory{bytes: make([]byte, size), stored: o.signaled}
	e.try("register", func(done func(int64, error)) {
		e.ep.register(o.stage, done)
	}, func(off int64, err error) {
		if err != nil {
			o.end()
			return
		}
		o.stageOff = off
		o.pace = newPace(e, e.a.w.load.rma.rate)
		o.pace.wait(o.work)
		if e.a.w.load.windows > 0 {
			e.lend() // from now on, so that no other window is ever where lent ones are
		}
	})
}

// end ends the loop of operations. What no fence has completed is not known.
func (o *operator) end() {
	for _, r := range o.reads {
		o.done(r.n, nil, -1)
	}
	o.reads = nil
	o.e.loopEnded(true)
}

// work makes one operation, and fences and signals where they are due.
func (o *operator) work() {
	e := o.e
	if e.canceled || e.closed {
		o.end()
		return
	}
	if o.n-o.fenced >= maxStages {
		o.fence(o.work)
		return
	}
	o.next(func() {
		l := e.a.w.load.rma
		due := func(every int) bool { return every > 0 && o.n%uint64(every) == 0 }
		again := func() { o.pace.wait(o.work) }
		signal := again
		if due(l.signal) {
			signal = func() { o.signal(again) }
		}
		if due(l.fence) {
			o.fence(signal)
			return
		}
		signal()
	})
}

// next makes one operation; then is called if it was begun.
func (o *operator) next(then func()) {
	o.n++
	op := o.g.operation(o.e.id, o.n)
	at := int(o.n%maxStages) * o.g.max
	switch {
	case op.verb == fetchAdd:
		o.add(op, then)
	case op.verb.writes():
		o.write(op, at, then)
	default:
		o.read(op, at, then)
	}
}

func (o *operator) announce(op operation, sync bool) {
	o.e.put(&history.RMA{ConnEnd: o.e.id, Op: op.n, Name: op.verb.name(), Window: o.peerID,
		Offset: int64(op.off), Len: int64(op.len), Sync: sync})
}

// done writes how the call that began an operation ended.
func (o *operator) done(n uint64, err error, bad int) {
	r := &history.RMADone{ConnEnd: o.e.id, Op: n, Status: errnoName(err)}
	if bad >= 0 {
		at := int64(bad)
		r.Bad = &at
	}
	o.e.put(r)
}

// local returns an operation's memory at this end: a part of the stage, named
// by its offset if it is registered memory that the verb uses.
func (o *operator) local(v verb, at, n int) core.Local {
	if v == write || v == read {
		return core.Local{Offset: o.stageOff + int64(at), Length: int64(n)}
	}
	return core.Local{Buf: o.stage.bytes[at : at+n], Length: int64(n)}
}

func (o *operator) write(op operation, at int, then func()) {
	e := o.e
	src := o.stage.bytes[at : at+op.len]
	stamp(src, writerOf(e.id), op.n)
	var flags rma.Flags
	switch op.verb {
	case syncWrite:
		flags = rma.Sync
	case orderedWrite:
		flags = rma.Ordered
	}
	o.announce(op, op.verb == syncWrite)
	o.last[op.n%uint64(o.g.slots)] = op.n
	e.try(op.verb.name(), func(done func(int64, error)) {
		e.ep.transfer(o.local(op.verb, at, op.len), o.peerOff+int64(op.off), false, flags, func(err error) { done(0, err) })
	}, func(_ int64, err error) {
		o.done(op.n, err, -1)
		o.goOn(err, then)
	})
}

func (o *operator) goOn(err error, then func()) {
	if err != nil {
		o.end()
		return
	}
	then()
}

// read reads a slot of the peer's window, which nobody else writes: it has to
// find the last write before it and nothing of a later one, because operations
// of an endpoint are applied in order.
func (o *operator) read(op operation, at int, then func()) {
	e := o.e
	off, last := op.off, o.last[op.off/o.g.max]
	if last != 0 {
		op.len = o.g.operation(e.id, last).len
	}
	want := func(p []byte) int { return o.found(p, off, last) }
	dst := o.stage.bytes[at : at+op.len]
	clear(dst)
	sync := op.n%2 == 0
	var flags rma.Flags
	if sync {
		flags = rma.Sync
	}
	o.announce(op, sync)
	e.try(op.verb.name(), func(done func(int64, error)) {
		e.ep.transfer(o.local(op.verb, at, op.len), o.peerOff+int64(op.off), true, flags, func(err error) { done(0, err) })
	}, func(_ int64, err error) {
		switch {
		case err != nil:
			o.done(op.n, err, -1)
		case sync:
			o.done(op.n, nil, want(dst))
		default:
			o.reads = append(o.reads, pendingRead{op.n, dst, want})
		}
		o.goOn(err, then)
	})
}

// found returns the index of the first word of a slot at off that is not of
// operation last, -1 if there is none. A slot that last, 0, says nobody has
// written holds the window's own fill.
func (o *operator) found(p []byte, off int, last uint64) int {
	writer, fill := writerOf(o.e.id), fillOf(o.peerID)
	for i := range len(p) / 8 {
		want := tagAt(fill, 0, off/8+i)
		if last != 0 {
			want = tagAt(writer, last, i)
		}
		if tag(binary.LittleEndian.Uint64(p[i*8:])) != want {
			return i
		}
	}
	return -1
}

// add adds 1 to the peer's counter, which is ours alone.
func (o *operator) add(op operation, then func()) {
	e := o.e
	o.announce(op, true)
	e.try("atomic", func(done func(int64, error)) {
		e.ep.fetchAdd(o.peerOff+int64(op.off), 1, func(old uint64, err error) { done(int64(old), err) })
	}, func(old int64, err error) {
		bad := -1
		if err == nil && uint64(old) != o.counter {
			bad = 0
		}
		o.counter++
		o.done(op.n, err, bad)
		o.goOn(err, then)
	})
}

// fence waits until all operations so far have completed, checks what they
// read, and tells the peer to look. Every eighth time it also waits for what
// the peer has begun.
func (o *operator) fence(then func()) {
	e, upto := o.e, o.n
	o.fenceWait(fence.InitSelf, func(err error) {
		o.e.honest(err)
		for _, r := range o.reads {
			bad := -1
			if err == nil {
				bad = r.want(r.dst)
			}
			o.done(r.n, nil, bad)
		}
		o.reads = o.reads[:0]
		e.put(&history.Fenced{ConnEnd: e.id, Upto: upto, Status: errnoName(err)})
		if err != nil {
			o.end()
			return
		}
		o.fenced = upto
		e.send(putFrame(frameDone, upto, 0, 0), func(_ int64, err error) {
			if err != nil {
				o.end()
				return
			}
			if o.marks++; o.marks%8 != 0 {
				then()
				return
			}
			o.fenceWait(fence.InitPeer, func(err error) { o.goOn(err, then) })
		})
	})
}

// honest notes an operation that was begun well and failed although nothing
// happened to the connection: its window was taken away under it.
func (e *appEnd) honest(err error) {
	switch code := status.Of(err); code {
	case status.OK, status.Reset, status.NoDevice, status.Canceled, status.Intr, status.BadFD, status.NotConn:
	default:
		e.a.w.watch.at(e.a.src, "an operation that was begun in order failed: %v", code)
	}
}

// fenceWait takes a mark and waits for it.
func (o *operator) fenceWait(by fence.Side, then func(error)) {
	e := o.e
	var m fence.Mark
	e.try("fence_mark", func(done func(int64, error)) {
		e.ep.mark(by, func(got fence.Mark, err error) {
			m = got
			done(0, err)
		})
	}, func(_ int64, err error) {
		if err != nil {
			then(err)
			return
		}
		e.a.do(e.callOf("fence_wait"), e, true, func(done func(int64, error)) {
			e.ep.wait(m, func(err error) { done(0, err) })
		}, func(_ int64, err error) {
			e.fail(err)
			then(err)
		})
	})
}

// signal asks for the number of the last operation to be stored at the peer
// when all so far have completed.
func (o *operator) signal(then func()) {
	e := o.e
	e.put(&history.Signal{ConnEnd: e.id, Value: o.n})
	s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: o.peerOff + int64(o.g.signalAt()), RemoteValue: o.n}
	if o.signals++; o.signals%2 == 0 {
		s.Where |= fence.SignalLocal
		s.LocalOffset, s.LocalValue = o.stageOff+int64(len(o.stage.bytes)-8), o.n
	}
	e.try("fence_signal", func(done func(int64, error)) {
		e.ep.signal(s, func(err error) { done(0, err) })
	}, func(_ int64, err error) { o.goOn(err, then) })
}

// signaled is called when a value was stored in the stage: all operations up to
// it have completed, as after a fence.
func (o *operator) signaled() {
	e := o.e
	v := binary.LittleEndian.Uint64(o.stage.bytes[len(o.stage.bytes)-8:])
	if v == 0 || e.canceled || e.closed {
		return
	}
	e.a.p.after(0, func() {
		if e.canceled || e.closed {
			return
		}
		e.put(&history.Fenced{ConnEnd: e.id, Upto: v})
		e.send(putFrame(frameDone, v, 0, 0), func(int64, error) {})
	})
}

const (
	guardSize = 64 // bytes before and behind every window, in the same memory
	guardByte = 0xA5
	maxGraves = 32 // windows that are kept after their connection ended
)

// A window is memory that a peer writes to, filled with a tag of its own,
// between two guards that nobody may touch.
type window struct {
	a      *app
	id     uint64
	g      geometry
	owner  history.ConnEnd // this end
	offset int64
	all    []byte // with the guards
	mem    *memory

	told    uint64 // highest operation that the peer has told to be there
	signal  uint64 // last value seen in the signal word
	covered uint64 // highest operation that a signal has told to be there
}

func newWindow(e *appEnd, g geometry) *window {
	w := &window{a: e.a, id: e.a.nonce(), g: g, owner: e.id, all: make([]byte, g.window+2*guardSize)}
	for _, guard := range w.guards() {
		for i := range guard {
			guard[i] = guardByte
		}
	}
	w.mem = &memory{bytes: w.all[guardSize : guardSize+g.window], stored: w.lookForSignal}
	stamp(w.bytes()[:g.slotsEnd()], fillOf(w.id), 0)
	return w
}

func (w *window) bytes() []byte { return w.all[guardSize : guardSize+w.g.window] }

func (w *window) guards() [2][]byte {
	return [2][]byte{w.all[:guardSize], w.all[guardSize+w.g.window:]}
}

// writer is the end that may write the window.
func (w *window) writer() history.ConnEnd {
	return history.ConnEnd{Conn: w.owner.Conn, Side: w.owner.Side.Other()}
}

// lookForSignal writes down a new value of the signal word, and whether what it
// covers is there. It looks in the moment in which something was stored, as a
// thread that spins on the word may.
func (w *window) lookForSignal() {
	v := binary.LittleEndian.Uint64(w.bytes()[w.g.signalAt():])
	if v == w.signal || w.a.p.dead || w.a.p.paused {
		return
	}
	w.signal = v
	r := &history.SignalSeen{ConnEnd: w.owner, Value: v}
	if missing, ok := w.check(&w.covered, v); !ok {
		r.Missing = &missing
	}
	w.a.put(r)
}

// checkTold writes down whether what the peer has told to be there is there.
func (w *window) checkTold(upto uint64) {
	r := &history.Checked{ConnEnd: w.owner, Upto: upto}
	if missing, ok := w.check(&w.told, upto); !ok {
		r.Missing = &missing
	}
	w.a.put(r)
}

// check looks at the operations behind *seen up to upto.
func (w *window) check(seen *uint64, upto uint64) (missing uint64, ok bool) {
	if upto <= *seen {
		return 0, true
	}
	if upto-*seen > 1<<20 {
		return upto, false // out of all proportion
	}
	missing, ok = w.g.visible(w.bytes(), w.writer(), *seen, upto)
	*seen = upto
	return missing, ok
}

// scan writes down what is in the window, word by word.
func (w *window) scan() {
	r := &history.Scan{ID: w.id}
	fill, peer := fillOf(w.id), writerOf(w.writer())
	var found []*history.WindowWriter
	var hashes []uint32
	bytes := w.bytes()
	end := w.g.slotsEnd()
	for i := 0; i < w.g.window; i += 8 {
		word := binary.LittleEndian.Uint64(bytes[i:])
		r.Words++
		r.Sum = (r.Sum ^ word) * 0x100000001B3
		t := tag(word)
		switch {
		case i >= end: // control words, and what no slot takes
		case t.writer() == fill && t.op() == 0 && word&wordMask == uint64(i/8)&wordMask:
		case t.writer() == fill, t.writer() == peer && !w.g.fits(t, i):
			r.Unknown++
		default:
			k := slices.Index(hashes, t.writer())
			if k < 0 {
				from, ok := w.a.find(t.writer(), w.owner.Conn)
				if !ok {
					r.Unknown++
					continue
				}
				k = len(hashes)
				hashes = append(hashes, t.writer())
				found = append(found, &history.WindowWriter{Conn: from.Conn, Life: from.life, First: t.op(), Last: t.op()})
			}
			f := found[k]
			f.First, f.Last = min(f.First, t.op()), max(f.Last, t.op())
			f.Words++
		}
	}
	for _, f := range found {
		r.Writers = append(r.Writers, *f)
	}
	for _, guard := range w.guards() {
		for _, b := range guard {
			if b != guardByte {
				r.Guard++
			}
		}
	}
	w.a.put(r)
}

// bury keeps a window whose connection has ended: nobody may write it any more.
// The oldest of too many is looked at a last time and given up.
func (a *app) bury(w *window) {
	a.put(&history.WindowGone{ID: w.id})
	w.scan()
	a.graves = append(a.graves, w)
	if len(a.graves) > maxGraves {
		a.graves[0].scan()
		a.graves = slices.Delete(a.graves, 0, 1)
	}
}

// fits reports whether a tag of the peer's may be at byte i of the window: the
// right slot, and the right place in it.
func (g geometry) fits(t tag, i int) bool {
	return t.op()%uint64(g.slots) == uint64(i/g.max) && uint64(t)&wordMask == uint64(i%g.max/8)&wordMask
}
