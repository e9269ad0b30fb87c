package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// A hostile is a peer of node 0 that speaks the protocol by hand. It has one
// connection to an endpoint of node 0.
type hostile struct {
	t      *testing.T
	sess   transport.Session
	ctrl   transport.SendStream
	ctrlIn *wire.Reader
	ops    transport.SendStream
	opsIn  *wire.Reader
	victim attach.NodeEndpoint
	conn   wire.ConnID // the victim's
}

func newHostile(t *testing.T, limit uint64) *hostile { return newHostileOf(t, limit, wire.VersionMax) }

// newHostileOf is newHostile with the newest version that it speaks.
func newHostileOf(t *testing.T, limit uint64, version uint16) *hostile {
	return newHostileOn(t, newFabric(t, 1), limit, version)
}

// newHostileOn is newHostileOf for the first node of fab.
func newHostileOn(t *testing.T, fab *fabric, limit uint64, version uint16) *hostile {
	ctx := context.Background()
	p, err := fab.hub.Provider("hostile", transport.Identity{Cluster: uuid(0xCC), Node: uuid(9)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	self, victim := addr.Incarnation{Node: 9, Generation: 1}, addr.Incarnation{Node: 0, Generation: 1}
	fab.nodes[0].NodeUp(engine.Peer{Incarnation: self, UUID: uuid(9), Epoch: 1, Addresses: []string{"hostile"}})
	h := &hostile{t: t}
	if h.sess, err = p.Dial(ctx, "node0.1"); err != nil {
		t.Fatal(err)
	}
	hello := wire.Hello{VersionMin: wire.VersionMin, VersionMax: version, Cluster: uuid(0xCC), Term: 1,
		From: self, FromUUID: uuid(9), FromEpoch: 1, To: victim}
	h.ctrl = h.stream(wire.Lease{}.AppendTo(hello.AppendTo(nil)))
	hd, r := h.next()
	if hd.Type != wire.TypeHello {
		t.Fatalf("answered with %v", hd.Type)
	}
	if hd, _, err := r.Next(); hd.Type != wire.TypeLease || err != nil {
		t.Fatalf("%v, %v instead of the lease", hd.Type, err)
	}
	h.ctrlIn = r
	l, at := fab.listener(0, 1)
	accepted := make(chan attach.NodeEndpoint, 1)
	go func() {
		ep, _, _ := l.Accept(ctx)
		accepted <- ep
	}()
	h.ops = h.stream(wire.Connect{Conn: 1, From: 2000, To: at.Port, Limit: limit}.AppendTo(nil))
	hd, r = h.next()
	if hd.Type != wire.TypeAccept {
		t.Fatalf("answered with %v", hd.Type)
	}
	h.opsIn = r
	h.sendFrame(wire.Credit{Limit: limit}.AppendTo(nil))
	h.victim = <-accepted
	return h
}

// stream opens a stream that begins with p.
func (h *hostile) stream(p []byte) transport.SendStream {
	stream, err := h.open(p)
	if err != nil {
		h.t.Fatal(err)
	}
	return stream
}

// open is stream for other goroutines than the test's.
func (h *hostile) open(p []byte) (transport.SendStream, error) {
	stream, err := h.sess.OpenStream(context.Background())
	if err == nil {
		_, err = stream.Write(p)
	}
	return stream, err
}

// next returns the first frame of the next stream that the victim opens.
func (h *hostile) next() (wire.Header, *wire.Reader) {
	stream, err := h.sess.AcceptStream(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	r := wire.NewReader(stream)
	hd, body, err := r.Next()
	if err != nil {
		h.t.Fatal(err)
	}
	if hd.Type == wire.TypeAccept {
		f, _ := wire.ParseAccept(hd.Flags, body)
		h.conn = f.Conn
	}
	return hd, r
}

func (h *hostile) sendFrame(p []byte) error {
	_, err := h.ops.Write(p)
	return err
}

func (h *hostile) messageStream() transport.SendStream {
	return h.stream(wire.Stream{Peer: h.conn}.AppendTo(nil))
}

// wantReset checks that the victim's connection ends at once, and whether the
// whole session does.
func (h *hostile) wantReset(session bool) {
	h.t.Helper()
	begun := time.Now()
	_, err := io.Copy(io.Discard, endpointIO{h.victim})
	if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || time.Since(begun) > 100*time.Millisecond {
		h.t.Errorf("the connection ended with %v after %v, want a reset", err, time.Since(begun))
	}
	synctest.Wait()
	if ended := h.sess.Err() != nil; ended != session {
		h.t.Errorf("session ended: %v (%v), want %v", ended, h.sess.Err(), session)
	}
}

func TestHostilePeer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		session bool // it costs the hostile peer its session
		do      func(h *hostile)
	}{
		{"opens a second message stream", true, func(h *hostile) { h.messageStream().Write([]byte("x")); h.messageStream() }},
		{"sends more than it may", true, func(h *hostile) { h.messageStream().Write(make([]byte, 1<<20)) }},
		{"cancels its messages", false, func(h *hostile) {
			stream := h.messageStream()
			stream.Write([]byte("x"))
			synctest.Wait()
			stream.Cancel()
		}},
		{"ends its messages before the number it names", false, func(h *hostile) {
			stream := h.messageStream()
			stream.Write([]byte("x"))
			stream.Close()
			synctest.Wait()
			h.sendFrame(wire.Close{Sent: 2}.AppendTo(nil))
		}},
		{"names a number and ends before", true, func(h *hostile) {
			stream := h.messageStream()
			h.sendFrame(wire.Close{Sent: 2}.AppendTo(nil))
			synctest.Wait()
			stream.Write([]byte("x"))
			stream.Close()
		}},
		{"asks and does not read the answers", false, func(h *hostile) {
			questions := bytes.Repeat(wire.Mark{Request: 7}.AppendTo(nil), 1000)
			for range 100 {
				if h.sendFrame(questions) != nil {
					return
				}
			}
			h.t.Error("it may ask without end")
		}},
		{"sends what is no frame", false, func(h *hostile) { h.sendFrame(bytes.Repeat([]byte{0xff}, 64)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := newHostile(t, 1000)
				tt.do(h)
				h.wantReset(tt.session)
			})
		})
	}
}

// TestUnlimitedCreditCostsBoundedMemory is about a peer that lets this node
// send without end and reads nothing.
func TestUnlimitedCreditCostsBoundedMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHostile(t, math.MaxUint64)
		accepted := 0
		for range 1000 {
			n, err := h.victim.TrySend(make([]byte, 100_000))
			if err != nil {
				t.Fatal(err)
			}
			accepted += n
			synctest.Wait()
		}
		if accepted > 1<<20 { // the window, and the bytes in the stream
			t.Errorf("%d bytes wait for a peer that reads nothing", accepted)
		}
	})
}
