package core

import (
	"math"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

const both = rma.ProtRead | rma.ProtWrite

// newVictim returns an end with a window at 0 and one of its peer's at 0.
func newVictim(t *testing.T, limits Limits) *end {
	v, peer := newPair(t, limits)
	v.window(peer, 0, 1, both)
	peer.window(v, 0, 1, both)
	return v
}

// newVictimBusy returns a victim with a write 1, a read 2 and an atomic 3
// under way, as a peer sees it that has received all three.
func newVictimBusy(t *testing.T) (v *end, buf []byte) {
	v, buf = newVictim(t, Limits{}), make([]byte, 100)
	v.mustWrite(0, 10, nil)
	if _, err := v.conn.Read(Local{Buf: buf, Length: 100}, 0, 0, new(Waiter)); err != nil {
		t.Fatal(err)
	}
	a := rma.Atomic{Op: rma.AtomicAdd, Width: 8, Operand: 1}
	if err := v.conn.Atomic(a, new(Waiter)); err != nil {
		t.Fatal(err)
	}
	v.sent()
	return v, buf
}

func (e *end) mustWrite(roff, n int64, w *Waiter) *Op[*memory] {
	e.t.Helper()
	op, err := e.conn.Write(Local{Buf: make([]byte, n), Length: n}, roff, 0, w)
	if err != nil {
		e.t.Fatalf("Write: %v", err)
	}
	return op
}

func TestFramesThatBreakTheProtocol(t *testing.T) {
	for name, f := range map[string]framer{
		"an operation that skips number 1":    wire.Signal{Op: 2},
		"operation 0":                         wire.Read{Op: 0, Length: 1},
		"a window with an odd offset":         wire.Register{Offset: 4097, Length: page},
		"a window without length":             wire.Register{Offset: page},
		"a window that wraps":                 wire.Register{Offset: 1<<63 - page, Length: 2 * page},
		"a window beyond the space":           wire.Register{Offset: 1 << 63, Length: page},
		"a window of unknown protection":      wire.Register{Offset: page, Length: page, Prot: 4},
		"a window over another one":           wire.Register{Offset: 0, Length: page},
		"the end of a window that is not":     wire.Unregister{Offset: page, Length: page},
		"the end of a part of a window":       wire.Unregister{Offset: 0, Length: 2 * page},
		"Registered that nobody asked for":    wire.Registered{Offset: 0},
		"Unregistered that nobody asked for":  wire.Unregistered{Offset: 0},
		"Marked that nobody asked for":        wire.Marked{Request: 1},
		"Waited that nobody asked for":        wire.Waited{Request: 1},
		"PeerSignaled that nobody asked for":  wire.PeerSignaled{Request: 1},
		"Done of what never began":            wire.Done{Op: 4},
		"Done of the last number there is":    wire.Done{Op: math.MaxUint64},
		"Fail of what never began":            wire.Fail{Op: 4, Code: status.Fault},
		"Fail of operation 0":                 wire.Fail{Op: 0, Code: status.Fault},
		"Result of what never began":          wire.Result{Op: 4},
		"Result of a write":                   wire.Result{Op: 1},
		"Result of a read":                    wire.Result{Op: 2},
		"a frame of another stream":           wire.Bye{},
		"a frame for the engine":              wire.Credit{},
		"Register of a frame cut short":       raw{byte(wire.TypeRegister), 0, 0, 0, 0, 0, 0, 17},
		"ReadData of what never began":        wire.ReadData{Op: 4, Length: 1},
		"ReadData of a write":                 wire.ReadData{Op: 1, Length: 1},
		"more ReadData than was asked for":    wire.ReadData{Op: 2, Length: 101, Last: true},
		"last ReadData that is not all":       wire.ReadData{Op: 2, Length: 99, Last: true},
		"all of the ReadData and it goes on":  wire.ReadData{Op: 2, Length: 100},
		"ReadData longer than any frame":      wire.ReadData{Op: 2, Length: wire.MaxPayload},
		"ReadData of an atomic":               wire.ReadData{Op: 3, Length: 8, Last: true},
		"a write's second part without first": wire.Write{Op: 0, Length: 1, Last: true},
	} {
		v, _ := newVictimBusy(t)
		err := v.handle(packet{frame: f.AppendTo(nil)})
		if err == nil {
			t.Errorf("%s was taken", name)
		}
		v.conn.Close(status.Protocol)
	}
}

// raw is an encoded frame.
type raw []byte

func (r raw) AppendTo(b []byte) []byte { return append(b, r...) }

func TestDoneNeverDecreases(t *testing.T) {
	v := newVictim(t, Limits{})
	v.mustWrite(0, 1, nil)
	v.mustWrite(0, 1, nil)
	v.sent()
	if err := v.send(wire.Done{Op: 2}); err != nil {
		t.Fatal(err)
	}
	if err := v.send(wire.Done{Op: 2}); err != nil {
		t.Errorf("the same Done again: %v", err)
	}
	v.wantRefused("a lower Done", wire.Done{Op: 1})
}

func TestAnOperationIsAnsweredOnce(t *testing.T) {
	v, buf := newVictimBusy(t)
	for _, f := range []framer{wire.Fail{Op: 1, Code: status.Fault}, wire.Result{Op: 3}} {
		if err := v.send(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.send(wire.ReadData{Op: 2, Length: 100, Last: true}, buf...); err != nil {
		t.Fatal(err)
	}
	for op := uint64(1); op <= 3; op++ {
		v.wantRefused("a second answer", wire.Fail{Op: op, Code: status.Fault})
	}
	v.wantRefused("a second Result", wire.Result{Op: 3})
	v.wantRefused("ReadData after the last", wire.ReadData{Op: 2, Length: 1, Last: true}, 0)
}

func TestWritesOfOperationsAreNotInterleaved(t *testing.T) {
	v := newVictim(t, Limits{})
	if err := v.send(wire.Write{Op: 1, Length: 1}, 7); err != nil {
		t.Fatal(err)
	}
	v.wantRefused("another write within a write", wire.Write{Op: 2, Length: 1, Last: true}, 7)
	v.wantRefused("a read within a write", wire.Read{Op: 2, Length: 1})
	v.wantRefused("a signal with the number of a write", wire.Signal{Op: 1})
	v.wantRefused("an atomic within a write", wire.Atomic{Op: 2, Kind: 1, Width: 8})
	if err := v.send(wire.Mark{Request: 1}); err != nil {
		t.Errorf("a request within a write: %v", err)
	}
	if err := v.send(wire.Write{Op: 1, Length: 1, Last: true}, 7); err != nil {
		t.Errorf("the rest of a write: %v", err)
	}
}

func TestOperationsOutsideWindowsAreRefusedAndTouchNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		frame framer
		code  status.Code
	}{
		{"a write beside the window", wire.Write{Op: 1, Offset: page, Length: 1, Last: true}, status.NoAddress},
		{"a write over its end", wire.Write{Op: 1, Offset: page - 1, Length: 2, Last: true}, status.NoAddress},
		{"a write at a negative offset", wire.Write{Op: 1, Offset: math.MaxUint64, Length: 2, Last: true}, status.NoAddress},
		{"a write that wraps", wire.Write{Op: 1, Offset: math.MaxInt64, Length: 2, Last: true}, status.NoAddress},
		{"a read without length", wire.Read{Op: 1}, status.Invalid},
		{"a read of more than there is", wire.Read{Op: 1, Length: math.MaxUint64}, status.Invalid},
		{"a read of all offsets", wire.Read{Op: 1, Length: math.MaxInt64}, status.NoAddress},
		{"a signal over the end", wire.Signal{Op: 1, Offset: page - 4}, status.NoAddress},
		{"an unknown atomic", wire.Atomic{Op: 1, Kind: 9, Width: 8}, status.Invalid},
		{"an atomic of two bytes", wire.Atomic{Op: 1, Kind: 1, Width: 2}, status.Invalid},
		{"an atomic on an odd word", wire.Atomic{Op: 1, Kind: 1, Width: 8, Offset: 4}, status.Invalid},
		{"an atomic beside the window", wire.Atomic{Op: 1, Kind: 1, Width: 8, Offset: page}, status.NoAddress},
	} {
		v := newVictim(t, Limits{})
		v.stream = nil
		payload := make([]byte, 0)
		if f, ok := tt.frame.(wire.Write); ok {
			payload = make([]byte, f.Length)
		}
		if err := v.send(tt.frame, payload...); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		wantFail(t, v, tt.name, 1, tt.code)
	}
}

func wantFail(t *testing.T, v *end, name string, op uint64, code status.Code) {
	t.Helper()
	v.write(wire.MaxPayload)
	if len(v.stream) != 1 {
		t.Fatalf("%s: %d answers, want one", name, len(v.stream))
	}
	frame := v.stream[0].frame
	f, err := wire.ParseFail(frame[1], frame[wire.HeaderLen:])
	if wire.Type(frame[0]) != wire.TypeFail || err != nil || f.Op != op || f.Code != code {
		t.Errorf("%s: answered %v %+v, want Fail %d with %v", name, wire.Type(frame[0]), f, op, code)
	}
}

func TestProtectionIsCheckedAtTheTarget(t *testing.T) {
	for prot, frames := range map[rma.Prot][]framer{
		rma.ProtRead:  {wire.Write{Op: 1, Length: 1, Last: true}, wire.Signal{Op: 1}, wire.Atomic{Op: 1, Kind: 1, Width: 4}},
		rma.ProtWrite: {wire.Read{Op: 1, Length: 1}, wire.Atomic{Op: 1, Kind: 1, Width: 4}},
		0:             {wire.Write{Op: 1, Length: 1, Last: true}, wire.Read{Op: 1, Length: 1}},
	} {
		for _, f := range frames {
			v, peer := newPair(t, Limits{})
			v.window(peer, 0, 1, prot)
			v.stream = nil
			var payload []byte
			if _, ok := f.(wire.Write); ok {
				payload = []byte{1}
			}
			if err := v.send(f, payload...); err != nil {
				t.Fatal(err)
			}
			wantFail(t, v, "protection", 1, status.Access)
		}
	}
}

func TestAWindowIsWithdrawnOnce(t *testing.T) {
	v := newVictim(t, Limits{})
	if err := v.send(wire.Unregister{Offset: 0, Length: page}); err != nil {
		t.Fatal(err)
	}
	v.wantRefused("the same Unregister again", wire.Unregister{Offset: 0, Length: page})
}

func TestAnswersToWindowsAreMatchedInOrder(t *testing.T) {
	v, _ := newPair(t, Limits{})
	register := func(off int64) {
		if _, err := v.conn.Register(&memory{}, page, off, both, rma.MapFixed, new(Waiter)); err != nil {
			t.Fatal(err)
		}
	}
	register(0)
	register(page)
	v.wantRefused("Registered of the later one", wire.Registered{Offset: page})
	if err := v.send(wire.Registered{Offset: 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := v.conn.Unregister(0, page, new(Waiter)); err != nil {
		t.Fatal(err)
	}
	v.wantRefused("Unregistered before the Registered that is due", wire.Unregistered{Offset: 0})
	if err := v.send(wire.Registered{Offset: page}); err != nil {
		t.Fatal(err)
	}
	v.wantRefused("Unregistered of a window that stays", wire.Unregistered{Offset: page})
	if err := v.send(wire.Unregistered{Offset: 0}); err != nil {
		t.Fatal(err)
	}
}

func TestAnAnswerOfAnotherKindIsRefused(t *testing.T) {
	v := newVictim(t, Limits{})
	w := new(Waiter)
	if err := v.conn.MarkPeer(w); err != nil {
		t.Fatal(err)
	}
	v.wantRefused("Waited to a Mark", wire.Waited{Request: 1})
	v.wantRefused("PeerSignaled to a Mark", wire.PeerSignaled{Request: 1})
	v.wantAsleep("the mark", w)
}

func TestAPeerAnnouncesNoMoreWindowsThanItMay(t *testing.T) {
	v, _ := newPair(t, Limits{Windows: 3})
	for i := range uint64(3) {
		if err := v.send(wire.Register{Offset: i * page, Length: page}); err != nil {
			t.Fatal(err)
		}
	}
	v.wantRefused("a fourth window", wire.Register{Offset: 3 * page, Length: page})
}

func TestTheDefaultsAreThoseOfTheSpecification(t *testing.T) {
	if got, want := (Limits{}).withDefaults(), (Limits{Ops: 1024, Windows: 4096, Requests: 1024}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := (Limits{Ops: 1, Windows: 2, Requests: 3}).withDefaults(), (Limits{1, 2, 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestFloods sends each request far more often than an honest peer does, and
// never an answer: the end's memory for it stays bounded.
func TestFloods(t *testing.T) {
	limits := Limits{Ops: 8, Windows: 4, Requests: 6}
	for name, next := range map[string]func(i uint64) framer{
		"reads":  func(i uint64) framer { return wire.Read{Op: i + 1, Length: page} },
		"waits":  func(i uint64) framer { return wire.Wait{Request: i, Seq: 1} },
		"marks":  func(i uint64) framer { return wire.Mark{Request: i} },
		"answer": func(i uint64) framer { return wire.Done{Op: 0} },
		"remote signals": func(i uint64) framer {
			return wire.PeerSignal{Request: i, Where: uint8(fence.SignalRemote)}
		},
		"signals on both sides": func(i uint64) framer {
			return wire.PeerSignal{Request: i, Where: uint8(fence.SignalRemote | fence.SignalLocal)}
		},
		"windows that come and go while a read needs them": func(i uint64) framer {
			if i%2 == 0 {
				return wire.Unregister{Offset: 0, Length: page}
			}
			return wire.Register{Offset: 0, Length: page, Prot: 3}
		},
	} {
		for _, reads := range []bool{false, true} {
			v := newVictim(t, limits)
			if reads { // signals and withdrawals wait for it
				v.mustRead(make([]byte, 8), 0, nil)
			}
			v.mustWrite(0, 8, nil)
			for i := range uint64(1000) {
				if v.send(next(i)) != nil {
					break // the connection would be cut off
				}
				v.drain()
				wantBounded(t, name, v.conn)
			}
		}
	}
}

// drain writes the frames that are queued, into nothing, as a stream with a peer that
// reads; segments with memory stay queued.
func (e *end) drain() {
	kept := e.queued()[:0]
	for _, s := range e.queue {
		if s.Frames == nil {
			kept = append(kept, s)
		}
	}
	e.queue, e.stream = kept, nil
}

// wantBounded checks everything in c that a peer can make grow.
func wantBounded(t failer, name string, c *Conn[*memory]) {
	t.Helper()
	l := c.limits
	for _, b := range []struct {
		what     string
		n, limit int
	}{
		{"open operations", c.open.len(), max(l.Ops, l.Requests)},
		{"waits", c.waits.Len(), l.Requests},
		{"requests", len(c.requests), l.Requests},
		{"answers to windows", c.answers.len(), 2 * l.Windows},
		{"unanswered windows", c.asked.len(), 2 * l.Windows},
		{"own windows", c.own.Len(), l.Windows},
		{"windows of the peer", c.peer.Len(), l.Windows},
		{"replies", c.in.queued, l.Ops},
		{"deferred signals", c.deferred, l.Requests},
		{"memory of the operations", cap(c.open.items), 4*max(l.Ops, l.Requests) + 8},
	} {
		if b.n > b.limit {
			t.Fatalf("%s: %d %s, want at most %d", name, b.n, b.what, b.limit)
		}
	}
}

func TestEarlyDoneDoesNotMakeRoom(t *testing.T) {
	// A peer that answers operations it has not received, and does not read, must not
	// make this end queue more and more writes.
	v := newVictim(t, Limits{Ops: 4})
	for range 4 {
		v.mustWrite(0, 1, nil)
	}
	if err := v.send(wire.Done{Op: 4}); err != nil {
		t.Fatal(err)
	}
	if v.conn.Room() {
		t.Error("there is room while the engine still has all writes")
	}
	v.sent()
	if !v.conn.Room() {
		t.Error("there is no room after the engine wrote everything")
	}
}
