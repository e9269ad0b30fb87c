package core

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

var addOne = rma.Atomic{Op: rma.AtomicAdd, Width: 8, Operand: 1}

// A posted atomic costs as much as a write: many are covered by one Done.
func TestPostedAtomicsAreAnsweredByDone(t *testing.T) {
	a, b, _, mem := newConnected(t, Limits{})
	w := new(Waiter)
	for range 10 {
		if err := a.conn.Post(addOne, w); err != nil {
			t.Fatal(err)
		}
		w = nil
	}
	fenced := new(Waiter)
	if pending, err := a.conn.Wait(a.conn.MarkSelf(), fenced); !pending || err != nil {
		t.Fatalf("a mark over posted atomics: pending %v, %v", pending, err)
	}
	for a.write(wire.MaxPayload) || b.take(a) {
	}
	if got := binary.LittleEndian.Uint64(mem.bytes); got != 10 {
		t.Errorf("the word is %d, want 10", got)
	}
	for _, p := range b.stream {
		t.Errorf("answered by %v before anything asked for it", wire.Type(p.frame[0]))
	}
	for b.write(wire.MaxPayload) {
	}
	for _, p := range b.stream {
		if typ := wire.Type(p.frame[0]); typ != wire.TypeDone {
			t.Errorf("answered by %v, want Done", typ)
		}
	}
	settle(a, b)
	a.wantWoken("the fence", fenced, status.OK)
}

func TestAPostedAtomicHasNoResult(t *testing.T) {
	v := newVictim(t, Limits{})
	if err := v.conn.Post(addOne, nil); err != nil {
		t.Fatal(err)
	}
	v.wantRefused("Result of a posted atomic", wire.Result{Op: 1})
	if err := v.send(wire.Done{Op: 1}); err != nil {
		t.Errorf("Done of a posted atomic: %v", err)
	}
}

func TestAPostedAtomicThatIsRefusedFailsTheFence(t *testing.T) {
	v := newVictim(t, Limits{})
	if err := v.conn.Post(addOne, nil); err != nil {
		t.Fatal(err)
	}
	w := new(Waiter)
	if pending, err := v.conn.Wait(v.conn.MarkSelf(), w); !pending || err != nil {
		t.Fatal(pending, err)
	}
	if err := v.send(wire.Fail{Op: 1, Code: status.Fault}); err != nil {
		t.Fatal(err)
	}
	v.wantWoken("the fence", w, status.Fault)
	if _, err := v.conn.Put(Local{Buf: make([]byte, 8), Length: 8}, rma.Put{}, nil); !errors.Is(err, status.Fault) {
		t.Errorf("a put behind it: %v, want %v", err, status.Fault)
	}
}

// TestAPutBeginsWhollyOrNotAtAll tries errors in one of its two
// ranges: nothing is queued, and the own window is not held.
func TestAPutBeginsWhollyOrNotAtAll(t *testing.T) {
	const gap = 64 * page
	for name, x := range map[string]struct {
		local Local
		put   rma.Put
		want  status.Code
	}{
		"nothing to write":              {Local{Offset: 0}, rma.Put{}, status.Invalid},
		"a word that is not aligned":    {Local{Length: 8}, rma.Put{Word: 4}, status.Invalid},
		"fewer than no bytes to come":   {Local{Length: 8}, rma.Put{More: -1}, status.Invalid},
		"no such bytes here":            {Local{Offset: gap, Length: 8}, rma.Put{}, status.NoAddress},
		"no such bytes there":           {Local{Length: 8}, rma.Put{Offset: gap}, status.NoAddress},
		"no such word":                  {Local{Length: 8}, rma.Put{Word: gap}, status.NoAddress},
		"a word in front of the space":  {Local{Length: 8}, rma.Put{Word: -8}, status.NoAddress},
		"bytes that may not be written": {Local{Length: 8}, rma.Put{Offset: 2 * page}, status.Access},
		"a word that may not":           {Local{Length: 8}, rma.Put{Word: 2 * page}, status.Access},
		"bytes to come that may not":    {Local{Length: page}, rma.Put{More: page + 1}, status.Access},
		"bytes to come that are not":    {Local{Length: page}, rma.Put{More: gap}, status.Access},
		"bytes to come beyond it all":   {Local{Length: 8}, rma.Put{More: 1<<63 - 1}, status.NoAddress},
	} {
		a, b := newPair(t, Limits{})
		here := a.window(b, 0, 1, both)
		b.window(a, 0, 2, both)
		b.window(a, 2*page, 1, rma.ProtRead)
		if _, err := a.conn.Put(x.local, x.put, nil); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		if sent := a.sent(); len(sent) > 0 || a.conn.ops.Begun() > 0 {
			t.Errorf("%s: %v was sent", name, sent)
		}
		w := new(Waiter)
		if _, err := a.conn.Unregister(0, page, w); err != nil {
			t.Fatal(err)
		}
		settle(a, b)
		if here.freed != 1 {
			t.Errorf("%s: the window here is still in use", name)
		}
	}
}

func TestAPutIsAWriteAndASignal(t *testing.T) {
	a, b, here, there := newConnected(t, Limits{Ops: 1})
	copy(here.bytes[100:], "announced")
	if _, err := a.conn.Put(Local{Offset: 100, Length: 9}, rma.Put{Offset: 200, Word: 16, Value: 7, More: 1}, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := a.sent(), []wire.Type{wire.TypeWrite}; !slices.Equal(got, want) {
		t.Errorf("a put with more to come sends %v, want %v", got, want)
	}
	a.send(wire.Done{Op: 1})
	if !a.conn.RoomForPut() {
		t.Fatal("no room for a put although nothing is under way")
	}
	w := new(Waiter)
	if _, err := a.conn.Put(Local{Offset: 100, Length: 9}, rma.Put{Offset: 200, Word: 16, Value: 7}, w); err != nil {
		t.Fatal(err)
	}
	if a.conn.RoomForPut() {
		t.Error("room for another put over the limit")
	}
	a.write(wire.MaxPayload)
	if err := b.conn.next(1, true); err != nil { // the part that was sent and dropped above
		t.Fatal(err)
	}
	for b.take(a) {
	}
	if string(there.bytes[200:209]) != "announced" || there.bytes[16] != 0 {
		t.Errorf("after the write: %q, word %d", there.bytes[200:209], there.bytes[16])
	}
	settle(a, b)
	if there.bytes[16] != 7 {
		t.Errorf("the word is %d, want 7", there.bytes[16])
	}
	a.wantWoken("the put", w, status.OK)
	if m := a.conn.MarkSelf(); m != (fence.Mark{Side: fence.InitSelf, Seq: 3}) || !a.conn.ops.Reached(3) {
		t.Errorf("mark %+v, reached %v; want one over three operations", m, a.conn.ops.Reached(3))
	}
}
