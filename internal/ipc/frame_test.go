package ipc

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
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// bodies has an example of every body, under the name that its golden vector
// has. Add, never edit: deployed applications send these bytes.
var bodies = []struct {
	name string
	h    header
	m    message
}{
	{"hello", header{Op: opHello, Request: 1}, &hello{Magic: magic, Min: 1, Max: 2}},
	{"welcome", header{Op: opHello | opReply, Request: 1}, &welcome{Version: 1, Requests: 1024, Self: Self{Cluster: addr.UUID{1, 2, 15: 16}, Life: addr.Life{Node: 3, Generation: 7}, Name: "n3"}}},
	{"refusal", header{Op: opHello | opReply, Code: status.Version, Request: 1}, &refusal{Min: 1, Max: 1, Text: "no"}},
	{"cancel", header{Op: opCancel}, &cancel{0x1122334455667788}},
	{"open", header{Op: opOpen, Request: 2}, empty{}},
	{"nodes", header{Op: opNodes | opReply, Request: 2}, &nodesBody{Self: 3, Set: []byte{0b1001, 0, 0b10}}},
	{"watch", header{Op: opWatch, Request: 2}, &watchBody{1}},
	{"endpoint", header{Op: opOpen | opReply, Request: 2}, &endpointBody{9}},
	{"address", header{Op: opConnect, Endpoint: 9, Request: 3}, (*address)(&addr.Addr{Node: 3, Port: 2050})},
	{"listen", header{Op: opListen, Endpoint: 9, Request: 3}, &listenBody{math.MaxUint32}},
	{"listen-allow", header{Op: opListenAllow, Endpoint: 9, Request: 3}, &listenAllowBody{Backlog: 5, Allow: []string{"web-1", "label:db"}}},
	{"peer", header{Op: opPeer | opReply, Endpoint: 9, Request: 4}, &peerBody{Life: addr.Life{Node: 4, Generation: 2}, UID: 1000, Name: "web-1", Labels: []string{"web"}}},
	{"serve", header{Op: opServe, Endpoint: 9, Request: 3}, &serviceBody{"db"}},
	{"connect-service", header{Op: opConnectService, Endpoint: 9, Request: 3}, &connectServiceBody{addr.Addr{Node: 3, Port: 2050}, "db"}},
	{"services", header{Op: opServices, Request: 3}, &servicesBody{"db", 3}},
	{"resolve", header{Op: opResolve, Request: 3}, &resolveBody{"db", "web-1"}},
	{"service-list", header{Op: opServices | opReply, Request: 3}, &serviceList{More: true, Services: []Service{
		{Name: "db", Life: addr.Life{Node: 3, Generation: 7}, Port: 2050, Node: "web-1", RoundTrip: 1000}, {Name: "web", Life: addr.Life{Node: 4, Generation: 1}, Port: 80, RoundTrip: -1}}}},
	{"services-anew", header{Op: opServicesAnew}, empty{}},
	{"connected", header{Op: opAccept | opReply, Endpoint: 9, Request: 4}, &connected{Endpoint: 10, Local: addr.Addr{Node: 3, Port: 2050}, Remote: addr.Addr{Node: 4, Port: 1088}}},
	{"ending", header{Op: opEnding | opReply, Endpoint: 9, Request: 4}, &endingBody{endedClosed}},
	{"cause", header{Op: opCause | opReply, Endpoint: 9, Request: 4}, &causeBody{"fabricd of node 2 stopped"}},
	{"shut", header{Op: opShut, Endpoint: 9, Request: 4}, empty{}},
	{"path-key", header{Op: opPath, Endpoint: 9, Request: 4}, &pathKeyBody{path.Hash{1, 31: 2}}},
	{"path", header{Op: opPath | opReply, Endpoint: 9, Request: 4}, &pathBody{Flags: pathClient, Peer: path.Hash{3, 31: 4}, Binding: path.Binding{5, 31: 6}}},
	{"abort", header{Op: opAbort, Endpoint: 9, Request: 4}, &causeBody{"given up"}},
	{"state", header{Op: opState, Endpoint: 9}, &readyBody{uint16(PollIn | PollOut)}},
	{"event", header{Op: opEvent}, (*eventBody)(&Event{Kind: NodeRemoved, Life: addr.Life{Node: 4, Generation: 2}, Name: "n4", Reason: "crashed"})},
	{"self", header{Op: opSelfState}, (*selfBody)(&Self{Life: addr.Life{Node: 3, Generation: 8}})},
	{"mem-add", header{Op: opMemAdd, Request: 5}, &memAdd{1 << 20}},
	{"memory", header{Op: opMemAdd | opReply, Request: 5}, &memoryBody{2}},
	{"register", header{Op: opRegister, Endpoint: 9, Request: 6}, &register{Memory: 2, Prot: rma.ProtRead | rma.ProtWrite, Flags: rma.MapFixed, MemOff: 4096, Len: 8192, Off: rma.FirstOffset}},
	{"offset", header{Op: opRegister | opReply, Endpoint: 9, Request: 6}, &offset{rma.FirstOffset}},
	{"span", header{Op: opUnregister, Endpoint: 9, Request: 7}, &span{-1, math.MaxInt64}},
	{"transfer", header{Op: opWriteTo, Endpoint: 9, Request: 8}, &transfer{Local: 1, Len: 2, Remote: 3, Flags: rma.Sync}},
	{"vtransfer", header{Op: opVWriteTo, Endpoint: 9, Request: 9}, &vtransfer{Memory: 2, Flags: rma.Ordered, MemOff: 1, Len: 2, Remote: 3}},
	{"check", header{Op: opCheck, Endpoint: 9, Request: 9}, &checkBody{Remote: 3, Len: 2 << 20, Flags: rma.Sync, Need: rma.ProtWrite}},
	{"atomic", header{Op: opAtomic, Endpoint: 9, Request: 10}, (*atomicBody)(&rma.Atomic{Op: rma.AtomicCAS, Width: 8, Offset: 8, Operand: 1, Compare: math.MaxUint64})},
	{"put", header{Op: opPutSignal, Endpoint: 9, Request: 14}, &putBody{Local: 1, Len: 2, Put: rma.Put{Offset: 3, Word: 8, Value: 5, More: 6}}},
	{"vput", header{Op: opVPutSignal, Endpoint: 9, Request: 15}, &vputBody{Memory: 2, MemOff: 1, Len: 2, Put: rma.Put{Offset: 3, Word: 8, Value: 5, More: 6}}},
	{"word", header{Op: opAtomic | opReply, Endpoint: 9, Request: 10}, &wordBody{5}},
	{"mmap", header{Op: opMmap, Endpoint: 9, Request: 11}, &mmapBody{Off: rma.FirstOffset, Len: 4096, Prot: rma.ProtRead}},
	{"mapped", header{Op: opMmap | opReply, Endpoint: 9, Request: 11}, &mapped{Mapping: 6, Off: 4096}},
	{"window", header{Op: opWindow | opReply, Endpoint: 9, Request: 11}, &windowBody{Prot: rma.ProtRead | rma.ProtWrite, Slot: 4, Epoch: 77, Off: rma.FirstOffset, Len: 8192, MemOff: 4096, Size: 16384}},
	{"through-node", header{Op: opWindow | opReply, Endpoint: 9, Request: 11}, &windowBody{Slot: 4, Epoch: 77, Off: rma.FirstOffset, Len: 8192}},
	{"share", header{Op: opShare, Request: 11}, &watchBody{1}},
	{"retire", header{Op: opRetire, Request: 11}, &memoryBody{2}},
	{"shared", header{Op: opShared}, &sharedBody{Memory: 2, Windows: 3}},
	{"stale", header{Op: opStale, Endpoint: 9}, empty{}},
	{"rings", header{Op: opRings | opReply, Request: 11}, &ringsBody{Release: 25, Huge: shm.HugeRequire}},
	{"side", header{Op: opFenceMark, Endpoint: 9, Request: 12}, &sideBody{fence.InitPeer}},
	{"mark", header{Op: opFenceMark | opReply, Endpoint: 9, Request: 12}, (*markBody)(&fence.Mark{Side: fence.InitPeer, Seq: 77})},
	{"signal", header{Op: opFenceSignal, Endpoint: 9, Request: 13}, (*signalBody)(&fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote, LocalOffset: 1, LocalValue: 2, RemoteOffset: 3, RemoteValue: 4})},
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

func fresh(m message) message {
	if _, ok := m.(empty); ok {
		return m
	}
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
}

func TestGoldenVectors(t *testing.T) {
	vectors := readGolden(t)
	if len(vectors) != len(bodies) {
		t.Errorf("%d vectors, %d bodies", len(vectors), len(bodies))
	}
	for _, b := range bodies {
		got := appendFrame(nil, b.h, b.m)
		if !bytes.Equal(got, vectors[b.name]) {
			t.Errorf("%s is encoded as\n%x, want\n%x", b.name, got, vectors[b.name])
		}
		h, body, err := parseFrame(vectors[b.name])
		m := fresh(b.m)
		if err == nil {
			err = parseBody(body, m)
		}
		if err != nil || h != b.h || !reflect.DeepEqual(m, b.m) {
			t.Errorf("%s is decoded as %+v %+v, %v, want %+v %+v", b.name, h, m, err, b.h, b.m)
		}
	}
}

func TestBodiesAreStrict(t *testing.T) {
	for _, b := range bodies {
		_, body, _ := parseFrame(appendFrame(nil, b.h, b.m))
		if _, free := b.m.(*nodesBody); !free {
			if err := parseBody(append(bytes.Clone(body), 0), fresh(b.m)); status.Of(err) != status.Protocol {
				t.Errorf("%s with a byte too many: %v, want %v", b.name, err, status.Protocol)
			}
		}
		for n := range body {
			_, free := b.m.(*nodesBody)
			if err := parseBody(body[:n], fresh(b.m)); status.Of(err) != status.Protocol && !(free && n >= 2) {
				t.Errorf("%s cut to %d bytes: %v, want %v", b.name, n, err, status.Protocol)
			}
		}
	}
	long := &refusal{Text: strings.Repeat("x", 2*maxText)}
	_, body, _ := parseFrame(appendFrame(nil, header{}, long))
	var got refusal
	if err := parseBody(body, &got); err != nil || len(got.Text) != maxText {
		t.Errorf("long text: %d bytes, %v, want it cut to %d", len(got.Text), err, maxText)
	}
	body[4], body[5] = byte((maxText+1)&0xFF), byte((maxText+1)>>8)
	if err := parseBody(append(body, 'x'), &got); err == nil {
		t.Error("text over its limit is decoded")
	}
	if err := parseBody(make([]byte, 2+1<<13+1), &nodesBody{}); err == nil {
		t.Error("a set of more nodes than there are is decoded")
	}
}

// What fits every frame must survive: the largest packet is within bounds.
func TestFramesFit(t *testing.T) {
	all := bytes.Repeat([]byte{0xFF}, 1<<16/8)
	if n := len(appendFrame(nil, header{}, &nodesBody{Set: all})); n > maxFrame {
		t.Errorf("all nodes take %d bytes, over %d", n, maxFrame)
	}
	text := strings.Repeat("é", maxText)
	if n := len(appendFrame(nil, header{}, (*eventBody)(&Event{Name: text, Reason: text}))); n > maxFrame {
		t.Errorf("an event takes %d bytes, over %d", n, maxFrame)
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := header{
			Op: op(rapid.Uint16().Draw(t, "op")), Code: status.Code(rapid.Uint16().Draw(t, "code")),
			Endpoint: rapid.Uint32().Draw(t, "endpoint"), Request: rapid.Uint64().Draw(t, "request"),
		}
		m := &transfer{rapid.Int64().Draw(t, "l"), rapid.Int64().Draw(t, "n"), rapid.Int64().Draw(t, "r"), rma.Flags(rapid.Uint32().Draw(t, "f"))}
		got, body, err := parseFrame(appendFrame([]byte("before"), h, m)[6:])
		var back transfer
		if err == nil {
			err = parseBody(body, &back)
		}
		if err != nil || got != h || back != *m {
			t.Fatalf("%+v %+v came back as %+v %+v, %v", h, m, got, back, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for _, b := range bodies {
		f.Add(appendFrame(nil, b.h, b.m))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		h, body, err := parseFrame(p)
		if err != nil {
			return
		}
		if got := append(appendFrame(nil, h, nil), body...); !bytes.Equal(got, p) {
			t.Errorf("%x was encoded again as %x", p, got)
		}
	})
}

// FuzzBodies decodes its input as each body: what is accepted must have one
// encoding only.
func FuzzBodies(f *testing.F) {
	for i, b := range bodies {
		_, body, _ := parseFrame(appendFrame(nil, b.h, b.m))
		f.Add(byte(i), body)
	}
	f.Fuzz(func(t *testing.T, which byte, p []byte) {
		b := bodies[int(which)%len(bodies)]
		m := fresh(b.m)
		if parseBody(p, m) != nil {
			return
		}
		c := coder{encoding: true}
		m.fields(&c)
		if !bytes.Equal(c.b, p) {
			t.Errorf("%s: %x was encoded again as %x", b.name, p, c.b)
		}
	})
}
