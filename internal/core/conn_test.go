package core

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// newConnected returns two ends, each with a window of one page at 0.
func newConnected(t *testing.T, limits Limits) (a, b *end, inA, inB *memory) {
	a, b = newPair(t, limits)
	return a, b, a.window(b, 0, 1, both), b.window(a, 0, 1, both)
}

func (e *end) mustRead(buf []byte, roff int64, w *Waiter) {
	e.t.Helper()
	if _, err := e.conn.Read(Local{Buf: buf, Length: int64(len(buf))}, roff, 0, w); err != nil {
		e.t.Fatalf("Read: %v", err)
	}
}

func TestAReadThatFailsLateIsRefusedBehindLaterAnswers(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	read, write, mark := new(Waiter), new(Waiter), new(Waiter)
	a.mustRead(make([]byte, 8), 0, read)
	a.mustWrite(0, 8, write)
	if _, err := a.conn.Wait(a.conn.MarkSelf(), mark); err != nil {
		t.Fatal(err)
	}
	a.write(page)
	a.write(page)
	b.take(a)
	b.take(a) // the reply waits, the write is done
	for len(b.queued()) > 0 {
		if b.queue[0].Reply != nil {
			b.skip(status.Fault) // its memory was taken away
		} else {
			b.write(page)
		}
	}
	settle(a, b)
	a.wantWoken("the read", read, status.Fault)
	a.wantWoken("the write", write, status.OK)
	a.wantWoken("the fence", mark, status.Fault)
}

func TestDoneOfLaterOperationsLeavesReadsAndAtomicsOpen(t *testing.T) {
	v, buf := newVictimBusy(t) // write 1, read 2, atomic 3
	v.mustWrite(0, 1, nil)
	v.sent()
	w := new(Waiter)
	if _, err := v.conn.Wait(fence.Mark{Side: fence.InitSelf, Seq: 1}, w); err != nil {
		t.Fatal(err)
	}
	if err := v.send(wire.ReadData{Op: 2, Length: 100, Last: true}, bytes.Repeat([]byte{5}, 100)...); err != nil {
		t.Fatalf("an answer before the Done of the write before it: %v", err)
	}
	v.wantAsleep("the fence over the write", w)
	if err := v.send(wire.Done{Op: 4}); err != nil {
		t.Fatal(err)
	}
	v.wantWoken("the fence over the write", w, status.OK)
	if v.conn.ops.Done() != 2 || buf[99] != 5 {
		t.Errorf("operations up to %d have ended, want 2: the atomic has no result", v.conn.ops.Done())
	}
	if err := v.send(wire.Result{Op: 3, Value: 9}); err != nil || v.conn.ops.Done() != 4 {
		t.Errorf("after the result: %v, operations up to %d have ended, want 4", err, v.conn.ops.Done())
	}
}

func TestNothingBeginsAfterFail(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	a.conn.Fail(status.Reset)
	w := new(Waiter)
	local := Local{Buf: make([]byte, 8), Length: 8}
	for name, call := range map[string]func() error{
		"Register":   func() error { _, err := a.conn.Register(&memory{}, page, page, both, rma.MapFixed, w); return err },
		"Unregister": func() error { _, err := a.conn.Unregister(0, page, w); return err },
		"Export":     func() error { _, err := a.conn.Export(0, page, both); return err },
		"Write":      func() error { _, err := a.conn.Write(local, 0, 0, w); return err },
		"Read":       func() error { _, err := a.conn.Read(local, 0, 0, w); return err },
		"Atomic":     func() error { return a.conn.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8}, w) },
		"MarkPeer":   func() error { return a.conn.MarkPeer(w) },
		"Wait for the peer": func() error {
			_, err := a.conn.Wait(fence.Mark{Side: fence.InitPeer}, w)
			return err
		},
		"Signal": func() error {
			return a.conn.Signal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote})
		},
		"SignalByPeer": func() error {
			return a.conn.SignalByPeer(fence.Signal{By: fence.InitPeer, Where: fence.SignalLocal}, w)
		},
	} {
		if err := call(); !errors.Is(err, status.Reset) {
			t.Errorf("%s: %v, want %v", name, err, status.Reset)
		}
	}
	pending, err := a.conn.Wait(a.conn.MarkSelf(), w)
	if pending || err != nil || w.Code != status.Reset {
		t.Errorf("Wait for nothing: %v, %v, %v, want the end at once", pending, err, w.Code)
	}
	a.wantAsleep("what did not begin", w)
	_ = b
}

func TestFramesAfterFailHaveNoEffect(t *testing.T) {
	a, _, inA, _ := newConnected(t, Limits{})
	a.conn.Fail(status.Reset)
	for _, f := range []framer{
		wire.Write{Op: 1, Length: 1, Last: true}, wire.ReadData{Op: 1, Length: 1},
		wire.Read{Op: 1, Length: 8}, wire.Signal{Op: 1, Value: 1}, wire.Atomic{Op: 1, Kind: 1, Width: 8, Operand: 1},
		wire.Done{Op: 5}, wire.Fail{Op: 5, Code: 1}, wire.Result{Op: 5},
		wire.Register{Offset: page, Length: page}, wire.Unregister{Offset: 0, Length: page}, wire.Registered{}, wire.Unregistered{},
		wire.Mark{}, wire.Marked{}, wire.Wait{}, wire.Waited{}, wire.PeerSignal{Where: 0x10, LocalValue: 1}, wire.PeerSignaled{},
	} {
		p := packet{frame: f.AppendTo(nil)}
		switch f.(type) {
		case wire.Write, wire.ReadData:
			p.payload = []byte{7}
		}
		if err := a.handle(p); err != nil {
			t.Errorf("%T: %v", f, err)
		}
		if p.payload != nil && a.payload == nil {
			t.Errorf("%T: nobody reads the bytes behind it", f)
		}
		a.finish()
	}
	if !bytes.Equal(inA.bytes, make([]byte, page)) {
		t.Error("memory was changed")
	}
}

func TestFailWakesEveryWaiterOnce(t *testing.T) {
	a, b, _, inB := newConnected(t, Limits{})
	waiters := map[string]*Waiter{}
	next := func(name string) *Waiter { waiters[name] = new(Waiter); return waiters[name] }
	a.mustWrite(0, 8, next("write"))
	a.mustRead(make([]byte, 8), 0, next("read"))
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(a.conn.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8}, next("atomic")))
	_, err := a.conn.Wait(a.conn.MarkSelf(), next("own fence"))
	must(err)
	must(a.conn.Signal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote, LocalValue: 1, RemoteValue: 1}))
	must(a.conn.MarkPeer(next("mark")))
	_, err = a.conn.Wait(fence.Mark{Side: fence.InitPeer}, next("peer's fence"))
	must(err)
	must(a.conn.SignalByPeer(fence.Signal{By: fence.InitPeer, Where: fence.SignalLocal}, next("peer's signal")))
	_, err = a.conn.Register(&memory{}, page, page, both, rma.MapFixed, next("register"))
	must(err)
	_, err = a.conn.Unregister(0, page, next("unregister"))
	must(err)

	a.conn.Fail(status.Reset)
	a.wantAsleep("a write whose memory is being read", waiters["write"])
	a.wantAsleep("a fence over it", waiters["own fence"])
	for len(a.queued()) > 0 {
		a.skip(status.OK)
	}
	a.conn.Fail(status.NoDevice) // only the first counts
	a.conn.Close(status.NoDevice)
	for name, w := range waiters {
		a.wantWoken(name, w, status.Reset)
	}
	settle(a, b)
	if !bytes.Equal(inB.bytes, make([]byte, page)) {
		t.Error("a signal was stored after Fail")
	}
}

func TestMemoryIsFreedWhenTheLastUseOfItEnds(t *testing.T) {
	// use begins a use of b's window and returns a function that ends it.
	for name, use := range map[string]func(a, b *end) (end func()){
		"nothing": func(a, b *end) func() { return func() {} },
		"a write of b that is queued": func(a, b *end) func() {
			if _, err := b.conn.Write(Local{Length: 8}, 0, 0, nil); err != nil {
				t.Fatal(err)
			}
			return func() { b.skip(status.OK) }
		},
		"a read of a whose answer is queued": func(a, b *end) func() {
			a.mustRead(make([]byte, 8), 0, nil)
			a.write(page)
			b.take(a)
			return func() { b.skip(status.OK) }
		},
		"a write of a between Handle and PayloadDone": func(a, b *end) func() {
			a.mustWrite(0, 8, nil)
			a.write(page)
			if err := b.handle(a.stream[0]); err != nil {
				t.Fatal(err)
			}
			return b.finish
		},
		"data for b between Handle and PayloadDone": func(a, b *end) func() {
			if _, err := b.conn.Read(Local{Length: 8}, 0, 0, nil); err != nil {
				t.Fatal(err)
			}
			b.write(page)
			a.take(b)
			a.write(page)
			if err := b.handle(a.stream[0]); err != nil {
				t.Fatal(err)
			}
			return b.finish
		},
		"a mapping": func(a, b *end) func() {
			sp, err := b.conn.Export(0, page, both)
			if err != nil {
				t.Fatal(err)
			}
			return func() { b.conn.EndExport(sp) }
		},
	} {
		for _, closes := range []bool{false, true} {
			a, b, _, inB := newConnected(t, Limits{})
			end := use(a, b)
			if closes {
				b.conn.Close(status.Reset)
			} else {
				if _, err := b.conn.Unregister(0, page, new(Waiter)); err != nil {
					t.Fatal(err)
				}
				b.conn.Fail(status.Reset)
			}
			b.perform()
			if used := name != "nothing"; (inB.freed == 0) != used {
				t.Errorf("%s, close %v: freed %d times while it is used: %v", name, closes, inB.freed, used)
			}
			end()
			b.perform()
			if inB.freed != 1 {
				t.Errorf("%s, close %v: freed %d times after its end, want once", name, closes, inB.freed)
			}
			b.conn.Close(status.Reset)
		}
	}
}

func TestUnregisteredComesBehindTheDataOfReads(t *testing.T) {
	a, b, _, inB := newConnected(t, Limits{})
	inB.bytes[7] = 9
	buf, w, gone := make([]byte, 8), new(Waiter), new(Waiter)
	a.mustRead(buf, 0, w)
	if _, err := b.conn.Unregister(0, page, gone); err != nil {
		t.Fatal(err)
	}
	b.write(page)
	a.take(b) // the withdrawal; the read is not answered yet
	if _, err := a.conn.Write(Local{Buf: buf, Length: 8}, 0, 0, nil); !errors.Is(err, status.NoAddress) {
		t.Errorf("a new operation on a withdrawn window: %v", err)
	}
	if got := a.conn.answers.len(); got != 1 {
		t.Errorf("%d answers wait for the read, want the Unregistered", got)
	}
	settle(a, b)
	a.wantWoken("the read", w, status.OK)
	b.wantWoken("the unregister", gone, status.OK)
	if buf[7] != 9 || inB.freed != 1 {
		t.Errorf("read %v, freed %d times", buf, inB.freed)
	}
}

func TestUnregisteredComesBehindSignalsThatWait(t *testing.T) {
	a, b, _, inB := newConnected(t, Limits{})
	a.mustRead(make([]byte, 8), 0, nil)
	s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: 16, RemoteValue: 77}
	if err := a.conn.Signal(s); err != nil {
		t.Fatal(err)
	}
	gone, back := new(Waiter), new(Waiter)
	if _, err := b.conn.Unregister(0, page, gone); err != nil {
		t.Fatal(err)
	}
	if _, err := b.conn.Register(&memory{bytes: make([]byte, page)}, page, page, both, rma.MapFixed, back); err != nil {
		t.Fatal(err)
	}
	settle(a, b)
	b.wantWoken("the unregister", gone, status.OK)
	b.wantWoken("a register behind it", back, status.OK)
	if inB.bytes[16] != 77 {
		t.Error("the signal was lost")
	}
}

func TestLaterSignalsDoNotHoldUpAnUnregister(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	b.window(a, page, 1, both)
	gone := new(Waiter)
	a.mustRead(make([]byte, 8), page, nil) // 1
	if _, err := b.conn.Unregister(0, page, gone); err != nil {
		t.Fatal(err)
	}
	b.write(page)
	a.take(b)
	for range 100 { // there is always a read, and a signal that waits for it
		a.mustRead(make([]byte, 8), page, nil)
		s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: page}
		if err := a.conn.Signal(s); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			a.write(page)
			b.take(a)
			b.write(page)
			a.take(b)
		}
		if b.woken[gone] > 0 {
			return
		}
	}
	t.Error("the unregister waits for signals that came after it")
}

// TestALaterSignalDoesNotOvertakeOneThatWaits: a signal that waits for a read,
// or for the write behind it, is stored before one that was asked for later.
func TestALaterSignalDoesNotOvertakeOneThatWaits(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	var stored []uint64
	b.onStore = func(_ rma.Span[*memory], v uint64) { stored = append(stored, v) }
	signal := func(v uint64) {
		t.Helper()
		s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: 16, RemoteValue: v}
		if err := a.conn.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	a.mustRead(make([]byte, 8), 0, nil)
	a.mustWrite(0, 8, nil)
	signal(1)
	for a.write(page) {
	}
	for b.take(a) {
	}
	b.write(page)
	a.take(b) // the read has ended, the write is not acknowledged
	signal(2)
	settle(a, b)
	if !slices.Equal(stored, []uint64{1, 2}) {
		t.Errorf("signals are stored as %v", stored)
	}
}

func TestSignalsAreNotStoredBehindAFailedOperation(t *testing.T) {
	a, b, inA, inB := newConnected(t, Limits{})
	w := new(Waiter)
	a.mustWrite(0, 8, w)
	a.write(page)
	b.fault = errors.New("the memory is gone") // an error without a code
	b.take(a)
	b.fault = nil
	remote := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: 8, RemoteValue: 1}
	if err := a.conn.Signal(remote); err != nil { // the failure is not known yet
		t.Fatal(err)
	}
	settle(a, b)
	a.wantWoken("the write", w, status.Fault)
	local := fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: 8, LocalValue: 1}
	for _, s := range []fence.Signal{remote, local} {
		if err := a.conn.Signal(s); !errors.Is(err, status.Fault) {
			t.Errorf("a signal over a failed write: %v, want %v", err, status.Fault)
		}
	}
	settle(a, b)
	if inB.bytes[8] != 0 || inA.bytes[8] != 0 {
		t.Error("a signal was stored although an operation before it had failed")
	}
}

func TestAFailedOperationCountsForMarksBehindItOnly(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	before := a.conn.MarkSelf()
	a.mustWrite(0, 8, nil)
	after := a.conn.MarkSelf()
	a.write(page)
	b.fault = status.Fault
	b.take(a)
	settle(a, b)
	for m, want := range map[fence.Mark]status.Code{before: status.OK, after: status.Fault} {
		w := new(Waiter)
		if pending, err := a.conn.Wait(m, w); pending || err != nil || w.Code != want {
			t.Errorf("mark %d: %v, %v, %v, want %v", m.Seq, pending, err, w.Code, want)
		}
	}
}

func TestAReadIntoMemoryThatIsGoneFailsHere(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	w := new(Waiter)
	if _, err := a.conn.Read(Local{Length: 8}, 0, 0, w); err != nil {
		t.Fatal(err)
	}
	a.write(page)
	b.take(a)
	b.write(4)
	b.write(4)
	a.fault = errors.New("gone")
	a.take(b)
	a.fault = nil
	a.take(b)
	a.wantWoken("the read", w, status.Fault)
}

func TestAForgottenWaiterStaysAsleep(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{Requests: 3})
	fenceW, markW, atomicW, opW, registerW := new(Waiter), new(Waiter), new(Waiter), new(Waiter), new(Waiter)
	a.mustWrite(0, 8, opW)
	if _, err := a.conn.Wait(a.conn.MarkSelf(), fenceW); err != nil {
		t.Fatal(err)
	}
	if err := a.conn.MarkPeer(markW); err != nil {
		t.Fatal(err)
	}
	if err := a.conn.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8}, atomicW); err != nil {
		t.Fatal(err)
	}
	if _, err := a.conn.Register(&memory{bytes: make([]byte, page)}, page, 0, both, 0, registerW); err != nil {
		t.Fatal(err)
	}
	waiters := []*Waiter{fenceW, markW, atomicW, opW, registerW}
	for _, w := range waiters {
		a.conn.Forget(w)
	}
	settle(a, b)
	for i, w := range waiters {
		if a.woken[w] != 0 {
			t.Errorf("waiter %d was woken after Forget", i)
		}
	}
	if len(a.conn.requests) != 0 || a.conn.waits.Len() != 0 {
		t.Error("something is kept for a waiter that was forgotten")
	}
}

func TestForgetCoversAnOperationThatEndedAndIsStillInUse(t *testing.T) {
	a, _, _, _ := newConnected(t, Limits{})
	w := new(Waiter)
	a.mustWrite(0, 8, w)
	a.conn.Fail(status.Reset)
	a.conn.Forget(w)
	a.skip(status.OK)
	a.wantAsleep("the forgotten write", w)
}

func TestOrderedIsOfTheWriteAndOfTheReadsInitiator(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	if _, err := a.conn.Write(Local{Length: 100}, 0, rma.Ordered, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.conn.Read(Local{Length: 100}, 0, rma.Ordered, nil); err != nil {
		t.Fatal(err)
	}
	var ordered []bool
	observe := func(e, peer *end) {
		for len(peer.stream) > 0 {
			p := peer.stream[0]
			peer.stream = peer.stream[1:]
			if err := e.handle(p); err != nil {
				t.Fatal(err)
			}
			if e.payload != nil {
				ordered = append(ordered, e.payload.Ordered)
			}
			e.finish()
		}
	}
	for a.write(60) {
	}
	observe(b, a)
	for b.write(60) {
	}
	observe(a, b)
	// The write's first part is not its end; a read's parts are all read by
	// the initiator, which stores each one's last line last.
	if want := []bool{false, true, true, true}; !slices.Equal(ordered, want) {
		t.Errorf("ordered payloads %v, want %v", ordered, want)
	}
}

func TestOldestMakesRoom(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{Ops: 2})
	if m := a.conn.Oldest(); m.Seq != 0 {
		t.Errorf("without operations the oldest is %d", m.Seq)
	}
	a.mustWrite(0, 1, nil)
	a.mustWrite(0, 1, nil)
	if a.conn.Room() {
		t.Fatal("room for a third operation of two")
	}
	w := new(Waiter)
	if pending, err := a.conn.Wait(a.conn.Oldest(), w); !pending || err != nil {
		t.Fatal(pending, err)
	}
	a.write(page)
	b.take(a)
	b.write(page)
	a.take(b)
	a.wantWoken("the wait for room", w, status.OK)
	if !a.conn.Room() {
		t.Error("no room after the oldest operation ended")
	}
}

func TestASignalThatWaitsTakesTheRoomOfItsOperation(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{Ops: 3})
	a.mustRead(make([]byte, 8), 0, nil)
	s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteValue: 1}
	for i := range 2 {
		if !a.conn.Room() {
			t.Fatalf("no room for signal %d behind one operation of three", i+1)
		}
		if err := a.conn.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if a.conn.Room() {
		t.Error("room beside a read and two signals that wait, of three")
	}
	settle(a, b)
	if !a.conn.Room() || a.conn.ops.Done() != 3 {
		t.Errorf("afterwards: room %v, %d operations ended, want 3", a.conn.Room(), a.conn.ops.Done())
	}
}

func TestUnregisterOverSeveralWindowsWakesOnce(t *testing.T) {
	a, b, first, _ := newConnected(t, Limits{})
	second := a.window(b, page, 1, both)
	w := new(Waiter)
	if pending, err := a.conn.Unregister(0, 4*page, w); !pending || err != nil {
		t.Fatal(pending, err)
	}
	if pending, err := a.conn.Unregister(0, 4*page, new(Waiter)); pending || err != nil {
		t.Errorf("unregister of what is being unregistered: %v, %v, want nothing to do", pending, err)
	}
	a.write(page)
	b.take(a)
	settle(a, b)
	a.wantWoken("the unregister", w, status.OK)
	if first.freed != 1 || second.freed != 1 {
		t.Errorf("freed %d and %d times, want once each", first.freed, second.freed)
	}
}

func TestFifoKeepsOrderAndMemory(t *testing.T) {
	var f fifo[int]
	next, want := 0, 0
	for round := range 1000 {
		for range 3 + round%5 {
			f.push(next)
			next++
		}
		for f.len() > 100 || round%7 == 0 && f.len() > 1 {
			if f.front() != want || f.at(f.len()-1) != next-1 || len(f.all()) != f.len() {
				t.Fatalf("round %d: front %d, want %d", round, f.front(), want)
			}
			if got := f.pop(); got != want {
				t.Fatalf("popped %d, want %d", got, want)
			}
			want++
		}
	}
	if cap(f.items) > 512 {
		t.Errorf("room for %d items, never more than 107 queued", cap(f.items))
	}
}

func TestWindowsAreListedByOffsetUntilTheyAreGone(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	a.window(b, 3*page, 2, rma.ProtRead)
	a.window(b, page, 1, rma.ProtWrite)
	list := func() (out []int64) {
		for _, w := range a.conn.Windows() {
			out = append(out, w.Offset)
		}
		return out
	}
	if got, want := list(), []int64{0, page, 3 * page}; !slices.Equal(got, want) {
		t.Errorf("windows at %v, want %v", got, want)
	}
	if _, err := a.conn.Unregister(page, page, new(Waiter)); err != nil {
		t.Fatal(err)
	}
	settle(a, b)
	if got, want := list(), []int64{0, 3 * page}; !slices.Equal(got, want) {
		t.Errorf("after an unregister: windows at %v, want %v", got, want)
	}
}
