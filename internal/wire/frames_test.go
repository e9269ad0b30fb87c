package wire

import (
	"bytes"
	"embed"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

type frame interface{ AppendTo([]byte) []byte }

// parse parses a whole frame of any type.
func parse(b []byte) (frame, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	body := b[HeaderLen:]
	if int(h.Len) != len(body) {
		return nil, ErrMalformed
	}
	switch h.Type {
	case TypeHeartbeat:
		return as(ParseHeartbeat(b))
	case TypeHeartbeatAck:
		return as(ParseHeartbeatAck(b))
	}
	return parsers[h.Type](h.Flags, body)
}

// as drops the zero frame of a failed parse.
func as[F frame](f F, err error) (frame, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

type parser func(flags uint8, body []byte) (frame, error)

func parserOf[F frame](p func(uint8, []byte) (F, error)) parser {
	return func(flags uint8, body []byte) (frame, error) { return as(p(flags, body)) }
}

var parsers = map[Type]parser{
	TypeHello:        parserOf(ParseHello),
	TypeConnect:      parserOf(ParseConnect),
	TypeAccept:       parserOf(ParseAccept),
	TypeStream:       parserOf(ParseStream),
	TypeHelloRefuse:  parserOf(ParseHelloRefuse),
	TypeRefuse:       parserOf(ParseRefuse),
	TypeProbe:        parserOf(ParseProbe),
	TypeProbeAck:     parserOf(parseProbeAck),
	TypeBye:          parserOf(ParseBye),
	TypeByeAck:       parserOf(parseByeAck),
	TypeLease:        parserOf(ParseLease),
	TypeCredit:       parserOf(ParseCredit),
	TypeClose:        parserOf(ParseClose),
	TypeEnd:          parserOf(ParseEnd),
	TypeRegister:     parserOf(ParseRegister),
	TypeRegistered:   parserOf(ParseRegistered),
	TypeUnregister:   parserOf(ParseUnregister),
	TypeUnregistered: parserOf(ParseUnregistered),
	TypePath:         parserOf(ParsePath),
	TypeNoPath:       parserOf(ParseNoPath),
	TypeRMAPath:      parserOf(ParseRMAPath),
	TypeNoRMAPath:    parserOf(ParseNoRMAPath),
	TypeRMAPassed:    parserOf(ParseRMAPassed),
	TypeWrite:        parserOf(ParseWrite),
	TypeRead:         parserOf(ParseRead),
	TypeReadData:     parserOf(ParseReadData),
	TypeDone:         parserOf(ParseDone),
	TypeFail:         parserOf(ParseFail),
	TypeSignal:       parserOf(ParseSignal),
	TypeAtomic:       parserOf(ParseAtomic),
	TypeResult:       parserOf(ParseResult),
	TypeMark:         parserOf(ParseMark),
	TypeMarked:       parserOf(ParseMarked),
	TypeWait:         parserOf(ParseWait),
	TypeWaited:       parserOf(ParseWaited),
	TypePeerSignal:   parserOf(ParsePeerSignal),
	TypePeerSignaled: parserOf(ParsePeerSignaled),
	TypeAsk:          parserOf(ParseAsk),
	TypeAnswer:       parserOf(ParseAnswer),
	TypeAskLinks:     parserOf(ParseAskLinks),
	TypeLinks:        parserOf(ParseLinks),
}

// parseProbeAck parses a ProbeAck that fills body exactly.
func parseProbeAck(flags uint8, body []byte) (ProbeAck, error) {
	f, err := ParseProbe(flags, body)
	return ProbeAck(f), err
}

// parseByeAck parses a ByeAck, whose body is empty.
func parseByeAck(flags uint8, body []byte) (ByeAck, error) {
	d := decode(body, flags, 0)
	return ByeAck{}, d.finish()
}

func uuid(first byte) (u addr.UUID) {
	for i := range u {
		u[i] = first + byte(i)
	}
	return u
}

// golden has one frame of every type, with every field different, and the
// variants that flags make. The file of the same name is its encoding.
var golden = map[string]frame{
	"hello": Hello{
		VersionMin: 1, VersionMax: 3, Cluster: uuid(0x10), Term: 0x2122232425262728,
		From: addr.Incarnation{Node: 0x3132, Generation: 0x33343536}, FromUUID: uuid(0x40),
		FromEpoch: 0x5152535455565758, To: addr.Incarnation{Node: 0x6162, Generation: 0x63646566},
	},
	"hello-answer": Hello{
		VersionMin: 2, VersionMax: 2, Cluster: uuid(0x10), Term: 1,
		From: addr.Incarnation{Node: 7, Generation: 1}, FromUUID: uuid(0x40),
		FromEpoch: 9, To: addr.Incarnation{Node: 0, Generation: 4}, Answer: true,
	},
	"hello-beside": Hello{
		VersionMin: 2, VersionMax: 3, Cluster: uuid(0x10), Term: 1,
		From: addr.Incarnation{Node: 7, Generation: 1}, FromUUID: uuid(0x40),
		FromEpoch: 9, To: addr.Incarnation{Node: 0, Generation: 4}, Beside: true,
	},
	"hello-refuse":    HelloRefuse{Code: status.Version, VersionMin: 4, VersionMax: 5, Reason: "speaks 4 to 5 – not 1"},
	"connect-service": Connect{Conn: 1, From: 0x1112, To: 0x2122, Limit: 2, UID: 0x41424344, Service: "db"},
	"connect":         Connect{Conn: 0x0102030405060708, From: 0x1112, To: 0x2122, Limit: 0x3132333435363738, UID: 0x41424344},
	"accept":          Accept{Peer: 0x0102030405060708, Conn: 0x1112131415161718, Limit: 0x2122232425262728},
	"stream":          Stream{Peer: 0x0102030405060708},
	"refuse":          Refuse{Peer: 0x0102030405060708, Code: status.Refused},
	"probe":           Probe{Nonce: 0x0102030405060708, From: addr.Incarnation{Node: 0x1112, Generation: 0x13141516}, To: addr.Incarnation{Node: 0x2122, Generation: 0x23242526}},
	"probe-ack":       ProbeAck{Nonce: 0x0102030405060708, From: addr.Incarnation{Node: 0x1112, Generation: 0x13141516}, To: addr.Incarnation{Node: 0x2122, Generation: 0x23242526}},
	"bye":             Bye{Reason: "leaving"},
	"bye-ack":         ByeAck{},
	"lease":           Lease{Length: 0x00001222},
	"credit":          Credit{Limit: 0x0102030405060708},
	"end":             End{Sent: 0x0102030405060708},
	"close":           Close{Sent: 0x0102030405060708},
	"close-reset":     Close{Sent: 0x0102030405060708, Reset: true, Cause: "fabricd of node 2 stopped"},
	"register":        Register{Offset: 0x4000000000000000, Length: 0x1112131415161718, Prot: 3},
	"registered":      Registered{Offset: 0x4000000000000000},
	"unregister":      Unregister{Offset: 0x4000000000000000, Length: 0x1112131415161718},
	"unregistered":    Unregistered{Offset: 0x4000000000000000},
	"path":            Path{Token: uuid(0x10), Key: [32]byte{0x20, 0x21, 31: 0x3f}},
	"path-plain":      Path{Token: uuid(0x10), Plaintext: true},
	"no-path":         NoPath{Reason: "paths are off by the setting paths"},
	"no-path-now":     NoPath{Reason: "the application at the other end does not join", Passing: true},
	"rma-path":        RMAPath{Token: uuid(0x10), Key: [32]byte{0x20, 0x21, 31: 0x3f}},
	"rma-path-ok":     RMAPath{Token: uuid(0x10), Plaintext: true, Answer: true},
	"no-rma-path":     NoRMAPath{Answer: true, Reason: "paths are off by the setting paths"},
	"no-rma-path-now": NoRMAPath{Answer: true, Passing: true, Reason: "this node has 64 paths"},
	"rma-passed":      RMAPassed{Bytes: 0x2122232425262728},
	"write":           Write{Op: 0x0102030405060708, Offset: 0x1112131415161718, Length: 0x00021222},
	"write-last":      Write{Op: 1, Offset: 2, Length: MaxPayload, Last: true},
	"write-ordered":   Write{Op: 1, Offset: 2, Length: 3, Last: true, Ordered: true},
	"read":            Read{Op: 0x0102030405060708, Offset: 0x1112131415161718, Length: 0x2122232425262728},
	"read-data":       ReadData{Op: 0x0102030405060708, Length: 0x00021222},
	"read-last":       ReadData{Op: 0x0102030405060708, Length: 1, Last: true},
	"done":            Done{Op: 0x0102030405060708},
	"fail":            Fail{Op: 0x0102030405060708, Code: status.NoAddress},
	"signal":          Signal{Op: 0x0102030405060708, Offset: 0x1112131415161718, Value: 0x2122232425262728},
	"atomic":          Atomic{Op: 0x0102030405060708, Kind: 6, Width: 8, Offset: 0x1112131415161718, Operand: 0x2122232425262728, Compare: 0x3132333435363738},
	"atomic-posted":   Atomic{Op: 0x0102030405060708, Kind: 1, Width: 4, Offset: 0x1112131415161718, Operand: 0x2122232425262728, Posted: true},
	"result":          Result{Op: 0x0102030405060708, Value: 0x1112131415161718},
	"mark":            Mark{Request: 0x0102030405060708},
	"marked":          Marked{Request: 0x0102030405060708, Seq: 0x1112131415161718},
	"wait":            Wait{Request: 0x0102030405060708, Seq: 0x1112131415161718},
	"waited":          Waited{Request: 0x0102030405060708, Code: status.Reset},
	"waited-ok":       Waited{Request: 0x0102030405060708},
	"peer-signal": PeerSignal{
		Request: 0x0102030405060708, Where: 0x30, LocalOffset: 0x1112131415161718, LocalValue: 0x2122232425262728,
		RemoteOffset: 0x3132333435363738, RemoteValue: 0x4142434445464748,
	},
	"peer-signaled": PeerSignaled{Request: 0x0102030405060708, Code: status.Access},
	"heartbeat":     Heartbeat{Seq: 0x0102030405060708, Sent: 0x1112131415161718, From: addr.Incarnation{Node: 0x2122, Generation: 0x23242526}, To: addr.Incarnation{Node: 0x3132, Generation: 0x33343536}},
	"heartbeat-ack": HeartbeatAck{Seq: 0x0102030405060708, Sent: 0x1112131415161718, From: addr.Incarnation{Node: 0x2122, Generation: 0x23242526}, To: addr.Incarnation{Node: 0x3132, Generation: 0x33343536}},
	"ask":           Ask{Request: 0x0102030405060708, To: 0x1112, UID: 0x21222324},
	"answer":        Answer{Request: 0x0102030405060708, Allowed: true, Listening: true, Waiting: 0x1112, Backlog: 0x2122, By: "2050 from web-1"},
	"answer-no":     Answer{Request: 1, By: "default-access: closed"},
	"ask-links":     AskLinks{Request: 0x0102030405060708},
	"links-none":    Links{Request: 1},
	"links": Links{Request: 0x0102030405060708, Rows: []LinkRow{
		{Peer: addr.Incarnation{Node: 1, Generation: 4}, Carrier: CarrierQUIC, SilentMS: 0x01020304, RoundTripUS: 0x11121314, DeviationUS: 0x21222324, ShortestUS: 0x31323334, Loss: 10_000},
		{Peer: addr.Incarnation{Node: 2, Generation: 5}, Carrier: CarrierTCP, Fallback: true}}},
}

// A golden vector is a promise to peers already deployed: add, never edit.
//
//go:embed testdata/v1/*.hex
var vectors embed.FS

func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := vectors.ReadFile("testdata/v1/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

func TestGoldenVectors(t *testing.T) {
	files, err := vectors.ReadDir("testdata/v1")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(golden) {
		t.Errorf("%d vectors for %d frames", len(files), len(golden))
	}
	seen := map[Type]bool{}
	for name, f := range golden {
		want := vector(t, name)
		if got := f.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded %x\nwant %x", name, got, want)
		}
		if got, err := parse(want); !reflect.DeepEqual(got, f) || err != nil {
			t.Errorf("%s: parsed %+v, %v\nwant %+v", name, got, err, f)
		}
		typ, _ := TypeOf(want)
		seen[typ] = true
	}
	for n := range 256 {
		if typ := Type(n); typ.Known() != seen[typ] {
			t.Errorf("%v: known %v, has a vector %v", typ, typ.Known(), seen[typ])
		}
	}
}

func TestAppendToKeepsWhatIsThere(t *testing.T) {
	for name, f := range golden {
		got := f.AppendTo([]byte("before"))
		if want := append([]byte("before"), vector(t, name)...); !bytes.Equal(got, want) {
			t.Errorf("%s appended: %x, want %x", name, got, want)
		}
	}
}

// withBody returns the frame's bytes with another body of any length, its
// header corrected.
func withBody(b, body []byte) []byte {
	out := append(bytes.Clone(b[:HeaderLen]), body...)
	order.PutUint32(out[4:], uint32(len(body)))
	return out
}

func TestWrongLengthIsMalformed(t *testing.T) {
	for name := range golden {
		b := vector(t, name)
		h, err := ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		body := b[HeaderLen:]
		for n := range b {
			if _, err := parse(b[:n]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut to %d bytes: %v, want ErrMalformed", name, n, err)
			}
		}
		if _, err := parse(append(bytes.Clone(b), 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s and one byte: %v, want ErrMalformed", name, err)
		}
		// The parsers do not trust the header to have checked the length.
		p, ok := parsers[h.Type]
		if !ok {
			continue // a datagram, parsed with its header
		}
		for n := range body {
			if _, err := p(h.Flags, body[:n]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s with %d bytes of its body: %v, want ErrMalformed", name, n, err)
			}
		}
		if _, err := p(h.Flags, append(bytes.Clone(body), 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s with a byte after its body: %v, want ErrMalformed", name, err)
		}
	}
}

func TestReservedFlagsAreMalformed(t *testing.T) {
	allowed := map[Type]uint8{TypeHello: 3, TypeConnect: 1, TypeAnswer: 3, TypeWrite: 3, TypeReadData: 1, TypeAtomic: 1, TypeClose: 1, TypePath: 1, TypeNoPath: 1, TypeRMAPath: 3, TypeNoRMAPath: 3}
	for name := range golden {
		b := vector(t, name)
		typ, _ := TypeOf(b)
		for bit := uint8(1); bit != 0; bit <<= 1 {
			if allowed[typ]&bit != 0 {
				continue
			}
			bad := bytes.Clone(b)
			bad[1] |= bit
			if _, err := ParseHeader(bad); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s with flag %#x: header %v, want ErrMalformed", name, bit, err)
			}
			if p, ok := parsers[typ]; ok {
				if _, err := p(bad[1], bad[HeaderLen:]); !errors.Is(err, ErrMalformed) {
					t.Errorf("%s with flag %#x: body %v, want ErrMalformed", name, bit, err)
				}
			}
		}
		for i := 2; i < 4; i++ {
			bad := bytes.Clone(b)
			bad[i] = 1
			if _, err := parse(bad); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s with byte %d of the header set: %v, want ErrMalformed", name, i, err)
			}
		}
	}
}

func TestReservedHeartbeatBytesAreMalformed(t *testing.T) {
	for _, name := range []string{"heartbeat", "heartbeat-ack"} {
		b := vector(t, name)
		if len(b) != HeartbeatLen {
			t.Errorf("%s has %d bytes, want %d", name, len(b), HeartbeatLen)
		}
		for i := HeartbeatLen - heartbeatReserved; i < HeartbeatLen; i++ {
			bad := bytes.Clone(b)
			bad[i] = 0x80
			if _, err := parse(bad); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s with reserved byte %d set: %v, want ErrMalformed", name, i, err)
			}
		}
	}
	if _, err := ParseHeartbeat(vector(t, "heartbeat-ack")); !errors.Is(err, ErrMalformed) {
		t.Errorf("a HeartbeatAck as Heartbeat: %v", err)
	}
	if _, err := ParseHeartbeatAck(vector(t, "heartbeat")); !errors.Is(err, ErrMalformed) {
		t.Errorf("a Heartbeat as HeartbeatAck: %v", err)
	}
}

func TestImpossibleValuesAreMalformed(t *testing.T) {
	long := strings.Repeat("x", MaxReason+1)
	reason := func(s string) []byte { return append(order.AppendUint16(nil, uint16(len(s))), s...) }
	for name, b := range map[string][]byte{
		"Hello with versions upside down":       Hello{VersionMin: 2, VersionMax: 1}.AppendTo(nil),
		"answer with several versions":          Hello{VersionMin: 1, VersionMax: 2, Answer: true}.AppendTo(nil),
		"answer that says beside":               Hello{VersionMin: 2, VersionMax: 2, Answer: true, Beside: true}.AppendTo(nil),
		"HelloRefuse with versions upside down": HelloRefuse{Code: status.Version, VersionMin: 2, VersionMax: 1}.AppendTo(nil),
		"HelloRefuse without a failure":         HelloRefuse{}.AppendTo(nil),
		"Lease too long":                        Lease{Length: MaxLease + 1}.AppendTo(nil),
		"Lease longest":                         Lease{Length: math.MaxUint32}.AppendTo(nil),
		"Connect from no port":                  Connect{Conn: 1, To: 1}.AppendTo(nil),
		"Connect to no port":                    Connect{Conn: 1, From: 1}.AppendTo(nil),
		"Connect to a service that is an ID":    Connect{Conn: 1, From: 1, To: 1, Service: "7"}.AppendTo(nil),
		"Connect to a service too long":         Connect{Conn: 1, From: 1, To: 1, Service: strings.Repeat("x", addr.MaxService+1)}.AppendTo(nil),
		"Refuse without a failure":              Refuse{}.AppendTo(nil),
		"Fail without a failure":                Fail{}.AppendTo(nil),
		"Write of nothing":                      Write{Op: 1}.AppendTo(nil),
		"Write too long":                        Write{Op: 1, Length: MaxPayload + 1}.AppendTo(nil),
		"Write longest":                         Write{Op: 1, Length: math.MaxUint32}.AppendTo(nil),
		"ReadData of nothing":                   ReadData{Op: 1, Last: true}.AppendTo(nil),
		"ReadData too long":                     ReadData{Op: 1, Length: MaxPayload + 1}.AppendTo(nil),
		"Bye with a reason too long":            withBody(Bye{}.AppendTo(nil), reason(long)),
		"Bye with a reason that is not UTF-8":   withBody(Bye{}.AppendTo(nil), reason("\xff")),
		"Bye with half a character":             withBody(Bye{}.AppendTo(nil), reason("\xe2\x80")),
		"Bye shorter than its reason":           withBody(Bye{}.AppendTo(nil), reason("abc")[:4]),
		"Bye longer than its reason":            withBody(Bye{}.AppendTo(nil), append(reason("abc"), 'd')),
		"Ask for no port":                       Ask{Request: 1}.AppendTo(nil),
		"Answer that is not printable":          Answer{By: "2050\x1b[31m"}.AppendTo(nil),
		"Links with a node twice":               Links{Rows: []LinkRow{{}, {}}}.AppendTo(nil),
		"Links that lose more than all":         Links{Rows: []LinkRow{{Loss: wholeLoss + 1}}}.AppendTo(nil),
		"Links over an unknown carrier":         Links{Rows: []LinkRow{{Carrier: CarrierTCP + 1}}}.AppendTo(nil),
		"Answer of two lines":                   Answer{By: "2050\nfrom"}.AppendTo(nil),
	} {
		if f, err := parse(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v; want ErrMalformed", name, f, err)
		}
	}
}

func TestParseHeader(t *testing.T) {
	for n := range 256 {
		b := []byte{byte(n), 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}
		_, err := ParseHeader(b)
		if want := !Type(n).Known(); errors.Is(err, ErrUnknownType) != want {
			t.Errorf("type %d: %v, want ErrUnknownType: %v", n, err, want)
		}
		if want := Type(n).Known(); errors.Is(err, ErrMalformed) != want {
			t.Errorf("type %d with the longest body: %v, want ErrMalformed: %v", n, err, want)
		}
	}
	for typ, f := range formats {
		if f.max > MaxBody || f.min > f.max {
			t.Errorf("%v: bodies of %d to %d bytes, MaxBody is %d", Type(typ), f.min, f.max, MaxBody)
		}
	}
	if _, err := ParseHeader([]byte{200, 0, 0, 0, 0, 0, 0, 0}); err == nil || !strings.Contains(err.Error(), "200") {
		t.Errorf("the error of an unknown type does not name it: %v", err)
	}
}

func TestTypeNames(t *testing.T) {
	for typ, want := range map[Type]string{TypeHello: "Hello", TypePeerSignaled: "PeerSignaled", 0: "Type(0)", 255: "Type(255)"} {
		if got := typ.String(); got != want {
			t.Errorf("Type(%d) is %q, want %q", uint8(typ), got, want)
		}
	}
	if _, ok := TypeOf(nil); ok {
		t.Error("TypeOf of nothing says that there is a type")
	}
	if typ, ok := TypeOf([]byte{200}); typ != 200 || !ok {
		t.Errorf("TypeOf of an unknown type = %v, %v", typ, ok)
	}
}

func TestReasonIsMadeToFit(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"fits":                {strings.Repeat("x", MaxReason), strings.Repeat("x", MaxReason)},
		"too long":            {strings.Repeat("x", 1000), strings.Repeat("x", MaxReason)},
		"not UTF-8":           {"a\xffb", "a\uFFFDb"},
		"cut in a character":  {strings.Repeat("x", MaxReason-1) + "é", strings.Repeat("x", MaxReason-1)},
		"grows by correction": {strings.Repeat("\xffx", 200), strings.Repeat("\uFFFDx", MaxReason/4)},
	} {
		f, err := parse(Bye{Reason: tt.in}.AppendTo(nil))
		if err != nil || f.(Bye).Reason != tt.want {
			t.Errorf("%s: %+v, %v; want %q", name, f, err, tt.want)
		}
	}
}

func TestAnyReasonIsSendable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 2*MaxReason).Draw(t, "reason"))
		f, err := parse(HelloRefuse{Code: status.Version, Reason: in}.AppendTo(nil))
		if err != nil {
			t.Fatalf("a reason of %q is not understood: %v", in, err)
		}
		got := f.(HelloRefuse).Reason
		if len(got) > MaxReason || (got == "") != (in == "") {
			t.Fatalf("a reason of %q arrives as %q", in, got)
		}
		if utf8.ValidString(in) && (!strings.HasPrefix(in, got) || len(got) < min(len(in), MaxReason-3)) {
			t.Fatalf("a reason of %q arrives as %q", in, got)
		}
	})
}

func TestEncodersDoNotAllocate(t *testing.T) {
	b := make([]byte, 0, HeaderLen+MaxBody)
	write, beat, hello := golden["write"].(Write), golden["heartbeat"].(Heartbeat), golden["hello"].(Hello)
	refuse, atomic, signal := golden["hello-refuse"].(HelloRefuse), golden["atomic"].(Atomic), golden["peer-signal"].(PeerSignal)
	if n := testing.AllocsPerRun(100, func() {
		write.AppendTo(b)
		beat.AppendTo(b)
		hello.AppendTo(b)
		refuse.AppendTo(b)
		atomic.AppendTo(b)
		signal.AppendTo(b)
		Done{Op: 1}.AppendTo(b)
		Read{Op: 1}.AppendTo(b)
		Waited{Request: 1}.AppendTo(b)
	}); n != 0 {
		t.Errorf("encoding nine frames: %v allocations, want 0", n)
	}
}

func BenchmarkWrite(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var op uint64
		for b.Loop() {
			op++
			buf = Write{Op: op, Offset: 4096, Length: 64, Last: true}.AppendTo(buf[:0])
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, err := ParseHeader(buf)
			if err != nil {
				b.Fatal(err)
			}
			if f, err := ParseWrite(h.Flags, buf[HeaderLen:]); err != nil || f.Length != 64 {
				b.Fatal(f, err)
			}
		}
	})
}
