package hostile

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// frames joins encoded frames.
func frames(list ...interface{ AppendTo([]byte) []byte }) (b []byte) {
	for _, f := range list {
		b = f.AppendTo(b)
	}
	return b
}

// broken returns a header that names a body of n bytes, and a few bytes of it.
func broken(t wire.Type, flags uint8, reserved uint16, n uint32) []byte {
	b := []byte{byte(t), flags}
	b = binary.BigEndian.AppendUint16(b, reserved)
	b = binary.BigEndian.AppendUint32(b, n)
	return append(b, make([]byte, 64)...)
}

// TestFramesThatBreakTheRules sends frames that no conforming peer sends on an
// operations stream. The connection is cut off; the link's other connection, and
// the other node's, go on.
func TestFramesThatBreakTheRules(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	l := r.link()
	const page = rma.PageSize
	for name, bytes := range map[string][]byte{
		"first operation is 2":              frames(wire.Signal{Op: 2}),
		"operation 0":                       frames(wire.Signal{}),
		"operation twice":                   frames(wire.Signal{Op: 1}, wire.Signal{Op: 1}),
		"operation left out":                frames(wire.Signal{Op: 1}, wire.Atomic{Op: 3, Kind: 1, Width: 8}),
		"last operation number":             frames(wire.Read{Op: math.MaxUint64, Length: 1}),
		"another operation inside a write":  append(append(frames(wire.Write{Op: 1, Length: 1}), 0), frames(wire.Signal{Op: 2})...),
		"done beyond what was begun":        frames(wire.Done{Op: 1}),
		"done of everything":                frames(wire.Done{Op: math.MaxUint64}),
		"fail of nothing":                   frames(wire.Fail{Op: 1, Code: status.Access}),
		"result of nothing":                 frames(wire.Result{Op: 1}),
		"data of nothing":                   append(frames(wire.ReadData{Op: 1, Length: 1, Last: true}), 0),
		"registered nothing":                frames(wire.Registered{}),
		"unregistered nothing":              frames(wire.Unregistered{}),
		"marked nothing":                    frames(wire.Marked{Request: 1}),
		"waited for nothing":                frames(wire.Waited{Request: 1}),
		"signaled nothing":                  frames(wire.PeerSignaled{Request: 1}),
		"window of no bytes":                frames(wire.Register{Prot: 1}),
		"window at odd offset":              frames(wire.Register{Offset: 1, Length: page, Prot: 1}),
		"window of odd length":              frames(wire.Register{Length: page + 1, Prot: 1}),
		"window of unknown protection":      frames(wire.Register{Length: page, Prot: 4}),
		"window beyond the space":           frames(wire.Register{Offset: math.MaxInt64 &^ (page - 1), Length: page, Prot: 1}),
		"window that overflows":             frames(wire.Register{Offset: math.MaxUint64 &^ (page - 1), Length: 2 * page, Prot: 1}),
		"window of everything, shifted":     frames(wire.Register{Offset: page, Length: math.MaxInt64 &^ (page - 1), Prot: 1}),
		"overlapping windows":               frames(wire.Register{Length: 2 * page, Prot: 1}, wire.Register{Offset: page, Length: page, Prot: 1}),
		"the same window twice":             frames(wire.Register{Length: page, Prot: 1}, wire.Register{Length: page, Prot: 1}),
		"withdrawal of no window":           frames(wire.Unregister{Length: page}),
		"withdrawal of half a window":       frames(wire.Register{Length: 2 * page, Prot: 1}, wire.Unregister{Length: page}),
		"close of unsent bytes":             frames(wire.Close{Sent: math.MaxUint64}),
		"close twice":                       frames(wire.Close{}, wire.Close{}),
		"hello on an operations stream":     frames(hello()),
		"accept on an operations stream":    frames(wire.Accept{Peer: 1, Conn: 1}),
		"bye on an operations stream":       frames(wire.Bye{}),
		"heartbeat on an operations stream": frames(wire.Heartbeat{}),
		"unknown type":                      broken(200, 0, 0, 0),
		"type 0":                            broken(0, 0, 0, 0),
		"undefined flag":                    broken(wire.TypeWrite, 0x80, 0, 20),
		"reserved bits":                     broken(wire.TypeDone, 0, 1, 8),
		"body of 4 GiB":                     broken(wire.TypeWrite, 0, 0, math.MaxUint32),
		"body one too long":                 broken(wire.TypeDone, 0, 0, 9),
		"body one too short":                broken(wire.TypeDone, 0, 0, 7),
		"path one byte too short":           broken(wire.TypePath, 0, 0, 47),
		"path with an undefined flag":       broken(wire.TypePath, 0x80, 0, 48),
		"RMA path one byte too short":       broken(wire.TypeRMAPath, 0, 0, 47),
		"RMA path with an undefined flag":   broken(wire.TypeRMAPath, 0x80, 0, 48),
		"no path with an undefined flag":    broken(wire.TypeNoPath, 0x80, 0, 2),
		"no path for a reason of 64 KiB":    broken(wire.TypeNoPath, 0, 0, 65538),
		"passed one byte too long":          broken(wire.TypeRMAPassed, 0, 0, 9),
		"payload of 4 GiB":                  frames(wire.Write{Op: 1, Length: math.MaxUint32}),
		"payload one too long":              frames(wire.Write{Op: 1, Length: wire.MaxPayload + 1}),
		"payload of nothing":                frames(wire.Write{Op: 1}),
	} {
		t.Run(name, func(t *testing.T) {
			c := l.on(t).connect(1 << 20)
			c.sendOp(bytes)
			c.wantReset()
			c.victim.Close()
		})
	}
	t.Run("stream ends inside a payload", func(t *testing.T) {
		c := l.on(t).connect(1 << 20)
		c.sendOp(append(frames(wire.Write{Op: 1, Length: wire.MaxPayload, Last: true}), make([]byte, 100)...))
		c.ops.Close()
		c.wantReset()
		c.victim.Close()
	})
	r.talk(a, b)
}

// TestControlStreamThatBreaksTheRules: a control stream is the link's, so that the
// link ends, with a reason.
func TestControlStreamThatBreaksTheRules(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	for name, bytes := range map[string][]byte{
		"second HELLO":        frames(hello()),
		"message credit":      frames(wire.Credit{Limit: 1}),
		"window":              frames(wire.Register{Length: rma.PageSize, Prot: 1}),
		"connect":             frames(wire.Connect{Conn: 1, From: 1, To: 1}),
		"path":                frames(wire.Path{}),
		"RMA path":            frames(wire.RMAPath{}),
		"no RMA path":         frames(wire.NoRMAPath{}),
		"two ByeAck":          frames(wire.ByeAck{}, wire.ByeAck{}),
		"a heartbeat":         frames(wire.Heartbeat{}),
		"unknown type":        broken(255, 0, 0, 0),
		"reason beyond limit": broken(wire.TypeBye, 0, 0, 259),
		"reason of no text":   append(broken(wire.TypeBye, 0, 0, 3)[:8], 0, 1, 0xff),
		"refusal with code 0": broken(wire.TypeRefuse, 0, 0, 10),
	} {
		t.Run(name, func(t *testing.T) {
			l := r.on(t).link()
			c := l.connect(1 << 20)
			l.say(bytes)
			wantClosed(t, l.sess, transport.CodeProtocol)
			c.wantReset()
		})
	}
	r.talk(a, b)
}

// TestStreamsThatBreakTheRules begins streams with frames that begin none.
func TestStreamsThatBreakTheRules(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	for name, first := range map[string][]byte{
		"second control stream": frames(hello()),
		"an operation":          frames(wire.Signal{Op: 1}),
		"a heartbeat":           frames(wire.Heartbeat{}),
		"garbage":               broken(99, 9, 9, 9),
		"connect from port 0":   frames(wire.Connect{Conn: 1, To: 5}),
		"connect to port 0":     frames(wire.Connect{Conn: 1, From: 5}),
	} {
		t.Run(name, func(t *testing.T) {
			l := r.on(t).link()
			l.open(first)
			wantClosed(t, l.sess, transport.CodeProtocol)
		})
	}
	r.talk(a, b)
}

// TestStreamsOfStrangers: a stream of a connection that the victim does not have is
// canceled, and is no reason to end the link; a connection of another link is
// not to be had.
func TestStreamsOfStrangers(t *testing.T) {
	r := newRig(t)
	a, b := r.friends() // the victim's names of connections begin at 1 on each link
	l := r.link()
	for _, id := range []wire.ConnID{0, 1, 2, 1 << 40, math.MaxUint64} {
		for _, first := range [][]byte{frames(wire.Accept{Peer: id, Conn: 9, Limit: 1}), frames(wire.Stream{Peer: id})} {
			stream := l.open(append(first, "stray bytes"...))
			wantCanceled(t, stream)
		}
	}
	l.say(frames(wire.Refuse{Peer: 1, Code: status.Refused}, wire.Refuse{Peer: math.MaxUint64, Code: status.Refused}))
	c := l.connect(1 << 20)
	r.talk(a, b)
	if p := make([]byte, 64); readNow(t, b, p) != 0 || readNow(t, c.victim, p) != 0 {
		t.Errorf("stray bytes arrived: %q", p)
	}
}

func readNow(t *testing.T, ep attach.NodeEndpoint, p []byte) int {
	t.Helper()
	n, err := ep.TryRecv(p)
	if err != nil {
		t.Error(err)
	}
	return n
}

// wantCanceled writes until the victim does not want the stream any more.
func wantCanceled(t *testing.T, stream transport.SendStream) {
	t.Helper()
	deadline, _ := within(t).Deadline()
	stream.SetWriteDeadline(deadline)
	for p := make([]byte, 32<<10); ; {
		if _, err := stream.Write(p); err != nil {
			if err := within(t).Err(); err != nil {
				t.Error("the victim keeps a stream of nobody")
			}
			return
		}
	}
}

// TestOperationsBeforeTheGrant: nothing is said before the grant.
func TestOperationsBeforeTheGrant(t *testing.T) {
	r := newRig(t)
	_, port := r.listen(8)
	l := r.link()
	l.open(frames(wire.Connect{Conn: 1, From: 1, To: port, Limit: 1}, wire.Credit{Limit: 1}))
	wantClosed(t, l.sess, transport.CodeProtocol)
}

// TestOperationsReachOnlyTheirOwnWindows has two connections with windows at
// the same victim: the bad node's has one that may only be read, the honest
// node's is where the bad node aims.
func TestOperationsReachOnlyTheirOwnWindows(t *testing.T) {
	r := newRig(t)
	_, friend := r.friends()
	c := r.link().connect(1 << 20)
	const page, theirs, readOnly = rma.PageSize, 0x10000, 0x40000
	other := r.window(friend, theirs, rma.ProtRead|rma.ProtWrite)
	own := c.register(readOnly, rma.ProtRead)

	attacks := []struct {
		name string
		send []byte
		want status.Code
	}{
		{"write into another connection's window", append(frames(wire.Write{Op: 1, Offset: theirs, Length: 8, Last: true}), "ATTACKED"...), status.NoAddress},
		{"write into a read-only window", append(frames(wire.Write{Op: 2, Offset: readOnly, Length: 8, Last: true}), "ATTACKED"...), status.Access},
		{"write over the end", append(frames(wire.Write{Op: 3, Offset: readOnly + page - 4, Length: 8, Last: true}), "ATTACKED"...), status.Access},
		{"write at a negative offset", append(frames(wire.Write{Op: 4, Offset: math.MaxUint64 - 7, Length: 8, Last: true}), "ATTACKED"...), status.NoAddress},
		{"read of another connection's window", frames(wire.Read{Op: 5, Offset: theirs, Length: page}), status.NoAddress},
		{"read over the end", frames(wire.Read{Op: 6, Offset: readOnly, Length: page + 1}), status.NoAddress},
		{"read that wraps", frames(wire.Read{Op: 7, Offset: readOnly, Length: math.MaxUint64}), status.Invalid},
		{"read of half the space", frames(wire.Read{Op: 8, Offset: readOnly, Length: math.MaxInt64}), status.NoAddress},
		{"atomic in another connection's window", frames(wire.Atomic{Op: 9, Kind: 5, Width: 8, Offset: theirs, Operand: 1}), status.NoAddress},
		{"atomic in a read-only window", frames(wire.Atomic{Op: 10, Kind: 5, Width: 8, Offset: readOnly, Operand: 1}), status.Access},
		{"atomic that is none", frames(wire.Atomic{Op: 11, Kind: 99, Width: 8, Offset: readOnly}), status.Invalid},
		{"atomic of three bytes", frames(wire.Atomic{Op: 12, Kind: 1, Width: 3, Offset: readOnly}), status.Invalid},
		{"atomic at an odd offset", frames(wire.Atomic{Op: 13, Kind: 1, Width: 8, Offset: readOnly + 1}), status.Invalid},
		{"atomic over the top", frames(wire.Atomic{Op: 14, Kind: 1, Width: 8, Offset: math.MaxUint64 - 7}), status.Invalid},
	}
	for i, x := range attacks {
		t.Run(x.name, func(t *testing.T) {
			c.sendOp(x.send)
			h, body, err := c.in.Next()
			if err != nil || h.Type != wire.TypeFail {
				t.Fatalf("answered with %v, %v", h.Type, err)
			}
			f, err := wire.ParseFail(h.Flags, body)
			if err != nil || f.Op != uint64(i+1) {
				t.Fatalf("answered %+v, %v", f, err)
			}
			if f.Code != x.want && !(f.Code == status.NoAddress && x.want == status.Invalid) {
				t.Errorf("refused with %v, want %v", f.Code, x.want)
			}
		})
	}
	for i := range other {
		if other[i] != 0x5A || own[i] != 0x5A {
			t.Fatalf("byte %d was written", i)
		}
	}
}

// register is [rig.window] for a connection whose other end, the bad node's, has to
// acknowledge it.
func (c *badConn) register(off int64, prot rma.Prot) []byte {
	c.r.t.Helper()
	made := make(chan []byte, 1)
	go func() { made <- c.r.window(c.victim, off, prot) }()
	for {
		h, _, err := c.in.Next()
		if err != nil {
			c.r.t.Fatal(err)
		}
		if h.Type == wire.TypeRegister {
			break
		}
	}
	c.sendOp(frames(wire.Registered{Offset: uint64(off)}))
	return <-made
}

// window registers a page that is full of 0x5A at an endpoint.
func (r *rig) window(ep attach.NodeEndpoint, off int64, prot rma.Prot) []byte {
	mem, err := shm.Create("test", rma.PageSize)
	if err != nil {
		r.t.Error(err)
		return nil
	}
	r.t.Cleanup(mem.Release)
	p := mem.Bytes()
	for i := range p {
		p[i] = 0x5A
	}
	if _, err := ep.RegisterRegion(mem, 0, mem.Len(), off, prot, rma.MapFixed); err != nil {
		r.t.Errorf("register: %v", err)
	}
	return p
}
