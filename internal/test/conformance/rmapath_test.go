package conformance

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// A farPair is a connection of two attached applications on two nodes, both ends of which
// use their RMA paths.
type farPair struct {
	*sockets
	apps [2]*fabric.Node
	ends [2]*fabric.Endpoint
	mem  [2][]byte
	off  [2]int64
}

func newFarPair(t testing.TB, size int) *farPair {
	t.Helper()
	p := &farPair{sockets: attached(fabrictest.Paths())(t, 0).(*sockets)}
	for i := range p.apps {
		p.apps[i] = p.App(i, false)
	}
	p.connect(t, size)
	return p
}

func (p *farPair) connect(t testing.TB, size int) {
	t.Helper()
	ctx := context.Background()
	l, err := p.apps[1].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.ends[0], err = p.apps[0].Open(); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		p.ends[1], err = l.Accept(ctx)
		accepted <- err
	}()
	if _, err := p.ends[0].Connect(ctx, fabric.Addr{Node: 1, Port: port}); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	for i, ep := range p.ends {
		t.Cleanup(func() { ep.Close() })
		m, err := p.apps[i].Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		p.mem[i] = m.Bytes()
		if p.off[i], err = ep.Register(p.mem[i], 0, fabric.ProtRead|fabric.ProtWrite, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.goFar(p.ends[0], p.ends[1]); err != nil {
		t.Fatal(err)
	}
}

// TestRMAGoesToThePeersNode: each kind of operation, of all sizes, has the same effect
// through its path as through the node.
func TestRMAGoesToThePeersNode(t *testing.T) {
	p := newFarPair(t, 1<<20)
	a := p.ends[0]
	for _, n := range []int{1, 8, 63, 4096, 16 << 10, 64 << 10, 64<<10 + 8, 200_001, 1 << 20} {
		for _, flags := range []fabric.RMAFlags{fabric.Sync, fabric.Sync | fabric.Ordered} {
			want := bytes.Repeat([]byte{byte(n), 2, 3}, n/3+1)[:n]
			clear(p.mem[1])
			copy(p.mem[0], want)
			if err := a.WriteTo(p.off[0], int64(n), p.off[1], flags); err != nil || !bytes.Equal(p.mem[1][:n], want) {
				t.Fatalf("write of %d bytes: %v", n, err)
			}
			clear(p.mem[0])
			if err := a.ReadFrom(p.off[0], int64(n), p.off[1], flags); err != nil || !bytes.Equal(p.mem[0][:n], want) {
				t.Fatalf("read of %d bytes: %v", n, err)
			}
			got := make([]byte, n)
			if err := a.VReadFrom(got, p.off[1], flags); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("read of %d bytes to memory: %v", n, err)
			}
			clear(p.mem[1])
			if err := a.VWriteTo(want, p.off[1], flags); err != nil || !bytes.Equal(p.mem[1][:n], want) {
				t.Fatalf("write of %d bytes from memory: %v", n, err)
			}
		}
	}
}

// TestNoWriteFailsLate: writes that do not wait, while the peer opens and closes their
// window, either fail in their call or have happened: no fence covers one.
func TestNoWriteFailsLate(t *testing.T) {
	p := newFarPair(t, 4096)
	a, b := p.ends[0], p.ends[1]
	stop := make(chan struct{})
	var writer sync.WaitGroup
	var landed, refused atomic.Int64
	fence := func() error {
		m, err := a.FenceMark(fabric.InitSelf)
		if err == nil {
			err = a.FenceWait(context.Background(), m)
		}
		return err
	}
	writer.Go(func() {
		data := make([]byte, 3000)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			var err error
			if i%3 == 0 {
				err = a.VPutSignal(data, p.off[1], fabric.Notice{Offset: p.off[1] + 4088, Value: uint64(i)})
			} else {
				err = a.VWriteTo(data, p.off[1], 0)
			}
			switch {
			case err == nil:
				landed.Add(1)
			case errors.Is(err, syscall.ENXIO):
				refused.Add(1)
			default:
				t.Errorf("write %d: %v", i, err)
				return
			}
			if i%8 == 0 {
				if err := fence(); err != nil {
					t.Errorf("fence behind write %d: %v", i, err)
					return
				}
			}
		}
	})
	for i := range 200 {
		for was := landed.Load(); landed.Load() == was && i%2 == 0; {
			runtime.Gosched()
		}
		if err := b.Unregister(p.off[1], 4096); err != nil {
			t.Fatal(err)
		}
		clear(p.mem[1])
		for was := refused.Load(); refused.Load() == was && i%5 == 0; {
			runtime.Gosched()
		}
		if !bytes.Equal(p.mem[1], make([]byte, 4096)) {
			t.Fatal("a write has landed behind the end of its window")
		}
		if _, err := b.Register(p.mem[1], p.off[1], fabric.ProtRead|fabric.ProtWrite, fabric.MapFixed); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	writer.Wait()
	t.Logf("%d writes have landed, %d were refused", landed.Load(), refused.Load())
}

// BenchmarkRMAPath measures operations of an attached application on a node of the same
// machine, over TLS; alloc/op are of both applications and both nodes.
func BenchmarkRMAPath(b *testing.B) {
	p := newFarPair(b, 1<<20)
	a := p.ends[0]
	buf := make([]byte, 8)
	for _, bench := range []struct {
		name string
		n    int64
		do   func() error
	}{
		{"write 8, fence", 8, func() error {
			err := a.VWriteTo(buf, p.off[1], 0)
			m := fabric.Mark{}
			if err == nil {
				m, err = a.FenceMark(fabric.InitSelf)
			}
			if err == nil {
				err = a.FenceWait(context.Background(), m)
			}
			return err
		}},
		{"write 8, sync", 8, func() error { return a.VWriteTo(buf, p.off[1], fabric.Sync) }},
		{"read 8", 8, func() error { return a.ReadFrom(p.off[0], 8, p.off[1], fabric.Sync) }},
		{"fetch-add", 8, func() error { _, err := a.FetchAdd64(context.Background(), p.off[1], 1); return err }},
		{"write 1 MiB, sync", 1 << 20, func() error { return a.WriteTo(p.off[0], 1<<20, p.off[1], fabric.Sync) }},
		{"write 1 MiB", 1 << 20, func() error { return a.WriteTo(p.off[0], 1<<20, p.off[1], 0) }},
		{"read 1 MiB", 1 << 20, func() error { return a.ReadFrom(p.off[0], 1<<20, p.off[1], fabric.Sync) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(bench.n)
			b.ReportAllocs()
			for b.Loop() {
				if err := bench.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestRMAPathsAllocateNothing: an operation costs no memory except crypto/tls's for
// each record that it reads, at the node or here.
func TestRMAPathsAllocateNothing(t *testing.T) {
	p := newFarPair(t, 64<<10)
	a := p.ends[0]
	buf := make([]byte, 8)
	each := 3.0 // of crypto/tls
	if raceEnabled {
		each = 100
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, do := range map[string]func() error{
		"fetch-add with a context that can end": func() error { _, err := a.FetchAdd64(ctx, p.off[1], 1); return err },
		"write and fence": func() error {
			if err := a.WriteTo(p.off[0], 8, p.off[1], 0); err != nil {
				return err
			}
			m, err := a.FenceMark(fabric.InitSelf)
			if err != nil {
				return err
			}
			return a.FenceWait(ctx, m)
		},
		"write":     func() error { return a.WriteTo(p.off[0], 64, p.off[1], fabric.Sync) },
		"vwrite":    func() error { return a.VWriteTo(buf, p.off[1], fabric.Sync) },
		"read":      func() error { return a.ReadFrom(p.off[0], 64, p.off[1], fabric.Sync) },
		"fetch-add": func() error { _, err := a.FetchAdd64(context.Background(), p.off[1], 1); return err },
	} {
		n := testing.AllocsPerRun(200, func() {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		})
		if n > each {
			t.Errorf("%s: %v allocations, of which crypto/tls makes %v", name, n, each)
		}
	}
}

// postAndFence writes 8 bytes, and waits for them as long as ctx.
func postAndFence(ctx context.Context, a *fabric.Endpoint, p *farPair) error {
	if err := a.WriteTo(p.off[0], 8, p.off[1]+4096, 0); err != nil {
		return err
	}
	m, err := a.FenceMark(fabric.InitSelf)
	if err != nil {
		return err
	}
	return a.FenceWait(ctx, m)
}

// TestAnRMAPathIsAskedForAgain: a connection whose node could not ask for one gets it
// later, as long as it is used.
func TestAnRMAPathIsAskedForAgain(t *testing.T) {
	p := &farPair{sockets: attached(fabrictest.Paths())(t, 0).(*sockets)}
	for i := range p.apps {
		p.apps[i] = p.App(i, false)
	}
	p.noPath.Store(2) // one of each end
	p.connect(t, 4096)
	if left := p.noPath.Load(); left >= 0 {
		t.Errorf("%d requests were to fail", left+1)
	}
	if err := p.ends[0].WriteTo(p.off[0], 8, p.off[1], fabric.Sync); err != nil {
		t.Error(err)
	}
}

// TestCallsThatAreGivenUp: contexts end in the middle of calls of many goroutines, of which
// one waits for the answers of others. Each call that succeeds is done once and has its own
// answer, one that is given up is done once at most, and a close ends those that wait.
func TestCallsThatAreGivenUp(t *testing.T) {
	p := newFarPair(t, 64<<10)
	a := p.ends[0]
	const callers, calls = 8, 300
	var done, given atomic.Int64
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for n := range calls {
				ctx, cancel := context.WithCancel(context.Background())
				switch (i + n) % 3 {
				case 0:
					time.AfterFunc(time.Duration(n%40)*time.Microsecond, cancel)
				case 1:
					if err := a.WriteTo(p.off[0]+32<<10, 20<<10, p.off[1]+32<<10, 0); err != nil {
						t.Error(err)
					}
				case 2: // its fence may find the answer of the write unclaimed, or read by another call
					time.AfterFunc(time.Duration(n%40)*time.Microsecond, cancel)
					if err := postAndFence(ctx, a, p); err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				}
				old, err := a.FetchAdd64(ctx, p.off[1], 1)
				cancel()
				switch {
				case err == nil:
					done.Add(1)
					mu.Lock()
					if seen[old] {
						t.Errorf("%d is the answer to two calls", old)
					}
					seen[old] = true
					mu.Unlock()
				case errors.Is(err, context.Canceled):
					given.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	total, err := a.FetchAdd64(context.Background(), p.off[1], 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := uint64(done.Load()); total < n || total > callers*calls {
		t.Errorf("the word is %d after %d calls that were done and %d that were given up", total, n, given.Load())
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	for range callers {
		work.Go(func() {
			for {
				if _, err := a.FetchAdd64(ctx, p.off[1], 1); err != nil {
					return
				}
			}
		})
	}
	a.Close()
	go func() { work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("calls wait behind a close")
	}
}
