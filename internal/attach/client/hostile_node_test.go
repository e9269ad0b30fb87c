package client

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A hostileNode answers one application by hand: every request succeeds, and the test chooses its
// reports of windows.
type hostileNode struct {
	t      testing.TB
	path   string
	epochs func() (int64, *os.File)
	window func() (proto.Message, *os.File)

	// Of shared-memory paths; rings nil: the defaults.
	rings   *proto.RingsBody
	shmPath func() (proto.Message, *os.File)
	joined  chan proto.JoinedBody

	mu     sync.Mutex // guards writes
	writes int        // that came through the node
}

// start serves until the application is gone.
func (n *hostileNode) start() {
	n.t.Helper()
	n.path = filepath.Join(n.t.TempDir(), "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: n.path, Net: "unixpacket"})
	if err != nil {
		n.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if conn, err := ln.AcceptUnix(); err == nil {
			n.serve(conn)
		}
	})
	n.t.Cleanup(func() { ln.Close(); wg.Wait() })
}

func (n *hostileNode) serve(conn *net.UnixConn) {
	defer conn.Close()
	buf := make([]byte, proto.MaxFrame)
	for {
		size, f, err := shm.NewReceiver(conn).Recv(buf)
		if f != nil {
			f.Close()
		}
		if err != nil {
			return
		}
		h, body, err := proto.ParseFrame(buf[:size])
		if err != nil || h.Request == 0 {
			return
		}
		m, file := n.answer(h.Op, body)
		if h.Op == proto.OpRings && n.rings == nil {
			m = &proto.RingsBody{Release: uint8(ring.Default.Release)}
		}
		h.Op |= proto.OpReply
		shm.Send(conn, proto.AppendFrame(nil, h, m), file)
		if file != nil {
			file.Close()
		}
	}
}

func (n *hostileNode) answer(o proto.Op, body []byte) (proto.Message, *os.File) {
	switch o {
	case proto.OpHello:
		return &proto.Welcome{Version: 1, Requests: 8}, nil
	case proto.OpOpen:
		return &proto.EndpointBody{Endpoint: 1}, nil
	case proto.OpConnect:
		near, far, err := shm.Pair()
		if err != nil {
			n.t.Error(err)
			return nil, nil
		}
		n.t.Cleanup(func() { near.Close() })
		return &proto.Connected{Endpoint: 1}, far
	case proto.OpMemAdd:
		return &proto.MemoryBody{Memory: 1}, nil
	case proto.OpEpochs:
		size, f := n.epochs()
		return &proto.MemAdd{Size: size}, f
	case proto.OpRings:
		return n.rings, nil
	case proto.OpShmPath:
		return n.shmPath()
	case proto.OpDoorbell:
		near, far, err := shm.DoorbellPair()
		if err != nil {
			n.t.Error(err)
			return nil, nil
		}
		n.t.Cleanup(func() { near.Close() })
		return nil, far
	case proto.OpJoined:
		var m proto.JoinedBody
		if err := proto.ParseBody(body, &m); err != nil {
			n.t.Error(err)
		}
		n.joined <- m
	case proto.OpWindow:
		return n.window()
	case proto.OpVWriteTo:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.writes++
	}
	return nil, nil
}

// sealed returns good memory.
func sealed(t testing.TB, n int64) *os.File {
	t.Helper()
	r := must(shm.Create("test", n))(t)
	t.Cleanup(r.Release)
	return must(shm.Duplicate(r.File()))(t)
}

// plain returns a file that is no memory.
func plain(t testing.TB, n int64) *os.File {
	t.Helper()
	f := must(os.CreateTemp(t.TempDir(), "plain"))(t)
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	return f
}

// good returns a correct answer for offset 0.
func good() *proto.WindowBody {
	return &proto.WindowBody{Prot: readWrite, Slot: 2, Off: 0, Len: pageSize, MemOff: pageSize, Size: 4 * pageSize}
}

// TestHostileNodesAreNotBelieved: for any reported window, the client neither faults nor writes
// anywhere else, and the node gets the write.
func TestHostileNodesAreNotBelieved(t *testing.T) {
	memory := func() *os.File { return sealed(t, 4*pageSize) }
	none := func() *os.File { return nil }
	edit := func(f func(m *proto.WindowBody)) *proto.WindowBody { m := good(); f(m); return m }
	for name, c := range map[string]struct {
		window proto.Message
		memory func() *os.File
		direct bool
	}{
		"as it should be":                  {good(), memory, true},
		"no memory":                        {good(), none, false},
		"a file":                           {good(), func() *os.File { return plain(t, 4*pageSize) }, false},
		"less memory":                      {good(), func() *os.File { return sealed(t, 2*pageSize) }, false},
		"more memory":                      {good(), func() *os.File { return sealed(t, 8*pageSize) }, false},
		"another size":                     {edit(func(m *proto.WindowBody) { m.Size = 1 << 40 }), memory, false},
		"a negative size":                  {edit(func(m *proto.WindowBody) { m.Size = -4096 }), memory, false},
		"behind the memory":                {edit(func(m *proto.WindowBody) { m.MemOff = 4 * pageSize }), memory, false},
		"far behind the memory":            {edit(func(m *proto.WindowBody) { m.MemOff = math.MaxInt64 }), memory, false},
		"before the memory":                {edit(func(m *proto.WindowBody) { m.MemOff = -pageSize }), memory, false},
		"not a page of the memory":         {edit(func(m *proto.WindowBody) { m.MemOff = 8 }), memory, false},
		"longer than the memory":           {edit(func(m *proto.WindowBody) { m.Len = 8 * pageSize }), memory, false},
		"of no length":                     {edit(func(m *proto.WindowBody) { m.Len = 0 }), memory, false},
		"of a negative length":             {edit(func(m *proto.WindowBody) { m.Len = -1 }), memory, false},
		"not in pages":                     {edit(func(m *proto.WindowBody) { m.Len = 100 }), memory, false},
		"somewhere else":                   {edit(func(m *proto.WindowBody) { m.Off = pageSize }), memory, false},
		"at a negative offset":             {edit(func(m *proto.WindowBody) { m.Off = -pageSize }), memory, false},
		"with rights that are none":        {edit(func(m *proto.WindowBody) { m.Prot = 7 }), memory, false},
		"without rights":                   {edit(func(m *proto.WindowBody) { m.Prot = 0 }), memory, false},
		"for reading only":                 {edit(func(m *proto.WindowBody) { m.Prot = rma.ProtRead }), memory, false},
		"in the last slot":                 {edit(func(m *proto.WindowBody) { m.Slot = 511 }), memory, true},
		"in a slot behind the last":        {edit(func(m *proto.WindowBody) { m.Slot = 512 }), memory, false},
		"in a slot that cannot be":         {edit(func(m *proto.WindowBody) { m.Slot = math.MaxUint32 }), memory, false},
		"at an epoch that is over":         {edit(func(m *proto.WindowBody) { m.Epoch = 9 }), memory, false},
		"that is another body":             {&proto.Span{Off: 1, Len: 2}, memory, false},
		"whose memory cannot be writable":  {good(), func() *os.File { return must(shm.ReadOnly(sealed(t, 4*pageSize)))(t) }, false},
		"read-only, from a read-only file": {edit(func(m *proto.WindowBody) { m.Prot = rma.ProtRead }), func() *os.File { return must(shm.ReadOnly(sealed(t, 4*pageSize)))(t) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &hostileNode{t: t, window: func() (proto.Message, *os.File) { return c.window, c.memory() }}
			n.epochs = func() (int64, *os.File) { return pageSize, sealed(t, pageSize) }
			n.write(t, c.direct)
		})
	}
}

func TestEpochsOfHostileNodesAreNotBelieved(t *testing.T) {
	for name, epochs := range map[string]func() (int64, *os.File){
		"no memory":    func() (int64, *os.File) { return pageSize, nil },
		"a file":       func() (int64, *os.File) { return pageSize, plain(t, pageSize) },
		"another size": func() (int64, *os.File) { return 2 * pageSize, sealed(t, pageSize) },
		"no size":      func() (int64, *os.File) { return 0, sealed(t, pageSize) },
		"a huge size":  func() (int64, *os.File) { return math.MaxInt64, sealed(t, pageSize) },
	} {
		t.Run(name, func(t *testing.T) {
			n := &hostileNode{t: t, epochs: epochs, window: func() (proto.Message, *os.File) { return good(), sealed(t, 4*pageSize) }}
			n.write(t, false)
		})
	}
}

// write writes to offset 0 a few times and checks whether the node saw it.
func (n *hostileNode) write(t *testing.T, direct bool) {
	t.Helper()
	n.start()
	c := must(Dial(t.Context(), n.path))(t)
	defer c.Close()
	e := must(c.Open())(t)
	if _, err := e.Connect(t.Context(), addr.Addr{Port: 2050}); err != nil {
		t.Fatal(err)
	}
	const tries = 5
	for range tries {
		check(t, "VWriteTo", e.VWriteTo([]byte{1}, 0, 0), status.OK)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if want := map[bool]int{true: 0, false: tries}[direct]; n.writes != want {
		t.Errorf("the node has seen %d writes, want %d", n.writes, want)
	}
}

// FuzzWindowBody: a window that passes the checks lies in the memory and contains the offset.
func FuzzWindowBody(f *testing.F) {
	for _, m := range []*proto.WindowBody{good(), {Prot: 1, Off: math.MaxInt64 - pageSize, Len: pageSize, Size: pageSize}} {
		_, body, err := proto.ParseFrame(proto.AppendFrame(nil, proto.Header{}, m))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body, int64(0), int64(pageSize))
	}
	f.Fuzz(func(t *testing.T, body []byte, roff, page int64) {
		var m proto.WindowBody
		if page < 0 || proto.ParseBody(body, &m) != nil || m.Check(roff, page) != nil {
			return
		}
		if m.Off < 0 || m.Len <= 0 || m.Off+m.Len < 0 || roff < m.Off || roff >= m.Off+m.Len {
			t.Errorf("offset %d is not in window %d+%d", roff, m.Off, m.Len)
		}
		if m.MemOff < 0 || m.MemOff+m.Len < 0 || m.MemOff+m.Len > m.Size {
			t.Errorf("[%d, +%d) is not in memory of %d bytes", m.MemOff, m.Len, m.Size)
		}
		if int64(m.Slot)*8+8 > page || m.Prot == 0 || m.Prot > 3 {
			t.Errorf("slot %d of %d bytes, prot %d", m.Slot, page, m.Prot)
		}
	})
}
