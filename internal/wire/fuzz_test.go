package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// fuzzBody fuzzes one parser of bodies: accepted input encodes to the same bytes again. Its seeds
// are the golden vectors of its type.
func fuzzBody[F frame](f *testing.F, t Type, parse func(uint8, []byte) (F, error)) {
	for name := range golden {
		b := vector(f, name)
		if Type(b[0]) == t {
			f.Add(b[1], b[HeaderLen:])
			f.Add(b[1]|0x80, b[HeaderLen:])
			f.Add(b[1], b[HeaderLen:HeaderLen+(len(b)-HeaderLen)/2])
		}
	}
	f.Fuzz(func(tt *testing.T, flags uint8, body []byte) {
		got, err := parse(flags, body)
		if err != nil {
			return
		}
		want := append(begin(nil, t, flags), body...)
		if enc := got.AppendTo(nil); !bytes.Equal(enc, end(want, 0)) {
			tt.Errorf("%x parses as %+v, which encodes as %x", want, got, enc)
		}
		if _, err := ParseHeader(want); err != nil {
			tt.Errorf("%x parses as %+v, but its header: %v", want, got, err)
		}
	})
}

func FuzzHello(f *testing.F)        { fuzzBody(f, TypeHello, ParseHello) }
func FuzzHelloRefuse(f *testing.F)  { fuzzBody(f, TypeHelloRefuse, ParseHelloRefuse) }
func FuzzConnect(f *testing.F)      { fuzzBody(f, TypeConnect, ParseConnect) }
func FuzzAccept(f *testing.F)       { fuzzBody(f, TypeAccept, ParseAccept) }
func FuzzStream(f *testing.F)       { fuzzBody(f, TypeStream, ParseStream) }
func FuzzRefuse(f *testing.F)       { fuzzBody(f, TypeRefuse, ParseRefuse) }
func FuzzProbe(f *testing.F)        { fuzzBody(f, TypeProbe, ParseProbe) }
func FuzzProbeAck(f *testing.F)     { fuzzBody(f, TypeProbeAck, parseProbeAck) }
func FuzzBye(f *testing.F)          { fuzzBody(f, TypeBye, ParseBye) }
func FuzzByeAck(f *testing.F)       { fuzzBody(f, TypeByeAck, parseByeAck) }
func FuzzLease(f *testing.F)        { fuzzBody(f, TypeLease, ParseLease) }
func FuzzCredit(f *testing.F)       { fuzzBody(f, TypeCredit, ParseCredit) }
func FuzzPath(f *testing.F)         { fuzzBody(f, TypePath, ParsePath) }
func FuzzNoPath(f *testing.F)       { fuzzBody(f, TypeNoPath, ParseNoPath) }
func FuzzRMAPath(f *testing.F)      { fuzzBody(f, TypeRMAPath, ParseRMAPath) }
func FuzzNoRMAPath(f *testing.F)    { fuzzBody(f, TypeNoRMAPath, ParseNoRMAPath) }
func FuzzRMAPassed(f *testing.F)    { fuzzBody(f, TypeRMAPassed, ParseRMAPassed) }
func FuzzClose(f *testing.F)        { fuzzBody(f, TypeClose, ParseClose) }
func FuzzEnd(f *testing.F)          { fuzzBody(f, TypeEnd, ParseEnd) }
func FuzzRegister(f *testing.F)     { fuzzBody(f, TypeRegister, ParseRegister) }
func FuzzRegistered(f *testing.F)   { fuzzBody(f, TypeRegistered, ParseRegistered) }
func FuzzUnregister(f *testing.F)   { fuzzBody(f, TypeUnregister, ParseUnregister) }
func FuzzUnregistered(f *testing.F) { fuzzBody(f, TypeUnregistered, ParseUnregistered) }
func FuzzWrite(f *testing.F)        { fuzzBody(f, TypeWrite, ParseWrite) }
func FuzzRead(f *testing.F)         { fuzzBody(f, TypeRead, ParseRead) }
func FuzzReadData(f *testing.F)     { fuzzBody(f, TypeReadData, ParseReadData) }
func FuzzDone(f *testing.F)         { fuzzBody(f, TypeDone, ParseDone) }
func FuzzFail(f *testing.F)         { fuzzBody(f, TypeFail, ParseFail) }
func FuzzSignal(f *testing.F)       { fuzzBody(f, TypeSignal, ParseSignal) }
func FuzzAtomic(f *testing.F)       { fuzzBody(f, TypeAtomic, ParseAtomic) }
func FuzzResult(f *testing.F)       { fuzzBody(f, TypeResult, ParseResult) }
func FuzzMark(f *testing.F)         { fuzzBody(f, TypeMark, ParseMark) }
func FuzzMarked(f *testing.F)       { fuzzBody(f, TypeMarked, ParseMarked) }
func FuzzWait(f *testing.F)         { fuzzBody(f, TypeWait, ParseWait) }
func FuzzWaited(f *testing.F)       { fuzzBody(f, TypeWaited, ParseWaited) }
func FuzzPeerSignal(f *testing.F)   { fuzzBody(f, TypePeerSignal, ParsePeerSignal) }
func FuzzPeerSignaled(f *testing.F) { fuzzBody(f, TypePeerSignaled, ParsePeerSignaled) }
func FuzzAsk(f *testing.F)          { fuzzBody(f, TypeAsk, ParseAsk) }
func FuzzAnswer(f *testing.F)       { fuzzBody(f, TypeAnswer, ParseAnswer) }
func FuzzAskLinks(f *testing.F)     { fuzzBody(f, TypeAskLinks, ParseAskLinks) }
func FuzzLinks(f *testing.F)        { fuzzBody(f, TypeLinks, ParseLinks) }

// FuzzDatagram fuzzes both parsers of datagrams.
func FuzzDatagram(f *testing.F) {
	f.Add(vector(f, "heartbeat"))
	f.Add(vector(f, "heartbeat-ack"))
	f.Add(vector(f, "mark"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := ParseHeartbeat(b); err == nil && !bytes.Equal(got.AppendTo(nil), b) {
			t.Errorf("%x parses as %+v", b, got)
		}
		if got, err := ParseHeartbeatAck(b); err == nil && !bytes.Equal(got.AppendTo(nil), b) {
			t.Errorf("%x parses as %+v", b, got)
		}
	})
}

// FuzzFrames fuzzes a whole stream of any frames: the reader ends, and its frames encode to the stream's
// bytes.
func FuzzFrames(f *testing.F) {
	var all []byte
	for name := range golden {
		b := vector(f, name)
		f.Add(b)
		if Type(b[0]) != TypeWrite && Type(b[0]) != TypeReadData {
			all = append(all, b...)
		}
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		at := 0
		for {
			h, body, err := r.Next()
			if err != nil {
				return
			}
			enc := append(begin(nil, h.Type, h.Flags), body...)
			if end(enc, 0); !bytes.HasPrefix(stream[at:], enc) {
				t.Fatalf("frame at %d is %x, the stream has %x", at, enc, stream[at:])
			}
			at += len(enc)
			if n, ok := payloadAfter(h, body); ok {
				if r.Discard(int(n)) != nil {
					return
				}
				at += int(n)
			}
		}
	})
}

func payloadAfter(h Header, body []byte) (uint32, bool) {
	switch h.Type {
	case TypeWrite:
		f, err := ParseWrite(h.Flags, body)
		return f.Length, err == nil
	case TypeReadData:
		f, err := ParseReadData(h.Flags, body)
		return f.Length, err == nil
	}
	return 0, false
}

func anyIncarnation(t *rapid.T) addr.Incarnation {
	return addr.Incarnation{
		Node:       addr.NodeID(rapid.Uint16().Draw(t, "node")),
		Generation: addr.Generation(rapid.Uint32().Draw(t, "generation")),
	}
}

func anyHello(t *rapid.T) Hello {
	f := Hello{
		VersionMin: rapid.Uint16().Draw(t, "min"),
		Term:       rapid.Uint64().Draw(t, "term"),
		From:       anyIncarnation(t),
		FromEpoch:  rapid.Uint64().Draw(t, "epoch"),
		To:         anyIncarnation(t),
		Answer:     rapid.Bool().Draw(t, "answer"),
	}
	f.VersionMax = f.VersionMin
	if !f.Answer {
		f.Beside = rapid.Bool().Draw(t, "beside")
		f.VersionMax = rapid.Uint16Min(f.VersionMin).Draw(t, "max")
	}
	copy(f.Cluster[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "cluster"))
	copy(f.FromUUID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
	return f
}

// anyFrame draws a frame that a conforming peer could send, other than a
// ReadData.
func anyFrame() *rapid.Generator[frame] {
	return rapid.Custom(func(t *rapid.T) frame {
		u := func() uint64 { return rapid.Uint64().Draw(t, "u64") }
		b := func() uint8 { return rapid.Uint8().Draw(t, "u8") }
		on := func() bool { return rapid.Bool().Draw(t, "flag") }
		code := func() status.Code { return status.Code(rapid.Uint16().Draw(t, "code")) }
		failure := func() status.Code { return max(code(), 1) }
		length := func() uint32 { return rapid.Uint32Range(1, MaxPayload).Draw(t, "length") }
		port := func() addr.Port { return addr.Port(rapid.Uint16Min(1).Draw(t, "port")) }
		text := func() string {
			s := rapid.StringN(0, MaxReason/4, MaxReason).Draw(t, "reason")
			if !utf8.ValidString(s) {
				return "" // only valid text arrives as it was
			}
			return s
		}
		makers := []func() frame{
			func() frame { return anyHello(t) },
			func() frame { v := rapid.Uint16().Draw(t, "v"); return HelloRefuse{failure(), v / 2, v, text()} },
			func() frame {
				return Connect{ConnID(u()), port(), port(), u(), uint32(u()), rapid.StringMatching("([a-z][a-z0-9.-]{0,62})?").Draw(t, "service")}
			},
			func() frame { return Accept{ConnID(u()), ConnID(u()), u()} },
			func() frame { return Stream{ConnID(u())} },
			func() frame { return Refuse{ConnID(u()), failure()} },
			func() frame { return Probe{u(), anyIncarnation(t), anyIncarnation(t)} },
			func() frame { return ProbeAck{u(), anyIncarnation(t), anyIncarnation(t)} },
			func() frame { return Bye{text()} },
			func() frame { return ByeAck{} },
			func() frame { return Lease{rapid.Uint32Range(0, MaxLease).Draw(t, "lease")} },
			func() frame { return Credit{u()} },
			func() frame { return End{u()} },
			func() frame { return Close{Sent: u()} },
			func() frame { return Close{u(), true, text()} },
			func() frame { return NoPath{Reason: text()} },
			func() frame { return NoRMAPath{on(), on(), text()} },
			func() frame { return RMAPassed{u()} },
			func() frame { return Register{u(), u(), b()} },
			func() frame { return Registered{u()} },
			func() frame { return Unregister{u(), u()} },
			func() frame { return Unregistered{u()} },
			func() frame { return Write{u(), u(), length(), on(), on()} },
			func() frame { return Read{u(), u(), u()} },
			func() frame { return Done{u()} },
			func() frame { return Fail{u(), failure()} },
			func() frame { return Signal{u(), u(), u()} },
			func() frame { return Atomic{u(), b(), b(), u(), u(), u(), on()} },
			func() frame { return Result{u(), u()} },
			func() frame { return Mark{u()} },
			func() frame { return Marked{u(), u()} },
			func() frame { return Wait{u(), u()} },
			func() frame { return Waited{u(), code()} },
			func() frame { return PeerSignal{u(), b(), u(), u(), u(), u()} },
			func() frame { return PeerSignaled{u(), code()} },
			func() frame { return Heartbeat{u(), u(), anyIncarnation(t), anyIncarnation(t)} },
			func() frame { return HeartbeatAck{u(), u(), anyIncarnation(t), anyIncarnation(t)} },
			func() frame { return Ask{u(), port(), uint32(u())} },
			func() frame { return AskLinks{u()} },
			func() frame {
				f := Links{Request: u()}
				for i := range int(b()) % (MaxLinkRows + 1) {
					f.Rows = append(f.Rows, LinkRow{Peer: addr.Incarnation{Node: addr.NodeID(i), Generation: addr.Generation(u())}, Carrier: b() % 3, Fallback: on(),
						SilentMS: uint32(u()), RoundTripUS: uint32(u()), DeviationUS: uint32(u()), ShortestUS: uint32(u()), Loss: uint16(u() % (wholeLoss + 1))})
				}
				return f
			},
			func() frame {
				return Answer{u(), on(), on(), uint16(u()), uint16(u()), strings.Repeat("by ", int(b())/4)}
			},
		}
		return makers[rapid.IntRange(0, len(makers)-1).Draw(t, "kind")]()
	})
}

func TestEveryFrameComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyFrame().Draw(t, "frame")
		if got, err := parse(want.AppendTo(nil)); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v comes back as %+v, %v", want, got, err)
		}
		data := ReadData{
			Op:     rapid.Uint64().Draw(t, "op"),
			Length: rapid.Uint32Range(1, MaxPayload).Draw(t, "length"),
			Last:   rapid.Bool().Draw(t, "last"),
		}
		if got, err := parse(data.AppendTo(nil)); err != nil || got != data {
			t.Fatalf("%+v comes back as %+v, %v", data, got, err)
		}
	})
}
