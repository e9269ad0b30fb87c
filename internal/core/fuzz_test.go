package core

import (
	"bytes"
	"io"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// newTarget returns an end with two windows of each side, operations of every
// kind and fences under way.
func newTarget(t failer) *end {
	e, peer := newPair(t, Limits{Ops: 16, Windows: 8, Requests: 8})
	for off := range int64(2) {
		e.window(peer, off*page, 1, both)
		peer.window(e, off*page, 1, both)
	}
	must := func(err error) {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	e.mustWrite(0, 100, new(Waiter)) // 1
	e.mustRead(make([]byte, 64), 100, new(Waiter))
	_, err := e.conn.Read(Local{Offset: page - 32, Length: 64}, 0, rma.Ordered, new(Waiter))
	must(err)
	must(e.conn.Atomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Operand: 1}, new(Waiter))) // 4
	must(e.conn.Signal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote}))
	_, err = e.conn.Wait(e.conn.MarkSelf(), new(Waiter))
	must(err)
	must(e.conn.Post(rma.Atomic{Op: rma.AtomicOr, Width: 4, Operand: 1}, new(Waiter))) // 5
	_, err = e.conn.Put(Local{Buf: make([]byte, 8), Length: 8}, rma.Put{Word: 8, Value: 1}, new(Waiter))
	must(err)
	must(e.conn.MarkPeer(new(Waiter))) // 1
	_, err = e.conn.Wait(fence.Mark{Side: fence.InitPeer}, new(Waiter))
	must(err)
	must(e.conn.SignalByPeer(fence.Signal{By: fence.InitPeer, Where: fence.SignalLocal}, new(Waiter))) // 3
	_, err = e.conn.Unregister(page, page, new(Waiter))
	must(err)
	_, err = e.conn.Register(&memory{bytes: make([]byte, page)}, page, 2*page, both, rma.MapFixed, new(Waiter))
	must(err)
	return e
}

// feed handles the frames in p, with their payload, until one breaks the
// protocol. The peer reads frames, and no payload: segments with memory stay.
func (e *end) feed(p []byte) {
	r := wire.NewReader(bytes.NewReader(p))
	for {
		h, body, err := r.Next()
		if err != nil {
			return
		}
		e.payload, err = e.conn.Handle(h, body)
		if err != nil {
			return
		}
		if e.word(); e.payload != nil {
			e.bytes = make([]byte, min(e.payload.Length, int64(len(p))))
			if e.payload.Length > wire.MaxPayload || e.payload.Length <= 0 {
				e.t.Fatalf("a payload of %d bytes", e.payload.Length)
			}
			if err := r.Payload(e.bytes); err != nil || int64(len(e.bytes)) < e.payload.Length {
				return // cut off within the payload
			}
			e.finish()
		}
		e.drain()
		wantBounded(e.t, "fuzz", e.conn)
	}
}

// cutOff ends the connection as an engine does when its stream has ended.
func (e *end) cutOff() {
	e.conn.Fail(status.Reset)
	if p := e.payload; p != nil {
		e.payload = nil
		e.conn.PayloadDone(p, io.ErrUnexpectedEOF)
	}
	for len(e.queued()) > 0 {
		e.skip(status.OK)
	}
	e.conn.Close(status.Reset)
	wantNothingLeft(e.t, e.conn)
}

// wantNothingLeft checks a closed Conn after its engine has stopped.
func wantNothingLeft(t failer, c *Conn[*memory]) {
	t.Helper()
	for what, n := range map[string]int{"windows": c.own.Len(), "operations": c.open.len(), "waits": c.waits.Len(),
		"requests": len(c.requests), "announcements": c.asked.len(), "answers": c.answers.len(),
		"replies": c.in.queued, "reads": c.reads, "deferred signals": c.deferred} {
		if n != 0 {
			t.Fatalf("%d %s are left after the end", n, what)
		}
	}
}

func frames(fs ...framer) (b []byte) {
	for _, f := range fs {
		b = f.AppendTo(b)
	}
	return b
}

// FuzzFramesOfThePeer feeds arbitrary bytes as the peer's operations stream to a
// connection that has windows and operations.
func FuzzFramesOfThePeer(f *testing.F) {
	f.Add([]byte{})
	f.Add(frames(wire.Done{Op: 1}, wire.Result{Op: 4, Value: 1}, wire.Registered{}, wire.Fail{Op: 2, Code: status.Fault}))
	f.Add(frames(wire.Unregistered{Offset: page}, wire.Registered{Offset: 2 * page}))
	f.Add(append(frames(wire.ReadData{Op: 2, Length: 64, Last: true}), make([]byte, 64)...))
	f.Add(append(frames(wire.ReadData{Op: 3, Length: 40}), make([]byte, 40)...))
	f.Add(append(frames(wire.Write{Op: 1, Offset: page - 4, Length: 8, Last: true, Ordered: true}), "12345678"...))
	f.Add(append(frames(wire.Write{Op: 1, Offset: 1 << 63, Length: 8}), "12345678"...))
	f.Add(frames(wire.Read{Op: 1, Offset: 4, Length: 2*page - 4}, wire.Signal{Op: 2, Offset: 8, Value: 1},
		wire.Atomic{Op: 3, Kind: 6, Width: 8, Operand: 1}, wire.Read{Op: 4, Length: 1 << 63}))
	f.Add(frames(wire.Atomic{Op: 1, Kind: 1, Width: 4, Operand: 1, Posted: true}, wire.Atomic{Op: 2, Kind: 9, Width: 4, Posted: true},
		wire.Done{Op: 7}, wire.Result{Op: 5}))
	f.Add(frames(wire.Mark{Request: 1}, wire.Wait{Request: 2, Seq: 4}, wire.Wait{Request: 3, Seq: 99},
		wire.PeerSignal{Request: 4, Where: 0x30, RemoteValue: 1}, wire.PeerSignal{Request: 5, Where: 0x20}))
	f.Add(frames(wire.Marked{Request: 1, Seq: 1}, wire.Waited{Request: 2}, wire.PeerSignaled{Request: 3, Code: status.NoAddress}))
	f.Add(frames(wire.Unregister{Offset: 0, Length: page}, wire.Register{Offset: 0, Length: 3 * page, Prot: 3}, wire.Unregister{Offset: page, Length: page}))
	f.Fuzz(func(t *testing.T, p []byte) {
		e := newTarget(t)
		e.feed(p)
		e.cutOff()
	})
}
