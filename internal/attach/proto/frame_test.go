package proto

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// bodies has an example of every body, under the name of its golden vector. Add, never edit:
// deployed applications send these bytes.
var bodies = []struct {
	name string
	h    Header
	m    Message
}{
	{"hello", Header{Op: OpHello, Request: 1}, &Hello{Magic: Magic, Min: 1, Max: 2}},
	{"welcome", Header{Op: OpHello | OpReply, Request: 1}, &Welcome{Version: 1, Requests: 1024, Self: attach.Self{Cluster: addr.UUID{1, 2, 15: 16}, Incarnation: addr.Incarnation{Node: 3, Generation: 7}, Name: "n3"}}},
	{"refusal", Header{Op: OpHello | OpReply, Code: status.Version, Request: 1}, &Refusal{Min: 1, Max: 1, Text: "no"}},
	{"cancel", Header{Op: OpCancel}, &Cancel{0x1122334455667788}},
	{"open", Header{Op: OpOpen, Request: 2}, empty{}},
	{"nodes", Header{Op: OpNodes | OpReply, Request: 2}, &NodesBody{Self: 3, Set: []byte{0b1001, 0, 0b10}}},
	{"watch", Header{Op: OpWatch, Request: 2}, &WatchBody{1}},
	{"endpoint", Header{Op: OpOpen | OpReply, Request: 2}, &EndpointBody{9}},
	{"address", Header{Op: OpConnect, Endpoint: 9, Request: 3}, (*Address)(&addr.Addr{Node: 3, Port: 2050})},
	{"listen", Header{Op: OpListen, Endpoint: 9, Request: 3}, &ListenBody{math.MaxUint32}},
	{"listen-allow", Header{Op: OpListenAllow, Endpoint: 9, Request: 3}, &ListenAllowBody{Backlog: 5, Allow: []string{"web-1", "label:db"}}},
	{"peer", Header{Op: OpPeer | OpReply, Endpoint: 9, Request: 4}, &PeerBody{Incarnation: addr.Incarnation{Node: 4, Generation: 2}, UID: 1000, Name: "web-1", Labels: []string{"web"}}},
	{"serve", Header{Op: OpServe, Endpoint: 9, Request: 3}, &ServiceBody{"db"}},
	{"connect-service", Header{Op: OpConnectService, Endpoint: 9, Request: 3}, &ConnectServiceBody{addr.Addr{Node: 3, Port: 2050}, "db"}},
	{"services", Header{Op: OpServices, Request: 3}, &ServicesBody{"db", 3}},
	{"resolve", Header{Op: OpResolve, Request: 3}, &ResolveBody{"db", "web-1"}},
	{"service-list", Header{Op: OpServices | OpReply, Request: 3}, &ServiceList{More: true, Services: []attach.Service{
		{Name: "db", Incarnation: addr.Incarnation{Node: 3, Generation: 7}, Port: 2050, Node: "web-1", RoundTrip: 1000}, {Name: "web", Incarnation: addr.Incarnation{Node: 4, Generation: 1}, Port: 80, RoundTrip: -1}}}},
	{"services-anew", Header{Op: OpServicesAnew}, empty{}},
	{"connected", Header{Op: OpAccept | OpReply, Endpoint: 9, Request: 4}, &Connected{Endpoint: 10, Local: addr.Addr{Node: 3, Port: 2050}, Remote: addr.Addr{Node: 4, Port: 1088}}},
	{"ending", Header{Op: OpEnding | OpReply, Endpoint: 9, Request: 4}, &EndingBody{EndedClosed}},
	{"cause", Header{Op: OpCause | OpReply, Endpoint: 9, Request: 4}, &CauseBody{"fabricd of node 2 stopped"}},
	{"shut", Header{Op: OpShut, Endpoint: 9, Request: 4}, empty{}},
	{"path-key", Header{Op: OpPath, Endpoint: 9, Request: 4}, &PathKeyBody{path.Hash{1, 31: 2}}},
	{"path-rest", Header{Op: OpPathRest, Endpoint: 9, Request: 4}, &PathRestBody{[]byte{0x17, 3, 3, 0, 1}}},
	{"path", Header{Op: OpPath | OpReply, Endpoint: 9, Request: 4}, &PathBody{Flags: PathClient, Peer: path.Hash{3, 31: 4}, Binding: path.Binding{5, 31: 6}}},
	{"abort", Header{Op: OpAbort, Endpoint: 9, Request: 4}, &CauseBody{"given up"}},
	{"state", Header{Op: OpState, Endpoint: 9}, &ReadyBody{uint16(attach.PollIn | attach.PollOut)}},
	{"event", Header{Op: OpEvent}, (*EventBody)(&attach.Event{Kind: attach.NodeRemoved, Incarnation: addr.Incarnation{Node: 4, Generation: 2}, Name: "n4", Reason: "crashed"})},
	{"self", Header{Op: OpSelfState}, (*SelfBody)(&attach.Self{Incarnation: addr.Incarnation{Node: 3, Generation: 8}})},
	{"mem-add", Header{Op: OpMemAdd, Request: 5}, &MemAdd{1 << 20}},
	{"memory", Header{Op: OpMemAdd | OpReply, Request: 5}, &MemoryBody{2}},
	{"register", Header{Op: OpRegister, Endpoint: 9, Request: 6}, &Register{Memory: 2, Prot: rma.ProtRead | rma.ProtWrite, Flags: rma.MapFixed, MemOff: 4096, Len: 8192, Off: rma.FirstOffset}},
	{"offset", Header{Op: OpRegister | OpReply, Endpoint: 9, Request: 6}, &Offset{rma.FirstOffset}},
	{"span", Header{Op: OpUnregister, Endpoint: 9, Request: 7}, &Span{-1, math.MaxInt64}},
	{"transfer", Header{Op: OpWriteTo, Endpoint: 9, Request: 8}, &Transfer{Local: 1, Len: 2, Remote: 3, Flags: rma.Sync}},
	{"vtransfer", Header{Op: OpVWriteTo, Endpoint: 9, Request: 9}, &VTransfer{Memory: 2, Flags: rma.Ordered, MemOff: 1, Len: 2, Remote: 3}},
	{"check", Header{Op: OpCheck, Endpoint: 9, Request: 9}, &CheckBody{Remote: 3, Len: 2 << 20, Flags: rma.Sync, Need: rma.ProtWrite}},
	{"atomic", Header{Op: OpAtomic, Endpoint: 9, Request: 10}, (*AtomicBody)(&rma.Atomic{Op: rma.AtomicCAS, Width: 8, Offset: 8, Operand: 1, Compare: math.MaxUint64})},
	{"put", Header{Op: OpPutSignal, Endpoint: 9, Request: 14}, &PutBody{Local: 1, Len: 2, Put: rma.Put{Offset: 3, Word: 8, Value: 5, More: 6}}},
	{"vput", Header{Op: OpVPutSignal, Endpoint: 9, Request: 15}, &VPutBody{Memory: 2, MemOff: 1, Len: 2, Put: rma.Put{Offset: 3, Word: 8, Value: 5, More: 6}}},
	{"word", Header{Op: OpAtomic | OpReply, Endpoint: 9, Request: 10}, &WordBody{5}},
	{"mmap", Header{Op: OpMmap, Endpoint: 9, Request: 11}, &MmapBody{Off: rma.FirstOffset, Len: 4096, Prot: rma.ProtRead}},
	{"mapped", Header{Op: OpMmap | OpReply, Endpoint: 9, Request: 11}, &Mapped{Mapping: 6, Off: 4096}},
	{"window", Header{Op: OpWindow | OpReply, Endpoint: 9, Request: 11}, &WindowBody{Prot: rma.ProtRead | rma.ProtWrite, Slot: 4, Epoch: 77, Off: rma.FirstOffset, Len: 8192, MemOff: 4096, Size: 16384}},
	{"through-node", Header{Op: OpWindow | OpReply, Endpoint: 9, Request: 11}, &WindowBody{Slot: 4, Epoch: 77, Off: rma.FirstOffset, Len: 8192}},
	{"share", Header{Op: OpShare, Request: 11}, &WatchBody{1}},
	{"retire", Header{Op: OpRetire, Request: 11}, &MemoryBody{2}},
	{"shared", Header{Op: OpShared}, &SharedBody{Memory: 2, Windows: 3}},
	{"stale", Header{Op: OpStale, Endpoint: 9}, empty{}},
	{"rings", Header{Op: OpRings | OpReply, Request: 11}, &RingsBody{Release: 25, Huge: shm.HugeRequire}},
	{"side", Header{Op: OpFenceMark, Endpoint: 9, Request: 12}, &SideBody{fence.InitPeer}},
	{"mark", Header{Op: OpFenceMark | OpReply, Endpoint: 9, Request: 12}, (*MarkBody)(&fence.Mark{Side: fence.InitPeer, Seq: 77})},
	{"signal", Header{Op: OpFenceSignal, Endpoint: 9, Request: 13}, (*SignalBody)(&fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote, LocalOffset: 1, LocalValue: 2, RemoteOffset: 3, RemoteValue: 4})},
}

const golden = "testdata/v1.txt"

// readGolden reads lines "name hex".
func readGolden(t testing.TB) map[string][]byte {
	t.Helper()
	f, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	vectors := make(map[string][]byte)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, digits, _ := strings.Cut(lines.Text(), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		vectors[name] = b
	}
	return vectors
}

func fresh(m Message) Message {
	if _, ok := m.(empty); ok {
		return m
	}
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
}

func TestGoldenVectors(t *testing.T) {
	vectors := readGolden(t)
	if len(vectors) != len(bodies) {
		t.Errorf("%d vectors, %d bodies", len(vectors), len(bodies))
	}
	for _, b := range bodies {
		got := AppendFrame(nil, b.h, b.m)
		if !bytes.Equal(got, vectors[b.name]) {
			t.Errorf("%s is encoded as\n%x, want\n%x", b.name, got, vectors[b.name])
		}
		h, body, err := ParseFrame(vectors[b.name])
		m := fresh(b.m)
		if err == nil {
			err = ParseBody(body, m)
		}
		if err != nil || h != b.h || !reflect.DeepEqual(m, b.m) {
			t.Errorf("%s is decoded as %+v %+v, %v, want %+v %+v", b.name, h, m, err, b.h, b.m)
		}
	}
}

func TestBodiesAreStrict(t *testing.T) {
	for _, b := range bodies {
		_, body, _ := ParseFrame(AppendFrame(nil, b.h, b.m))
		if _, free := b.m.(*NodesBody); !free {
			if err := ParseBody(append(bytes.Clone(body), 0), fresh(b.m)); status.Of(err) != status.Protocol {
				t.Errorf("%s with a byte too many: %v, want %v", b.name, err, status.Protocol)
			}
		}
		for n := range body {
			_, free := b.m.(*NodesBody)
			if err := ParseBody(body[:n], fresh(b.m)); status.Of(err) != status.Protocol && !(free && n >= 2) {
				t.Errorf("%s cut to %d bytes: %v, want %v", b.name, n, err, status.Protocol)
			}
		}
	}
	long := &Refusal{Text: strings.Repeat("x", 2*maxText)}
	_, body, _ := ParseFrame(AppendFrame(nil, Header{}, long))
	var got Refusal
	if err := ParseBody(body, &got); err != nil || len(got.Text) != maxText {
		t.Errorf("long text: %d bytes, %v, want it cut to %d", len(got.Text), err, maxText)
	}
	body[4], body[5] = byte((maxText+1)&0xFF), byte((maxText+1)>>8)
	if err := ParseBody(append(body, 'x'), &got); err == nil {
		t.Error("text over its limit is decoded")
	}
	if err := ParseBody(make([]byte, 2+1<<13+1), &NodesBody{}); err == nil {
		t.Error("a set of more nodes than there are is decoded")
	}
}

// The largest packet must encode and decode.
func TestFramesFit(t *testing.T) {
	all := bytes.Repeat([]byte{0xFF}, 1<<16/8)
	if n := len(AppendFrame(nil, Header{}, &NodesBody{Set: all})); n > MaxFrame {
		t.Errorf("all nodes take %d bytes, over %d", n, MaxFrame)
	}
	text := strings.Repeat("é", maxText)
	if n := len(AppendFrame(nil, Header{}, (*EventBody)(&attach.Event{Name: text, Reason: text}))); n > MaxFrame {
		t.Errorf("an event takes %d bytes, over %d", n, MaxFrame)
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header{
			Op: Op(rapid.Uint16().Draw(t, "op")), Code: status.Code(rapid.Uint16().Draw(t, "code")),
			Endpoint: rapid.Uint32().Draw(t, "endpoint"), Request: rapid.Uint64().Draw(t, "request"),
		}
		m := &Transfer{rapid.Int64().Draw(t, "l"), rapid.Int64().Draw(t, "n"), rapid.Int64().Draw(t, "r"), rma.Flags(rapid.Uint32().Draw(t, "f"))}
		got, body, err := ParseFrame(AppendFrame([]byte("before"), h, m)[6:])
		var back Transfer
		if err == nil {
			err = ParseBody(body, &back)
		}
		if err != nil || got != h || back != *m {
			t.Fatalf("%+v %+v came back as %+v %+v, %v", h, m, got, back, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for _, b := range bodies {
		f.Add(AppendFrame(nil, b.h, b.m))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		h, body, err := ParseFrame(p)
		if err != nil {
			return
		}
		if got := append(AppendFrame(nil, h, nil), body...); !bytes.Equal(got, p) {
			t.Errorf("%x was encoded again as %x", p, got)
		}
	})
}

// FuzzBodies decodes its input as each body: accepted input must have one encoding only.
func FuzzBodies(f *testing.F) {
	for i, b := range bodies {
		_, body, _ := ParseFrame(AppendFrame(nil, b.h, b.m))
		f.Add(byte(i), body)
	}
	f.Fuzz(func(t *testing.T, which byte, p []byte) {
		b := bodies[int(which)%len(bodies)]
		m := fresh(b.m)
		if ParseBody(p, m) != nil {
			return
		}
		c := encoderTo(nil)
		m.fields(&c)
		if !bytes.Equal(c.put.Encoded(), p) {
			t.Errorf("%s: %x was encoded again as %x", b.name, p, c.put.Encoded())
		}
	})
}
