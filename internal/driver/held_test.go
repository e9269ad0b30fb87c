package driver_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/driver"
	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/rma"
)

// A holder is a provider whose lanes hold every payload that they may until the
// test lets them go, or the lane or the session ends.
type holder struct {
	transport.Provider
	mu    sync.Mutex // guards lanes
	lanes map[*holdingLane]bool
}

type holdingSession struct {
	transport.Session
	p *holder
}

type holdingLane struct {
	transport.SendLane
	p     *holder
	holds []transport.Hold // guarded by the holder's mu
}

func (p *holder) Dial(ctx context.Context, address string) (transport.Session, error) {
	s, err := p.Provider.Dial(ctx, address)
	return p.watch(s), err
}

func (p *holder) Accept(ctx context.Context) (transport.Session, error) {
	s, err := p.Provider.Accept(ctx)
	return p.watch(s), err
}

// watch lets everything go at the end of s.
func (p *holder) watch(s transport.Session) transport.Session {
	if s == nil {
		return nil
	}
	go func() {
		<-s.Done()
		p.letGo(func(*holdingLane) bool { return true })
	}()
	return &holdingSession{s, p}
}

func (s *holdingSession) OpenLane(ctx context.Context) (transport.SendLane, error) {
	l, err := s.Session.OpenLane(ctx)
	if err != nil {
		return nil, err
	}
	return &holdingLane{SendLane: l, p: s.p}, nil
}

func (l *holdingLane) WriteVec(parts []transport.Part, hold transport.Hold) (int, error) {
	if hold != nil {
		l.p.mu.Lock()
		hold.Retain()
		l.holds = append(l.holds, hold)
		l.p.lanes[l] = true
		l.p.mu.Unlock()
	}
	return l.SendLane.WriteVec(parts, nil)
}

func (l *holdingLane) Cancel() {
	l.SendLane.Cancel()
	go l.p.letGo(func(o *holdingLane) bool { return o == l })
}

// letGo releases what some lanes hold and returns how much that was.
func (p *holder) letGo(which func(*holdingLane) bool) (n int) {
	p.mu.Lock()
	var holds []transport.Hold
	for l := range p.lanes {
		if which(l) {
			holds = append(holds, l.holds...)
			delete(p.lanes, l)
			l.holds = nil
		}
	}
	p.mu.Unlock()
	for _, h := range holds {
		h.Release()
	}
	return len(holds)
}

func (p *holder) all() int { return p.letGo(func(*holdingLane) bool { return true }) }

// holding runs f in a bubble with a connection from a node whose lanes hold what
// is written, to one whose lanes do too.
func holding(t *testing.T, f func(t *testing.T, fab *fabric, pa, pb *holder, a, b ipc.Endpoint)) {
	bubble.Test(t, func(t *testing.T) {
		pa, pb := benchProviders["mem"](t)
		ha := &holder{Provider: pa, lanes: make(map[*holdingLane]bool)}
		hb := &holder{Provider: pb, lanes: make(map[*holdingLane]bool)}
		fab := &fabric{t: t}
		for i, p := range []transport.Provider{ha, hb} {
			n := driver.Start(driver.Config{Providers: []transport.Provider{p}, Log: zerolog.Nop()})
			life := addr.Life{Node: addr.NodeID(i), Generation: 1}
			n.SetSelf(driver.Self{Self: ipc.Self{Cluster: uuid(0xCC), Life: life}, UUID: uuid(byte(i + 1)), Epoch: 1, Term: 1})
			fab.nodes = append(fab.nodes, n)
			fab.peers = append(fab.peers, driver.Peer{Life: life, UUID: uuid(byte(i + 1)), Epoch: 1, Addresses: []string{p.Addr()}})
		}
		fab.nodes[0].NodeUp(fab.peers[1])
		fab.nodes[1].NodeUp(fab.peers[0])
		a, b := fab.pair(0, 1)
		f(t, fab, ha, hb, a, b)
		fab.close()
	})
}

const heldLen = 1 << 20

// windowOf registers n bytes of p and returns their offset.
func windowOf(t *testing.T, ep ipc.Endpoint, p []byte) int64 {
	t.Helper()
	off, err := ep.Register(p, 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	return off
}

// memoryOf returns whole pages.
func memoryOf(t *testing.T, fab *fabric, n int) []byte {
	t.Helper()
	m, err := fab.nodes[0].NewSession(ipc.Credentials{}).Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return m.Bytes()
}

// An operation has ended when the peer has said so and nobody needs its memory any
// more, in whichever order these come.
func TestAWriteEndsWhenItsMemoryIsFree(t *testing.T) {
	holding(t, func(t *testing.T, fab *fabric, pa, _ *holder, a, b ipc.Endpoint) {
		src, dst := memoryOf(t, fab, heldLen), memoryOf(t, fab, heldLen)
		loff, roff := windowOf(t, a, src), windowOf(t, b, dst)
		for round, begin := range map[string]func() error{
			"write":    func() error { return a.WriteTo(loff, heldLen, roff, 0) },
			"v-write":  func() error { return a.VWriteTo(src, roff, 0) },
			"put":      func() error { return a.PutSignal(loff, heldLen-8, rma.Put{Offset: roff, Word: roff + heldLen - 8}) },
			"unlinked": func() error { return errors.Join(a.WriteTo(loff, heldLen, roff, 0), a.Unregister(loff, heldLen)) },
		} {
			for i := range src {
				src[i] = byte(i * len(round))
			}
			if err := begin(); err != nil {
				t.Fatal(round, err)
			}
			m, err := a.FenceMark(fence.InitSelf)
			if err != nil {
				t.Fatal(err)
			}
			var over atomic.Bool
			done := make(chan error, 1)
			go func() {
				err := a.FenceWait(context.Background(), m)
				over.Store(true)
				done <- err
			}()
			time.Sleep(time.Second) // all that the two nodes have to say is said
			if over.Load() {
				t.Errorf("%s: it has ended while its memory is held", round)
			}
			if pa.all() == 0 {
				t.Errorf("%s: nothing was held", round)
			}
			if err := <-done; err != nil {
				t.Error(round, err)
			}
			if n := len(src) - 8; !bytes.Equal(src[:n], dst[:n]) {
				t.Errorf("%s: other bytes have come", round)
			}
			if round == "unlinked" {
				loff = windowOf(t, a, src)
			}
		}
	})
}

// A window from which a read was answered stays until nobody needs its memory any
// more: unregister returns no earlier.
func TestUnregisterWaitsForAnswersThatAreHeld(t *testing.T) {
	holding(t, func(t *testing.T, fab *fabric, _, pb *holder, a, b ipc.Endpoint) {
		src, dst := memoryOf(t, fab, heldLen), memoryOf(t, fab, heldLen)
		loff, roff := windowOf(t, a, dst), windowOf(t, b, src)
		src[5], src[heldLen-1] = 5, 7
		if err := a.ReadFrom(loff, heldLen, roff, rma.Sync); err != nil || !bytes.Equal(src, dst) {
			t.Fatalf("read: %v", err)
		}
		var over atomic.Bool
		done := make(chan error, 1)
		go func() {
			err := b.Unregister(roff, heldLen)
			over.Store(true)
			done <- err
		}()
		time.Sleep(time.Second)
		if over.Load() {
			t.Error("unregister has returned while the window's memory is held")
		}
		if pb.all() == 0 {
			t.Error("nothing was held")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Whatever cuts a connection off, what its lane holds comes back, and calls that
// wait for it end.
func TestTheEndFreesWhatIsHeld(t *testing.T) {
	for name, end := range map[string]func(fab *fabric, a, b ipc.Endpoint){
		"close here":  func(_ *fabric, a, _ ipc.Endpoint) { a.Close() },
		"close there": func(_ *fabric, a, b ipc.Endpoint) { b.Close(); a.Close() },
		"loss":        func(fab *fabric, _, _ ipc.Endpoint) { fab.nodes[0].NodeLost(fab.peers[1].Life, "test") },
	} {
		t.Run(name, func(t *testing.T) {
			holding(t, func(t *testing.T, fab *fabric, pa, _ *holder, a, b ipc.Endpoint) {
				src, dst := memoryOf(t, fab, heldLen), memoryOf(t, fab, heldLen)
				roff := windowOf(t, b, dst)
				done := make(chan error, 1)
				go func() { done <- a.VWriteTo(src, roff, rma.Sync) }()
				time.Sleep(time.Second)
				select {
				case err := <-done:
					t.Fatalf("the write has ended while its memory is held: %v", err)
				default:
				}
				end(fab, a, b)
				if err := <-done; err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("write: %v", err)
				}
				if n := pa.all(); n > 0 {
					t.Errorf("%d payloads are still held", n)
				}
			})
		})
	}
}
