package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/rma"
)

// A fabric is some nodes over the memory provider, with the test as membership.
type fabric struct {
	t     *testing.T
	base  engine.Config                               // of every node, but for its own fields
	wrap  func(transport.Provider) transport.Provider // around every node's provider; nil for none
	hub   *testNet
	nodes []*engine.Node
	peers []engine.Peer

	mu   sync.Mutex // guards seen
	seen map[int][]engine.Evidence
}

// evidence returns the evidence reported by node i.
func (f *fabric) evidence(i int) []engine.Evidence {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[i]
}

func uuid(b byte) addr.UUID { return addr.UUID{b} }

func newFabric(t *testing.T, n int) *fabric { return newFabricOf(t, n, engine.Config{}) }

// newFabricOf starts n nodes with the limits of base.
func newFabricOf(t *testing.T, n int, base engine.Config) *fabric {
	return newFabricOn(t, netConfig{}, n, base)
}

// newFabricOn starts n nodes on a network of its own.
func newFabricOn(t *testing.T, net netConfig, n int, base engine.Config) *fabric {
	return newFabricWrapped(t, net, n, base, nil)
}

// newFabricWrapped starts n nodes, each with a provider returned by wrap.
func newFabricWrapped(t *testing.T, net netConfig, n int, base engine.Config, wrap func(transport.Provider) transport.Provider) *fabric {
	f := &fabric{t: t, base: base, wrap: wrap, hub: newTestNet(net), seen: make(map[int][]engine.Evidence)}
	for i := range n {
		f.add(i, 1)
	}
	for i, node := range f.nodes {
		for j, p := range f.peers {
			if i != j {
				node.NodeUp(p)
			}
		}
	}
	t.Cleanup(f.close)
	return f
}

func (f *fabric) add(i int, gen addr.Generation) {
	id := transport.Identity{Cluster: uuid(0xCC), Node: uuid(byte(i + 1)), Host: i == 0}
	address := fmt.Sprintf("node%d.%d", i, gen)
	inner, err := f.hub.Provider(address, id)
	if err != nil {
		f.t.Fatal(err)
	}
	p := inner
	if f.wrap != nil {
		p = f.wrap(inner)
	}
	cfg := f.base
	cfg.Providers, cfg.Log = []transport.Provider{p}, zerolog.New(zerolog.NewTestWriter(f.t))
	cfg.Report = func(_ addr.Incarnation, e engine.Evidence) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.seen[i] = append(f.seen[i], e)
	}
	n := engine.Start(cfg)
	incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: gen}
	n.SetSelf(engine.Self{Self: attach.Self{Cluster: id.Cluster, Incarnation: incarnation}, UUID: id.Node, Epoch: uint64(gen), Term: 1})
	f.nodes = append(f.nodes, n)
	f.peers = append(f.peers, engine.Peer{Incarnation: incarnation, UUID: id.Node, Epoch: uint64(gen), Addresses: []string{address}})
}

func (f *fabric) close() {
	for _, n := range f.nodes {
		n.Close()
	}
}

func (f *fabric) open(i int) attach.NodeEndpoint {
	ep, err := f.nodes[i].NewSession(attach.Credentials{Admin: true}).Open()
	if err != nil {
		f.t.Fatal(err)
	}
	return ep
}

// pair returns the two ends of a connection from node i to node j.
func (f *fabric) pair(i, j int) (a, b attach.NodeEndpoint) {
	a, b, err := f.join(i, j)
	if err != nil {
		f.t.Fatal(err)
	}
	return a, b
}

func (f *fabric) join(i, j int) (a, b attach.NodeEndpoint, err error) {
	return f.joinFrom(f.nodes[i].NewSession(attach.Credentials{Admin: true}), j)
}

// joinFrom connects an endpoint of a session with one of node j.
func (f *fabric) joinFrom(s attach.NodeSession, j int) (a, b attach.NodeEndpoint, err error) {
	l, err := f.nodes[j].NewSession(attach.Credentials{Admin: true}).Open()
	if err != nil {
		return nil, nil, err
	}
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(1)
	}
	if err != nil {
		return nil, nil, err
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, _, err = l.Accept(context.Background())
		accepted <- err
	}()
	if a, err = s.Open(); err != nil {
		return nil, nil, err
	}
	if _, err = a.Connect(context.Background(), addr.Addr{Node: addr.NodeID(j), Port: port}); err != nil {
		return nil, nil, err
	}
	err = <-accepted
	return a, b, err
}

func each(t *testing.T, f func(t *testing.T, fab *fabric, j int)) {
	for name, j := range map[string]int{"loopback": 0, "across": 1} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { f(t, newFabric(t, 2), j) })
		})
	}
}

func TestMessagesArriveInOrderAndCloseDrains(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		a, b := fab.pair(0, j)
		want := bytes.Repeat([]byte("0123456789"), 300_000)
		go func() {
			if n, err := a.Send(context.Background(), want); n != len(want) || err != nil {
				t.Errorf("Send = %d, %v", n, err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}()
		var got []byte
		buf := make([]byte, 70_000)
		for {
			n, err := b.Recv(context.Background(), buf)
			got = append(got, buf[:n]...)
			if err != nil {
				if !errors.Is(err, attach.ErrPeerClosed) {
					t.Errorf("at the end: %v", err)
				}
				break
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("received %d bytes, want %d", len(got), len(want))
		}
		if _, err := b.Send(context.Background(), []byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Send after the peer's close: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestRMAAndFences(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		a, b := fab.pair(0, j)
		const n = 1 << 20
		am, bm := alloc(t, n), alloc(t, n)
		aoff, err := register(a, am, 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		boff, err := register(b, bm, 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		if aoff != boff || aoff != rma.FirstOffset {
			t.Errorf("offsets %#x and %#x", aoff, boff)
		}
		for i := range am {
			am[i] = byte(i * 7)
		}
		if err := a.WriteTo(aoff, n-8, boff, 0); err != nil {
			t.Fatal(err)
		}
		if err := a.FenceSignal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote,
			LocalOffset: aoff + n - 8, LocalValue: 11, RemoteOffset: boff + n - 8, RemoteValue: 22}); err != nil {
			t.Fatal(err)
		}
		m, err := a.FenceMark(fence.InitSelf)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.FenceWait(context.Background(), m); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !bytes.Equal(am[:n-8], bm[:n-8]) || bm[n-8] != 22 || am[n-8] != 11 {
			t.Errorf("memory differs after the fence: %v %v", am[n-8:], bm[n-8:])
		}
		got := make([]byte, 5000)
		if err := a.VReadFrom(got, boff+333, rma.Sync); err != nil || !bytes.Equal(got, bm[333:5333]) {
			t.Errorf("VReadFrom: %v", err)
		}
		old, err := b.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: aoff + n - 8, Operand: 5})
		if err != nil || old != 11 || am[n-8] != 16 {
			t.Errorf("Atomic = %d, %v", old, err)
		}
		pm, err := b.FenceMark(fence.InitPeer)
		if err != nil || pm.Seq == 0 {
			t.Errorf("peer mark %v, %v", pm, err)
		}
		if err := b.FenceWait(context.Background(), pm); err != nil {
			t.Error(err)
		}
		if err := b.Unregister(boff, n); err != nil {
			t.Error(err)
		}
		if err := a.WriteTo(aoff, 1, boff, 0); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("write after unregister: %v", err)
		}
		a.Close()
		if err := b.FenceWait(context.Background(), pm); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("FenceWait after close: %v", err)
		}
	})
}
