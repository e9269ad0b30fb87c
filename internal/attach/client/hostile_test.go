package client

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A rawClient speaks the protocol by hand.
type rawClient struct {
	t    testing.TB
	conn *net.UnixConn
	next uint64
}

func rawDial(t testing.TB, s *service) *rawClient {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(limit))
	return &rawClient{t: t, conn: conn}
}

// attach returns a client that has said HELLO.
func attachRaw(t testing.TB, s *service) *rawClient {
	t.Helper()
	c := rawDial(t, s)
	if h, _ := c.ask(proto.OpHello, 0, &proto.Hello{Magic: proto.Magic, Min: 1, Max: 1}, nil, &proto.Welcome{}); h.Code != status.OK {
		t.Fatalf("HELLO: %v", h.Code)
	}
	return c
}

func (c *rawClient) send(h proto.Header, m proto.Message, f *os.File) {
	c.t.Helper()
	if err := shm.Send(c.conn, proto.AppendFrame(nil, h, m), f); err != nil {
		c.t.Fatalf("send %+v: %v", h, err)
	}
}

// ask makes a request and returns its answer, decoded into out if OK.
func (c *rawClient) ask(o proto.Op, ep uint32, in proto.Message, f *os.File, out proto.Message) (proto.Header, string) {
	c.t.Helper()
	c.next++
	c.send(proto.Header{Op: o, Endpoint: ep, Request: c.next}, in, f)
	h, body, file := c.answer()
	if file != nil {
		c.t.Cleanup(func() { file.Close() })
	}
	if h.Op != o|proto.OpReply || h.Request != c.next || h.Endpoint != ep {
		c.t.Fatalf("answer %+v to operation %d, request %d, endpoint %d", h, o, c.next, ep)
	}
	if h.Code != status.OK {
		var r proto.Refusal
		if err := proto.ParseBody(body, &r); err != nil {
			c.t.Fatal(err)
		}
		return h, r.Text
	}
	if err := proto.ParseBody(body, out); err != nil {
		c.t.Fatal(err)
	}
	return h, ""
}

// answer receives the next answer; it skips notifications.
func (c *rawClient) answer() (proto.Header, []byte, *os.File) {
	c.t.Helper()
	for {
		if h, body, f := c.recv(); h.Request != 0 {
			return h, body, f
		}
	}
}

func (c *rawClient) recv() (proto.Header, []byte, *os.File) {
	c.t.Helper()
	buf := make([]byte, proto.MaxFrame)
	n, f, err := shm.NewReceiver(c.conn).Recv(buf)
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	h, body, err := proto.ParseFrame(buf[:n])
	if err != nil {
		c.t.Fatal(err)
	}
	return h, body, f
}

// gone checks that the server ends the connection, after any other packets.
func (c *rawClient) gone(what string) {
	c.t.Helper()
	buf := make([]byte, proto.MaxFrame)
	for {
		_, f, err := shm.NewReceiver(c.conn).Recv(buf)
		if f != nil {
			f.Close()
		}
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.t.Errorf("%s: the connection goes on", what)
		}
		return
	}
}

func TestVersionSkewIsRefusedWithBothVersions(t *testing.T) {
	s := serve(t, nil)
	for _, v := range [][2]uint16{{2, 9}, {0, 0}, {math.MaxUint16, math.MaxUint16}, {3, 1}} {
		c := rawDial(t, s)
		c.send(proto.Header{Op: proto.OpHello, Request: 5}, &proto.Hello{Magic: proto.Magic, Min: v[0], Max: v[1]}, nil)
		h, body, _ := c.recv()
		var r proto.Refusal
		err := proto.ParseBody(body, &r)
		if h.Code != status.Version || h.Request != 5 || err != nil || r.Min != proto.VersionMin || r.Max != proto.VersionMax {
			t.Errorf("HELLO with %v: %+v, %+v, %v, want a refusal with the node's versions", v, h, r, err)
		}
		if !bytes.Contains([]byte(r.Text), []byte("node 1 to 1")) {
			t.Errorf("refusal %q, want it to name both sides' versions", r.Text)
		}
		c.gone("refused version")
	}
	c := rawDial(t, s)
	var w proto.Welcome
	if h, text := c.ask(proto.OpHello, 0, &proto.Hello{Magic: proto.Magic, Min: 0, Max: 7}, nil, &w); h.Code != status.OK || w.Version != 1 {
		t.Errorf("HELLO with versions 0 to 7: %v %s, version %d, want 1", h.Code, text, w.Version)
	}
}

func TestGarbageEndsTheSession(t *testing.T) {
	s := serve(t, nil)
	for name, p := range map[string][]byte{
		"short":          make([]byte, proto.HeaderLen-1),
		"zeros":          make([]byte, proto.HeaderLen),
		"noise":          bytes.Repeat([]byte{0xA5}, 300),
		"longest":        make([]byte, proto.MaxFrame),
		"too long":       make([]byte, proto.MaxFrame+1),
		"code":           proto.AppendFrame(nil, proto.Header{Op: proto.OpOpen, Code: 1, Request: 9}, nil),
		"no request":     proto.AppendFrame(nil, proto.Header{Op: proto.OpOpen}, nil),
		"cancel with id": proto.AppendFrame(nil, proto.Header{Op: proto.OpCancel, Request: 4}, &proto.Cancel{Request: 1}),
		"body missing":   proto.AppendFrame(nil, proto.Header{Op: proto.OpRegister, Request: 9}, nil),
		"body too long":  append(proto.AppendFrame(nil, proto.Header{Op: proto.OpOpen, Request: 9}, nil), 0),
		"reserved set":   append(proto.AppendFrame(nil, proto.Header{Op: proto.OpFenceMark, Request: 9}, nil), 1, 0, 0, 0, 0, 0, 0, 1),
		"descriptor due": proto.AppendFrame(nil, proto.Header{Op: proto.OpMemAdd, Request: 9}, &proto.MemAdd{Size: 4096}),
	} {
		c := attachRaw(t, s)
		if _, err := c.conn.Write(p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.gone(name)
		c = rawDial(t, s)
		c.conn.Write(p)
		c.gone(name + " instead of HELLO")
	}
	s.dial(t) // others are served as before
}

func TestUnknownOperationsAreAnswered(t *testing.T) {
	s := serve(t, nil)
	c := attachRaw(t, s)
	for _, o := range []proto.Op{0, proto.OpHello, 0x7FF0, 0x7FFF, proto.OpState} {
		if h, _ := c.ask(o, 0, nil, nil, nil); h.Code != status.NotSupp {
			t.Errorf("operation %#x: %v, want %v", o, h.Code, status.NotSupp)
		}
	}
	if h, _ := c.ask(proto.OpOpen, 0, nil, nil, &proto.EndpointBody{}); h.Code != status.OK {
		t.Errorf("OPEN after that: %v, want OK", h.Code)
	}
}

func TestWrongMemoryIsRefused(t *testing.T) {
	s := serve(t, nil)
	c := attachRaw(t, s)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	zero := must(os.OpenFile("/dev/zero", os.O_RDWR, 0))(t)
	defer zero.Close()
	dir := must(os.Open("/"))(t)
	defer dir.Close()
	good := must(shm.Create("test", 8192))(t)
	defer good.Release()
	ro := must(shm.ReadOnly(good.File()))(t)
	defer ro.Close()
	for name, a := range map[string]struct {
		f    *os.File
		size int64
		want status.Code
	}{
		"pipe":      {r, 4096, status.Fault},
		"/dev/zero": {zero, 4096, status.Fault},
		"directory": {dir, 4096, status.Fault},
		"larger":    {good.File(), 4096, status.Fault},
		"smaller":   {good.File(), 1 << 20, status.Fault},
		"read-only": {ro, 8192, status.Access},
		"size 0":    {good.File(), 0, status.Invalid},
		"negative":  {good.File(), -8192, status.Invalid},
		"overflow":  {good.File(), math.MaxInt64, status.Invalid},
		"quota":     {good.File(), 2 << 30, status.NoMemory},
	} {
		if h, text := c.ask(proto.OpMemAdd, 0, &proto.MemAdd{Size: a.size}, a.f, &proto.MemoryBody{}); h.Code != a.want {
			t.Errorf("%s: %v (%s), want %v", name, h.Code, text, a.want)
		}
	}
	var m proto.MemoryBody
	if h, text := c.ask(proto.OpMemAdd, 0, &proto.MemAdd{Size: 8192}, good.File(), &m); h.Code != status.OK {
		t.Fatalf("good memory: %v (%s)", h.Code, text)
	}
	var ep proto.EndpointBody
	c.ask(proto.OpOpen, 0, nil, nil, &ep)
	for _, q := range []proto.Register{
		{Memory: m.Memory + 1, Len: 4096},
		{Memory: m.Memory, Len: 12288},
		{Memory: m.Memory, Len: 8192, MemOff: 4096},
		{Memory: m.Memory, Len: math.MaxInt64, MemOff: 4096},
		{Memory: m.Memory, Len: -4096, MemOff: 4096},
		{Memory: m.Memory, Len: 4096, MemOff: -4096},
		{Memory: m.Memory, Len: 4096, MemOff: math.MinInt64},
	} {
		h, _ := c.ask(proto.OpRegister, ep.Endpoint, &q, nil, &proto.Offset{})
		if h.Code != status.Invalid && h.Code != status.Fault {
			t.Errorf("register %+v: %v, want an error about memory", q, h.Code)
		}
	}
	for _, n := range []int64{0, -1, proto.MaxStage + 1, math.MaxInt64, math.MinInt64} {
		if h, _ := c.ask(proto.OpVWriteTo, ep.Endpoint, &proto.VTransfer{Memory: m.Memory, Len: n}, nil, nil); h.Code != status.Invalid {
			t.Errorf("VWRITETO of %d bytes: %v, want %v", n, h.Code, status.Invalid)
		}
	}
	if h, _ := c.ask(proto.OpMemDrop, 0, &proto.MemoryBody{Memory: m.Memory}, nil, nil); h.Code != status.OK {
		t.Errorf("MEM_DROP: %v", h.Code)
	}
	if h, _ := c.ask(proto.OpMemDrop, 0, &proto.MemoryBody{Memory: m.Memory}, nil, nil); h.Code != status.Invalid {
		t.Errorf("second MEM_DROP: %v, want %v", h.Code, status.Invalid)
	}
}

func TestStrayDescriptorsEndTheSession(t *testing.T) {
	s := serve(t, nil)
	before := descriptors(t)
	for _, n := range []int{1, 2, 253} {
		c := attachRaw(t, s)
		oob := rights(t, n)
		if _, _, err := c.conn.WriteMsgUnix(proto.AppendFrame(nil, proto.Header{Op: proto.OpOpen, Request: 9}, nil), oob, nil); err != nil {
			t.Fatal(err)
		}
		c.gone("stray descriptors")
		c.conn.Close()
	}
	eventually(t, "descriptors as before", func() bool { return descriptors(t) <= before })
}

func TestRequestNumbers(t *testing.T) {
	s := serve(t, nil)
	c := attachRaw(t, s)
	far, port := listens(t, s.dial(t))
	var ep proto.EndpointBody
	c.ask(proto.OpOpen, 0, nil, nil, &ep)
	c.send(proto.Header{Op: proto.OpConnect, Endpoint: ep.Endpoint, Request: 4}, &proto.Address{Node: 3, Port: port}, nil)
	peer, _, err := far.Accept(t.Context())
	check(t, "Accept", err, status.OK)
	defer peer.Close()
	if h, _, f := c.answer(); h.Code != status.OK {
		t.Fatal(h.Code)
	} else {
		defer f.Close()
	}
	// As many as allowed wait, the next of their kind is refused, and none is lost.
	const first = 1000
	wait := &proto.MarkBody{Side: fence.InitSelf, Seq: 1}
	for i := range uint64(proto.MaxRequests) {
		c.send(proto.Header{Op: proto.OpFenceWait, Endpoint: ep.Endpoint, Request: first + i}, wait, nil)
	}
	c.send(proto.Header{Op: proto.OpFenceWait, Endpoint: ep.Endpoint, Request: 5}, wait, nil)
	if h, _, _ := c.answer(); h.Request != 5 || h.Code != status.NoBufs {
		t.Errorf("request over the bound: %+v, want %v", h, status.NoBufs)
	}
	c.send(proto.Header{Op: proto.OpSelf, Request: 5}, nil, nil)
	if h, _, _ := c.answer(); h.Request != 5 || h.Code != status.OK {
		t.Errorf("request of another kind: %+v", h)
	}
	c.send(proto.Header{Op: proto.OpCancel}, &proto.Cancel{Request: first + 7}, nil)
	c.send(proto.Header{Op: proto.OpCancel}, &proto.Cancel{Request: 99}, nil) // of nothing
	if h, _, _ := c.answer(); h.Request != first+7 || h.Code != status.Canceled {
		t.Errorf("answer to a cancelled request: %+v, want %v", h, status.Canceled)
	}
	c.send(proto.Header{Op: proto.OpFenceWait, Endpoint: ep.Endpoint, Request: first}, wait, nil)
	c.gone("a request number used twice")
}

// Requests of every kind are bounded for any sequence of an application.
func TestRequestsThatWaitAreBounded(t *testing.T) {
	s := serve(t, func(o *server.Options) { o.Session = server.Limits{Endpoints: 8} })
	c := attachRaw(t, s)
	var ep proto.EndpointBody
	c.ask(proto.OpOpen, 0, nil, nil, &ep)
	c.ask(proto.OpBind, ep.Endpoint, &proto.Address{}, nil, &proto.Address{})
	c.ask(proto.OpListen, ep.Endpoint, &proto.ListenBody{Backlog: 1}, nil, nil)
	const sent = 100
	for i := range uint64(sent) {
		c.send(proto.Header{Op: proto.OpAccept, Endpoint: ep.Endpoint, Request: 100 + i}, nil, nil)
	}
	for range sent - 7 { // an endpoint each may come of the others
		if h, _, _ := c.answer(); h.Code != status.NoBufs && h.Code != status.NoMemory {
			t.Fatalf("an ACCEPT over the bound is answered with %v", h.Code)
		}
	}
}

// A client that never reads costs a bounded amount, and harms no other client.
func TestClientThatNeverReads(t *testing.T) {
	s := serve(t, nil)
	c := attachRaw(t, s)
	c.conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
	sent := 0
	for ; sent < 1<<17; sent++ {
		if err := shm.Send(c.conn, proto.AppendFrame(nil, proto.Header{Op: proto.OpSelf, Request: uint64(sent + 1)}, nil), nil); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
	}
	if sent == 1<<17 {
		t.Error("the server takes requests without end from a client that takes no answers")
	}
	a, b := connect(t, s.dial(t), s.dial(t))
	if n, err := a.TrySend([]byte("x")); n != 1 || err != nil {
		t.Errorf("another session's TrySend = %d, %v", n, err)
	}
	buf := make([]byte, 1)
	if n, err := b.Recv(t.Context(), buf); n != 1 || err != nil {
		t.Errorf("another session's Recv = %d, %v", n, err)
	}
}

func TestClientThatNeverReadsItsEventsLosesItsSession(t *testing.T) {
	s := serve(t, nil)
	c := attachRaw(t, s)
	if h, _ := c.ask(proto.OpWatch, 0, &proto.WatchBody{On: 1}, nil, nil); h.Code != status.OK {
		t.Fatal(h.Code)
	}
	for range 1 << 15 {
		s.node.emit(attach.Event{Kind: attach.NodeAdded})
	}
	eventually(t, "the session ends", func() bool { n, _, w := s.node.held(); return n == 0 && w == 0 })
}

// Closing the data socket alone closes the connection, as a C program might.
func TestDataSocketClosedByHand(t *testing.T) {
	s := serve(t, nil)
	good := s.dial(t)
	l := must(good.Open())(t)
	port := must(l.Bind(0))(t)
	l.Listen(1)
	c := attachRaw(t, s)
	var ep proto.EndpointBody
	c.ask(proto.OpOpen, 0, nil, nil, &ep)
	dst := addr.Addr{Node: 3, Port: port}
	c.send(proto.Header{Op: proto.OpConnect, Endpoint: ep.Endpoint, Request: 50}, (*proto.Address)(&dst), nil)
	peer, _, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h, _, f := c.recv()
	if h.Code != status.OK || f == nil {
		t.Fatalf("CONNECT: %+v, descriptor %v", h, f)
	}
	io.WriteString(f, "last words")
	f.Close()
	got := make([]byte, 0, 20)
	buf := make([]byte, 4)
	for {
		n, err := peer.Recv(t.Context(), buf)
		got = append(got, buf[:n]...)
		if err != nil {
			check(t, "Recv at the end", err, status.Reset)
			break
		}
	}
	if string(got) != "last words" {
		t.Errorf("%q arrived, want all that was written", got)
	}
	if h, _ := c.ask(proto.OpClose, ep.Endpoint, nil, nil, nil); h.Code != status.OK {
		t.Errorf("CLOSE: %v", h.Code)
	}
	if h, _ := c.ask(proto.OpClose, ep.Endpoint, nil, nil, nil); h.Code != status.BadFD {
		t.Errorf("second CLOSE: %v, want %v", h.Code, status.BadFD)
	}
}

// The node's copies survive an owner that punches holes into its memory: they read as zero.
func TestHolesInWindowMemory(t *testing.T) {
	s := serve(t, nil)
	ca, cb := s.dial(t), s.dial(t)
	a, b := connect(t, ca, cb)
	mem := must(cb.Alloc(4096))(t)
	defer mem.Close()
	off := must(b.Register(mem.Bytes(), 0, rma.ProtRead|rma.ProtWrite, 0))(t)
	mem.Bytes()[5] = 1
	punch(t, mem.(*sessionMemory).region.File(), 4096)
	p := []byte{9}
	if err := a.VReadFrom(p, off+5, 0); err != nil || p[0] != 0 {
		t.Errorf("VReadFrom a hole = %v, %d, want a zero", err, p[0])
	}
}
