package client

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

const (
	readWrite = rma.ProtRead | rma.ProtWrite
	pageSize  = rma.PageSize
)

// A directPair is two connected applications, each with a window of four pages.
type directPair struct {
	s          *service
	ca, cb     attach.Session
	a, b       attach.Endpoint
	memA, memB []byte
	offA, offB int64
}

func newDirectPair(t testing.TB, edit func(*server.Options)) *directPair {
	t.Helper()
	s := serve(t, edit)
	s.node.allowDirect()
	p := &directPair{s: s, ca: s.dial(t), cb: s.dial(t)}
	p.a, p.b = connect(t, p.ca, p.cb)
	p.memA, p.offA = p.window(t, p.ca, p.a, 4, readWrite)
	p.memB, p.offB = p.window(t, p.cb, p.b, 4, readWrite)
	return p
}

// window registers fresh memory.
func (p *directPair) window(t testing.TB, c attach.Session, e attach.Endpoint, pages int, prot rma.Prot) ([]byte, int64) {
	t.Helper()
	mem := must(c.Alloc(pages * pageSize))(t)
	return mem.Bytes(), must(e.Register(mem.Bytes(), 0, prot, 0))(t)
}

// warm makes a know b's window.
func (p *directPair) warm(t testing.TB) {
	t.Helper()
	check(t, "the first write", p.a.VWriteTo([]byte{0}, p.offB, 0), status.OK)
}

// asked returns how often the node was asked for anything about windows.
func (p *directPair) asked() int {
	p.s.node.mu.Lock()
	defer p.s.node.mu.Unlock()
	return p.s.node.direct.calls
}

// directOf returns the endpoint's direct.
// wordIn returns the word at off of mem, memory of e's session.
func wordIn(e attach.Endpoint, mem []byte, off int64) *atomic.Uint64 {
	m, at, _ := e.(*endpoint).c.memory.find(mem)
	defer m.region.Release()
	return m.region.Word(at + off)
}

func directOf(e attach.Endpoint) *direct { return &e.(*endpoint).direct }

// known returns how many windows e has mapped.
func known(e attach.Endpoint) int {
	d := directOf(e)
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.peer)
}

func TestDirectTransfersDoWithoutTheNode(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	before := p.asked()
	for i := range p.memA {
		p.memA[i] = byte(i * 7)
	}
	const at, n = 100, 3*pageSize + 11
	for _, flags := range []rma.Flags{0, rma.Sync, rma.Ordered, rma.UseCPU | rma.UseCache, rma.Sync | 0x100} {
		clear(p.memB)
		check(t, "WriteTo", p.a.WriteTo(p.offA+3, n, p.offB+at, flags), status.OK)
		if !bytes.Equal(p.memB[at:at+n], p.memA[3:3+n]) || p.memB[at-1] != 0 || p.memB[at+n] != 0 {
			t.Errorf("flags %#x: WriteTo has written something else", flags)
		}
		clear(p.memA)
		check(t, "ReadFrom", p.a.ReadFrom(p.offA+3, n, p.offB+at, flags), status.OK)
		if !bytes.Equal(p.memB[at:at+n], p.memA[3:3+n]) || p.memA[2] != 0 || p.memA[3+n] != 0 {
			t.Errorf("flags %#x: ReadFrom has read something else", flags)
		}
		out, in := []byte("a page, or any other bytes"), make([]byte, 26)
		check(t, "VWriteTo", p.a.VWriteTo(out, p.offB+1, flags), status.OK)
		check(t, "VReadFrom", p.a.VReadFrom(in, p.offB+1, flags), status.OK)
		if !bytes.Equal(p.memB[1:27], out) || !bytes.Equal(in, out) {
			t.Errorf("flags %#x: %q was written, window has %q, %q was read", flags, out, p.memB[1:27], in)
		}
		for i := range p.memA {
			p.memA[i] = byte(i*7 + int(flags))
		}
	}
	_, err := p.a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicSwap, Width: 8, Offset: p.offB + 4096, Operand: 5})
	check(t, "Atomic", err, status.OK)
	old, err := p.a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 4, Offset: p.offB + 4096, Operand: 2})
	if old != 5 || err != nil || p.memB[4096] != 7 {
		t.Errorf("an atomic found %d, %v and left %d, want 5 and 7", old, err, p.memB[4096])
	}
	if got := p.asked() - before; got != 0 {
		t.Errorf("the node was asked %d times, want never", got)
	}
}

func TestWhatIsNotPlainlyRightIsTheNodesToJudge(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	_, readOnly := p.window(t, p.cb, p.b, 1, rma.ProtRead)
	_, writeOnly := p.window(t, p.cb, p.b, 1, rma.ProtWrite)
	_, closed := p.window(t, p.cb, p.b, 1, 0)
	_, ownReadOnly := p.window(t, p.ca, p.a, 1, rma.ProtRead)
	_, ownWriteOnly := p.window(t, p.ca, p.a, 1, rma.ProtWrite)
	buf := make([]byte, 8)
	end := closed + pageSize
	swap := func(off int64, width uint8) error {
		_, err := p.a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: width, Offset: off})
		return err
	}
	for range 2 { // the second time, with the window known, gives the same
		for name, c := range map[string]struct {
			err  error
			want status.Code
		}{
			"write to a read-only window":    {p.a.VWriteTo(buf, readOnly, 0), status.Access},
			"read from a read-only window":   {p.a.VReadFrom(buf, readOnly, 0), status.OK},
			"read from a write-only window":  {p.a.VReadFrom(buf, writeOnly, 0), status.Access},
			"write to a write-only window":   {p.a.VWriteTo(buf, writeOnly, 0), status.OK},
			"write to a closed window":       {p.a.VWriteTo(buf, closed, 0), status.Access},
			"write from a write-only window": {p.a.WriteTo(ownWriteOnly, 8, p.offB, 0), status.Access},
			"read into a read-only window":   {p.a.ReadFrom(ownReadOnly, 8, p.offB, 0), status.Access},
			"write from nowhere":             {p.a.WriteTo(ownWriteOnly+pageSize, 8, p.offB, 0), status.NoAddress},
			"write over the end":             {p.a.VWriteTo(buf, end-4, 0), status.NoAddress},
			"write behind the end":           {p.a.VWriteTo(buf, end, 0), status.NoAddress},
			"write at a negative offset":     {p.a.VWriteTo(buf, -8, 0), status.NoAddress},
			"write of nothing":               {p.a.VWriteTo(nil, p.offB, 0), status.Invalid},
			"atomic on a read-only window":   {swap(readOnly, 8), status.Access},
			"atomic on a write-only window":  {swap(writeOnly, 4), status.Access},
		} {
			check(t, name, c.err, c.want)
		}
	}
}

func TestAWithdrawnWindowIsGoneForDirectUse(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	check(t, "Unregister", p.b.Unregister(p.offB, 4*pageSize), status.OK)
	check(t, "a write to what is gone", p.a.VWriteTo([]byte{9}, p.offB, 0), status.NoAddress)
	if p.memB[0] == 9 {
		t.Error("a write has reached memory that is no window")
	}
	fresh, off := p.window(t, p.cb, p.b, 1, readWrite)
	if off != p.offB {
		t.Fatalf("the second window is at %#x, want %#x", off, p.offB)
	}
	// Mappings that did not pay make the next uses go through the node.
	for i := range byte(10) {
		check(t, "a write to the new window", p.a.VWriteTo([]byte{i + 1}, p.offB, 0), status.OK)
		if fresh[0] != i+1 || p.memB[0] == i+1 {
			t.Fatalf("the new window has %d, the old one %d, want %d in the new one", fresh[0], p.memB[0], i+1)
		}
	}
	if known(p.a) != 1 {
		t.Errorf("%d windows are mapped, want the new one", known(p.a))
	}
}

// TestAnIdleEndpointGivesWithdrawnMemoryBack: memory that a peer has unregistered is unmapped
// without any call of the application.
func TestAnIdleEndpointGivesWithdrawnMemoryBack(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	check(t, "Unregister", p.b.Unregister(p.offB, 4*pageSize), status.OK)
	eventually(t, "the mapping is gone", func() bool { return known(p.a) == 0 })
	if n := p.a.(*endpoint).c.direct.mappings.Load(); n != 0 {
		t.Errorf("%d mappings are counted, want none", n)
	}
}

func TestTheEndOfAConnectionEndsDirectUse(t *testing.T) {
	for name, end := range map[string]func(p *directPair){
		"the peer closes":   func(p *directPair) { p.b.Close() },
		"the node is lost":  func(p *directPair) { p.s.node.lose() },
		"the peer detaches": func(p *directPair) { p.cb.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newDirectPair(t, nil)
			p.warm(t)
			end(p)
			eventually(t, "the connection has ended", func() bool { return p.a.Ready()&attach.PollHup != 0 })
			check(t, "VWriteTo", p.a.VWriteTo([]byte{1}, p.offB, 0), status.Reset)
			check(t, "ReadFrom", p.a.ReadFrom(p.offA, 8, p.offB, 0), status.Reset)
			_, err := p.a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: p.offB})
			check(t, "Atomic", err, status.Reset)
			eventually(t, "the mapping is gone", func() bool { return known(p.a) == 0 })
		})
	}
}

func TestOwnEndsOfDirectUse(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *directPair)
		want status.Code
	}{
		"the endpoint is closed": {func(p *directPair) { p.a.Close() }, status.BadFD},
		"the session is closed":  {func(p *directPair) { p.ca.Close() }, status.BadFD},
		"the node ends":          {func(p *directPair) { p.s.end(); <-p.ca.Done() }, status.NoDevice},
	} {
		t.Run(name, func(t *testing.T) {
			p := newDirectPair(t, nil)
			p.warm(t)
			c.end(p)
			check(t, "VWriteTo", p.a.VWriteTo([]byte{1}, p.offB, 0), c.want)
			if c.want == status.BadFD && known(p.a) != 0 {
				t.Error("a closed endpoint keeps mappings")
			}
		})
	}
}

func TestOwnWindowsOfDirectUse(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	mem := must(p.ca.Alloc(2 * pageSize))(t)
	off := must(p.a.Register(mem.Bytes()[pageSize:], 0, readWrite, 0))(t)
	mem.Bytes()[pageSize+5] = 42
	before := p.asked()
	check(t, "WriteTo", p.a.WriteTo(off+5, 1, p.offB, 0), status.OK)
	if p.asked() != before || p.memB[0] != 42 {
		t.Errorf("the node was asked %d times, %d was written, want 0 and 42", p.asked()-before, p.memB[0])
	}
	// A window keeps its memory.
	check(t, "Close of the memory", mem.Close(), status.OK)
	check(t, "WriteTo from closed memory", p.a.WriteTo(off+5, 1, p.offB+1, 0), status.OK)
	if p.memB[1] != 42 {
		t.Errorf("%d was written, want 42", p.memB[1])
	}
	check(t, "Unregister", p.a.Unregister(off, pageSize), status.OK)
	check(t, "WriteTo from what is gone", p.a.WriteTo(off+5, 1, p.offB, 0), status.NoAddress)
	// Nothing is gone after an error.
	p.s.node.lose()
	check(t, "Unregister without a connection", p.a.Unregister(p.offA, 4*pageSize), status.Reset)
	d := directOf(p.a)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.own.find(p.offA, pageSize, readWrite)) != 1 || len(d.own.removing) != 0 || len(d.own.adding) != 0 {
		t.Errorf("after an unregister that failed: %+v", d.own)
	}
}

// TestWritesEndWithAnUnregister: no write that begins after Unregister has returned changes the
// memory, for any concurrent calls of the writer.
func TestWritesEndWithAnUnregister(t *testing.T) {
	p := newDirectPair(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var begun atomic.Uint64
	var stop atomic.Bool
	tried := make(chan struct{}, 1) // the writer has ended a write
	await := func(ok func() bool) {
		for !ok() && ctx.Err() == nil {
			select {
			case <-tried:
			case <-ctx.Done():
			}
		}
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop.Store(true)
	writer.Go(func() {
		for !stop.Load() && ctx.Err() == nil {
			v := begun.Add(1)
			_, err := p.a.Atomic(ctx, rma.Atomic{Op: rma.AtomicSwap, Width: 8, Offset: p.offB + 8, Operand: v})
			if code := status.Of(err); code != status.OK && code != status.NoAddress {
				t.Errorf("write %d: %v", v, err)
				return
			}
			select {
			case tried <- struct{}{}:
			default:
			}
		}
	})
	mem := p.memB
	for range 50 {
		word := func() uint64 { return wordIn(p.b, mem, 8).Load() }
		was := word()
		await(func() bool { return word() != was })
		check(t, "Unregister", p.b.Unregister(p.offB, int64(len(mem))), status.OK)
		last := begun.Load()
		await(func() bool { return begun.Load() >= last+3 })
		if got := word(); got > last {
			t.Fatalf("write %d has landed, which began after %d, when the window was gone", got, last)
		}
		next := must(p.cb.Alloc(pageSize))(t)
		must(p.b.Register(next.Bytes(), p.offB, readWrite, rma.MapFixed))(t)
		mem = next.Bytes()
	}
}

// TestDirectUseWaitsForWhatTheNodeDoes: a direct operation does not overtake one that is in
// progress in the node.
func TestDirectUseWaitsForWhatTheNodeDoes(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	directOf(p.a).note()
	before := p.asked()
	check(t, "the next write", p.a.VWriteTo([]byte{1}, p.offB, 0), status.OK)
	if got := p.asked() - before; got != 2 {
		t.Errorf("the node was asked %d times, want for a mark and a wait", got)
	}
	before = p.asked()
	check(t, "the write after it", p.a.VWriteTo([]byte{1}, p.offB, 0), status.OK)
	if got := p.asked() - before; got != 0 {
		t.Errorf("the node was asked %d times, want never", got)
	}
}

func TestDirectUseIsSwitchedOff(t *testing.T) {
	p := newDirectPair(t, func(o *server.Options) { o.NoDirect = true })
	p.warm(t)
	before := p.asked()
	check(t, "a write", p.a.VWriteTo([]byte{1}, p.offB, 0), status.OK)
	if p.asked() != before+1 || known(p.a) != 0 {
		t.Errorf("the node was asked %d times and %d windows are mapped, want the write and no window", p.asked()-before, known(p.a))
	}
	d := directOf(p.a)
	d.mu.Lock()
	defer d.mu.Unlock()
	check(t, "the reason", d.without, status.NotSupp)
}

// TestMoreWindowsThanMappings: windows that are used in turn do not push each
// other out, and every write arrives.
func TestMoreWindowsThanMappings(t *testing.T) {
	p := newDirectPair(t, nil)
	const n = maxPeerWindows + 20
	var mem [][]byte
	var offs []int64
	for range n {
		b, off := p.window(t, p.cb, p.b, 1, readWrite)
		mem, offs = append(mem, b), append(offs, off)
	}
	for round := range byte(3) {
		for i, off := range offs {
			check(t, "a write", p.a.VWriteTo([]byte{round + 1}, off+3, 0), status.OK)
			if mem[i][3] != round+1 {
				t.Fatalf("round %d: window %d has %d", round, i, mem[i][3])
			}
		}
	}
	if got := known(p.a); got != maxPeerWindows {
		t.Errorf("%d windows are mapped, want %d", got, maxPeerWindows)
	}
	for range restAfter { // the first one only; the others rest
		check(t, "a write", p.a.VWriteTo([]byte{1}, offs[0], 0), status.OK)
	}
	before := p.asked()
	check(t, "a write", p.a.VWriteTo([]byte{1}, offs[n-1], 0), status.OK)
	check(t, "a write", p.a.VWriteTo([]byte{2}, offs[n-1], 0), status.OK)
	if got := p.asked() - before; got != 1 || known(p.a) != maxPeerWindows {
		t.Errorf("the node was asked %d times and %d windows are mapped, want one for a window that makes room", got, known(p.a))
	}
}

func TestEpochsCannotBeWrittenByTheApplication(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	var out proto.MemAdd
	f := must(p.a.(*endpoint).c.ask(t.Context(), request{op: proto.OpEpochs}, &out))(t)
	defer f.Close()
	if _, err := shm.Map(f, 0, out.Size, true); err == nil {
		t.Error("the epochs can be mapped for writing")
	}
}

// TestDirectAtomicsAreAtomicWithTheNodes: direct ones, those of the node and
// those of the window's owner count to the same sum.
func TestDirectAtomicsAreAtomicWithTheNodes(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	other, peer := connect(t, p.ca, p.cb)
	d := directOf(other)
	d.mu.Lock()
	d.without = status.NotSupp // goes through the node
	d.mu.Unlock()
	must(peer.Register(p.memB, p.offB, readWrite, rma.MapFixed))(t)
	const rounds = 500
	var wg sync.WaitGroup
	for _, e := range []attach.Endpoint{p.a, other} {
		wg.Go(func() {
			for range rounds {
				if _, err := e.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: p.offB + 64, Operand: 1}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	word := wordIn(p.b, p.memB, 64)
	wg.Go(func() {
		for n := 0; n < rounds; {
			old := word.Load()
			if word.CompareAndSwap(old, old+1) {
				n++
			}
		}
	})
	wg.Wait()
	if got := word.Load(); got != 3*rounds {
		t.Errorf("the word is %d, want %d", got, 3*rounds)
	}
}

// BenchmarkDirect measures transfers between two applications, compared with a plain copy as
// baseline, and their cost through the node.
func BenchmarkDirect(b *testing.B) {
	p := newDirectPair(b, nil)
	q := newDirectPair(b, func(o *server.Options) { o.NoDirect = true })
	for _, n := range []int{8, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		size := max(n/pageSize, 1)
		memA, offA := p.window(b, p.ca, p.a, size, readWrite)
		memB, offB := p.window(b, p.cb, p.b, size, readWrite)
		_, nodeA := q.window(b, q.ca, q.a, size, readWrite)
		_, nodeB := q.window(b, q.cb, q.b, size, readWrite)
		for i := range memA {
			memA[i] = byte(i)
		}
		memA, memB = memA[:n], memB[:n]
		for _, c := range []struct {
			name string
			call func() error
		}{
			{"memcpy", func() error { copy(memB, memA); return nil }},
			{"write", func() error { return p.a.WriteTo(offA, int64(n), offB, rma.Sync) }},
			{"read", func() error { return p.a.ReadFrom(offA, int64(n), offB, rma.Sync) }},
			{"vwrite", func() error { return p.a.VWriteTo(memA, offB, rma.Sync) }},
			{"node", func() error { return q.a.WriteTo(nodeA, int64(n), nodeB, rma.Sync) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if err := c.call(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// TestAnEndWithoutWindowsCostsNoEpochs: a peer on another node never has a window,
// and the node keeps nothing for having been asked.
func TestAnEndWithoutWindowsCostsNoEpochs(t *testing.T) {
	s := serve(t, nil) // a node without direct access to windows
	p := &directPair{s: s, ca: s.dial(t), cb: s.dial(t)}
	p.a, p.b = connect(t, p.ca, p.cb)
	_, p.offB = p.window(t, p.cb, p.b, 1, readWrite)
	p.warm(t)
	d := directOf(p.a)
	d.mu.Lock()
	check(t, "the reason", d.without, status.NotSupp)
	d.mu.Unlock()
	p.ca.(*session).direct.mu.Lock()
	defer p.ca.(*session).direct.mu.Unlock()
	if p.ca.(*session).direct.page != nil {
		t.Error("the epochs are mapped")
	}
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	if len(s.node.direct.invalidation) != 0 {
		t.Error("the node notifies of invalidations")
	}
}
