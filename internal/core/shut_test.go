package core

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
	"pgregory.net/rapid"
)

// TestClosedWindowsStayAsTheyAre lets both ends begin operations of every kind while
// everything moves in a random order, and closes the windows of one at some moment.
// From then on neither they nor the memory of that end's calls change, every
// operation ends, and those that the peer begins only then end with status.Reset.
func TestClosedWindowsStayAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newPair(t, Limits{Ops: 8})
		busy := [2]*busyEnd{newBusyEnd(t, a, b), newBusyEnd(t, b, a)}
		steps := func(n int) {
			for range n {
				switch i := rapid.IntRange(0, 3).Draw(t, "moves"); i {
				case 0, 1:
					busy[i].begin()
				case 2:
					a.write(32)
					b.write(32)
				case 3:
					b.take(a)
					a.take(b)
				}
			}
		}
		steps(rapid.IntRange(0, 40).Draw(t, "steps before"))
		a.perform()
		a.conn.CloseWindows()
		window, buf, early := bytes.Clone(busy[0].window.bytes), bytes.Clone(busy[0].buf), len(busy[1].waiters)
		steps(rapid.IntRange(0, 40).Draw(t, "steps after"))
		settle(a, b)
		read := new(Waiter)
		a.mustRead(busy[0].buf, 0, read)
		settle(a, b)
		a.wantWoken("an own read", read, status.Reset)
		if _, err := a.conn.Register(&memory{bytes: make([]byte, page)}, page, page, both, rma.MapFixed, new(Waiter)); !errors.Is(err, status.Reset) {
			t.Fatalf("Register after CloseWindows: %v", err)
		}
		if _, err := a.conn.Export(0, page, rma.ProtRead); !errors.Is(err, status.Reset) {
			t.Fatalf("Export after CloseWindows: %v", err)
		}
		if !bytes.Equal(busy[0].window.bytes, window) || !bytes.Equal(busy[0].buf, buf) {
			t.Fatal("memory has changed after CloseWindows")
		}
		for i, e := range busy {
			for k, w := range e.waiters {
				if e.woken[w] != 1 {
					t.Fatalf("operation %d of end %d has not ended", k, i)
				}
				if i == 1 && k >= early && w.Code != status.Reset {
					t.Fatalf("operation %d of the peer began after CloseWindows and ended with %v", k, w.Code)
				}
			}
		}
	})
}

// A busyEnd is an end that begins random operations.
type busyEnd struct {
	*end
	t       *rapid.T
	window  *memory
	buf     []byte // of its reads
	waiters []*Waiter
}

func newBusyEnd(t *rapid.T, e, peer *end) *busyEnd {
	b := &busyEnd{end: e, t: t, window: e.window(peer, 0, 1, both), buf: make([]byte, 64)}
	for i := range b.window.bytes {
		b.window.bytes[i] = byte(i)
	}
	return b
}

// begin begins one operation, if there is room for it.
func (e *busyEnd) begin() {
	if !e.conn.RoomForPut() {
		return
	}
	w := new(Waiter)
	var err error
	word := 8 * rapid.Int64Range(0, 15).Draw(e.t, "word")
	mark := rapid.Uint64().Draw(e.t, "value")
	switch rapid.IntRange(0, 6).Draw(e.t, "kind") {
	case 0:
		_, err = e.conn.Write(Local{Buf: binary.LittleEndian.AppendUint64(nil, mark), Length: 8}, word, 0, w)
	case 1:
		_, err = e.conn.Write(Local{Offset: 1024, Length: 64}, word, rma.Ordered, w)
	case 2:
		_, err = e.conn.Read(Local{Buf: e.buf, Length: 64}, word, 0, w)
	case 3:
		_, err = e.conn.Read(Local{Offset: word, Length: 64}, 1024, 0, w)
	case 4:
		err = e.conn.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: word, Operand: mark}, w)
	case 5:
		// No caller waits for it; only its values remain.
		_ = e.conn.Signal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote,
			LocalOffset: word, LocalValue: mark, RemoteOffset: word, RemoteValue: mark})
		return
	case 6:
		err = e.conn.SignalByPeer(fence.Signal{By: fence.InitPeer, Where: fence.SignalLocal | fence.SignalRemote,
			LocalOffset: word, LocalValue: mark, RemoteOffset: word, RemoteValue: mark}, w)
	}
	if err == nil {
		e.waiters = append(e.waiters, w)
	}
}

// TestNoBytesFollowAMalformedFrame: the end does not wait for them, also on a failed
// connection, which drops its frames.
func TestNoBytesFollowAMalformedFrame(t *testing.T) {
	for _, fail := range []bool{false, true} {
		e := newEnd(t, Limits{})
		if fail {
			e.conn.Fail(status.Reset)
		}
		for _, f := range []framer{wire.Write{Op: 1}, wire.ReadData{Op: 1}} { // of no length
			b := f.AppendTo(nil)
			h, err := wire.ParseHeader(b)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := e.conn.Handle(h, b[wire.HeaderLen:]); p != nil || err == nil {
				t.Errorf("%v, failed %v: payload %+v, %v", h.Type, fail, p, err)
			}
		}
	}
}
