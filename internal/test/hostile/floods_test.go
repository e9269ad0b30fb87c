package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// grows runs attack and fails if the heap afterwards is limit bytes more
// than before. Both ends are in this process, so that it counts the attacker's
// memory too.
func grows(t *testing.T, limit int64, attack func()) {
	t.Helper()
	before := heap()
	attack()
	if grown := heap() - before; grown > limit {
		t.Errorf("memory grew by %d KiB, want %d KiB at most", grown>>10, limit>>10)
	}
}

// TestAnswersThatAreNeverRead asks for more and more answers on an operations
// stream and reads none.
func TestAnswersThatAreNeverRead(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	for name, ask := range map[string]func(i uint64) []byte{
		"marks":   func(i uint64) []byte { return frames(wire.Mark{Request: i}) },
		"waits":   func(i uint64) []byte { return frames(wire.Wait{Request: i, Seq: 1 << 40}) },
		"signals": func(i uint64) []byte { return frames(wire.PeerSignal{Request: i, Where: 0x10, LocalOffset: 4096}) },
		"paths":   func(uint64) []byte { return frames(wire.Path{}, wire.NoPath{Passing: true}) },
		"refused operations": func(i uint64) []byte {
			return frames(wire.Atomic{Op: i, Kind: 1, Width: 8})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := r.on(t).link()
			c := l.connect(1 << 20)
			grows(t, 4<<20, func() {
				deadline, _ := within(t).Deadline()
				c.ops.SetWriteDeadline(deadline)
				var batch []byte
				for i := uint64(1); i < 1<<17; { // 3 MiB of answers
					for batch = batch[:0]; len(batch) < 64<<10; i++ {
						batch = append(batch, ask(i)...)
					}
					if _, err := c.ops.Write(batch); err != nil {
						break
					}
				}
				c.wantReset()
			})
		})
	}
	r.talk(a, b)
}

// TestReadsThatAreNeverTaken begins reads of a large window and takes no data:
// the answers cost no copy, and their number is bounded.
func TestReadsThatAreNeverTaken(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	c := r.link().connect(1 << 20)
	c.register(0, rma.ProtRead)
	grows(t, 4<<20, func() {
		var batch []byte
		for op := uint64(1); op <= 1024+64; op++ { // some are on their way
			batch = append(batch, frames(wire.Read{Op: op, Length: rma.PageSize})...)
		}
		c.sendOp(batch)
		c.wantReset()
	})
	r.talk(a, b)
}

// TestControlStreamThatIsNeverRead: the answers on the control stream are bounded
// too, and the link ends with a reason.
func TestControlStreamThatIsNeverRead(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	incarnation, self := hello().From, hello().To
	for name, frame := range map[string][]byte{
		"probes": frames(wire.Probe{Nonce: 1, From: incarnation, To: self}),
		"byes":   frames(wire.Bye{Reason: "bye"}),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := r.on(t).unreadLink()
			grows(t, 4<<20, func() {
				batch := bytes.Repeat(frame, 1000)
				for range 200 {
					if _, err := l.ctrl.Write(batch); err != nil {
						break
					}
				}
				wantClosed(t, l.sess, transport.CodeProtocol)
			})
		})
	}
	r.talk(a, b)
}

// TestSecondMessageStream opens two message streams of one connection, whose bytes
// would go to the same memory.
func TestSecondMessageStream(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	for range 8 {
		l := r.link()
		c := l.connect(1 << 20)
		first, second := c.messages(), c.messages()
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.write(first, make([]byte, 300<<10))
		}()
		l.write(second, make([]byte, 300<<10))
		<-done
		c.wantReset()
	}
	r.talk(a, b)
}

// TestMessagesBeyondCredit sends one byte more than was granted. It stays
// outside while the victim has no room for it, and ends the connection then.
func TestMessagesBeyondCredit(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	c := r.link().connect(1 << 20)
	l := c.messages()
	c.write(l, make([]byte, c.limit+1))
	for limit := time.Now().Add(patience); r.unread() < int(c.limit); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d bytes have arrived, want the %d that were granted", r.unread(), c.limit)
		}
	}
	if n, err := c.victim.TryRecv(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("what is within the credit: %d, %v", n, err)
	}
	for {
		if _, _, err := c.in.Next(); err != nil {
			break // the victim's end of the operations stream
		}
	}
	c.wantReset()
	r.talk(a, b)
}

// unread returns how many bytes of a connection the victim keeps at most.
func (r *rig) unread() (n int) {
	for _, c := range r.victim.Conns() {
		n = max(n, c.Unread)
	}
	return n
}

// TestCreditWithoutEnd grants the victim everything and reads nothing: the bytes that an
// application sends without blocking are bounded by the victim, not by the peer.
func TestCreditWithoutEnd(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	c := r.link().connect(math.MaxUint64)
	c.sendOp(frames(wire.Credit{Limit: 1}, wire.Credit{}, wire.Credit{Limit: math.MaxUint64}))
	grows(t, 6<<20, func() {
		p := make([]byte, 64<<10)
		for range 1000 {
			if _, err := c.victim.TrySend(p); err != nil {
				t.Fatal(err)
			}
		}
	})
	r.talk(a, b)
}

// TestLoweredCreditTakesNothingBack: a limit that sinks is ignored.
func TestLoweredCreditTakesNothingBack(t *testing.T) {
	r := newRig(t)
	c := r.link().connect(100)
	c.sendOp(frames(wire.Credit{Limit: 10}, wire.Credit{}))
	c.sendOp(frames(wire.Mark{Request: 1})) // its answer comes behind the credit
	for {
		h, _, err := c.in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Type == wire.TypeMarked {
			break
		}
	}
	if n, err := c.victim.TrySend(make([]byte, 200)); n != 100 || err != nil {
		t.Errorf("the victim sends %d, %v; want the 100 bytes that were granted", n, err)
	}
}

// openStreams is more than the 4096 streams take that a peer may have, each at its two
// ends in this process, and much less than ten thousand would.
const openStreams = 96 << 20

// TestStreamsThatSayNothing opens as many streams as it may and begins a frame on
// each. The link is the attacker's own; memory is bounded and is given back.
func TestStreamsThatSayNothing(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	before := heap()
	var l *badLink
	grows(t, openStreams, func() {
		l = r.link()
		opened := 0
		for ; opened < 10_000; opened++ {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			stream, err := l.sess.OpenStream(ctx)
			cancel()
			if err != nil {
				break
			}
			l.write(stream, []byte{byte(wire.TypeConnect), 0, 0})
		}
		if opened < 1024 {
			t.Errorf("%d streams were open at once", opened)
		}
		r.talk(a, b)
	})
	l.forget() // the attacker's own memory for its streams does not count
	for limit := time.Now().Add(patience); heap()-before > 8<<20; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d KiB were not given back", (heap()-before)>>10)
		}
	}
}

// A pastSession stands for one that has ended.
type pastSession struct{ transport.Session }

func (pastSession) Close(uint64, string) error { return nil }

// forget ends the link and drops its buffers.
func (l *badLink) forget() {
	l.sess.Close(transport.CodeOK, "")
	l.work.Wait()
	l.sess, l.ctrl = pastSession{}, nil
}

// TestTenThousandStreams opens streams that are refused as fast as it can.
func TestTenThousandStreams(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	_, port := r.listen(16) // whose application never accepts
	l := r.link()
	grows(t, openStreams, func() {
		for i := range wire.ConnID(10_000) {
			if l.sess.Err() != nil {
				return
			}
			var first []byte
			switch i % 3 {
			case 0:
				first = frames(wire.Stream{Peer: i})
			case 1:
				first = frames(wire.Connect{Conn: i, From: 9, To: port + 1})
			case 2:
				first = frames(wire.Connect{Conn: i, From: 9, To: port})
			}
			stream, err := l.sess.OpenStream(within(t))
			if err != nil {
				return
			}
			l.write(stream, first)
		}
	})
	if l.sess.Err() != nil { // the victim may have had enough, and says so
		wantClosed(t, l.sess, transport.CodeProtocol)
	}
	r.talk(a, b)
}

// TestWindowFlood announces windows without end.
func TestWindowFlood(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	c := r.link().connect(1 << 20)
	go func() { // the answers are read, so that it is the number that ends it
		for {
			if _, _, err := c.in.Next(); err != nil {
				return
			}
		}
	}()
	grows(t, 8<<20, func() {
		for i := range uint64(20_000) {
			if _, err := c.ops.Write(frames(wire.Register{Offset: i * rma.PageSize, Length: rma.PageSize, Prot: 3})); err != nil {
				break
			}
		}
		c.wantReset()
	})
	r.talk(a, b)
}

// TestDatagramFlood: datagrams prove nothing and cost nothing. The link goes on.
func TestDatagramFlood(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	l := r.link()
	c := l.connect(1 << 20)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	incarnation, self := hello().From, hello().To
	beats := [][]byte{
		frames(wire.Heartbeat{Seq: 1, From: incarnation, To: self}),
		frames(wire.Heartbeat{Seq: 1, From: addr.Incarnation{Node: honestID, Generation: 1}, To: self}),
		frames(wire.Heartbeat{Seq: 1, From: self, To: incarnation}),
		frames(wire.HeartbeatAck{Seq: math.MaxUint64, Sent: math.MaxUint64, From: incarnation, To: self}),
		frames(wire.HeartbeatAck{Seq: 1, Sent: 1 << 62, From: incarnation, To: self}),
		frames(wire.HeartbeatAck{Seq: 1, From: addr.Incarnation{Node: honestID, Generation: 1}, To: self}),
		append(frames(wire.Heartbeat{From: incarnation, To: self}), 0),
		frames(wire.Heartbeat{From: incarnation, To: self})[:63],
		frames(hello()),
		nil,
	}
	grows(t, 8<<20, func() {
		for i := range 10_000 {
			p := beats[i%len(beats)]
			if i%2 == 0 {
				p = make([]byte, random.IntN(transport.MaxDatagram))
				for j := range p {
					p[j] = byte(random.Uint32())
				}
			}
			if err := l.sess.SendDatagram(p); err != nil {
				t.Fatalf("datagram %d: %v", i, err)
			}
		}
	})
	c.sendOp(frames(wire.Mark{Request: 1}))
	if h, _, err := c.in.Next(); err != nil || h.Type != wire.TypeMarked {
		t.Errorf("behind the flood the link answers with %v, %v", h.Type, err)
	}
	r.talk(a, b)
}

// TestHalfAFrameHoldsUpNobody stops in the middle of a payload. The other
// connections of the same link go on.
func TestHalfAFrameHoldsUpNobody(t *testing.T) {
	r := newRig(t)
	l := r.link()
	stuck, good := l.connect(1<<20), l.connect(1<<20)
	stuck.sendOp(append(frames(wire.Write{Op: 1, Length: wire.MaxPayload, Last: true}), 1, 2, 3))
	good.sendOp(frames(wire.Mark{Request: 1}))
	if h, _, err := good.in.Next(); err != nil || h.Type != wire.TypeMarked {
		t.Errorf("the other connection answers with %v, %v", h.Type, err)
	}
	l.write(good.messages(), []byte("still here"))
	p := make([]byte, 16)
	if n, err := good.victim.Recv(within(t), p); err != nil || string(p[:n]) != "still here" {
		t.Errorf("the other connection receives %q, %v", p[:n], err)
	}
}

// TestRandomBytesInsideALink writes noise, and frames with one byte changed,
// on every kind of stream. Whatever comes of it, the victim serves the others.
func TestRandomBytesInsideALink(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	valid := [][]byte{
		frames(wire.Register{Offset: 4096, Length: 4096, Prot: 3}), frames(wire.Unregister{Offset: 4096, Length: 4096}),
		append(frames(wire.Write{Op: 1, Length: 4, Last: true}), "data"...), frames(wire.Read{Op: 1, Length: 9}),
		frames(wire.Atomic{Op: 1, Kind: 1, Width: 8}), frames(wire.Signal{Op: 1}), frames(wire.Done{}), frames(wire.Close{Sent: 3}),
		frames(wire.Mark{Request: 1}), frames(wire.Wait{Request: 1}), frames(wire.PeerSignal{Request: 2, Where: 0x30}),
		frames(wire.Bye{Reason: "x"}), frames(wire.Probe{Nonce: 1}), frames(wire.Refuse{Peer: 1, Code: status.Refused}),
		frames(wire.Connect{Conn: 4, From: 1, To: 2}), frames(wire.Accept{Peer: 1, Conn: 4}), frames(wire.Stream{Peer: 1}),
	}
	noise := func() []byte {
		var p []byte
		for range 1 + random.IntN(4) {
			f := bytes.Clone(valid[random.IntN(len(valid))])
			if random.IntN(2) == 0 {
				f[random.IntN(len(f))] ^= 1 << random.IntN(8)
			}
			p = append(p, f...)
		}
		if random.IntN(4) == 0 {
			p = binary.BigEndian.AppendUint64(p, random.Uint64())
		}
		return p
	}
	l := r.link()
	for range 300 {
		if l.sess.Err() != nil {
			l = r.link()
		}
		switch random.IntN(3) {
		case 0:
			l.say(noise())
		default:
			stream, err := l.sess.OpenStream(within(t))
			if err != nil {
				if !errors.Is(err, transport.ErrClosed) {
					t.Fatal(err)
				}
				continue
			}
			l.write(stream, noise())
			if random.IntN(2) == 0 {
				stream.Close()
			}
		}
	}
	for range 60 {
		c := r.link().connect(1 << 20)
		for range 4 {
			c.sendOp(noise())
		}
		c.ops.Close()
	}
	r.talk(a, b)
}
