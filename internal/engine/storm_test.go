package engine_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes one from the clock")

// seed returns the seed of a random test and prints it.
func seed(t *testing.T) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("to repeat: -run '^%s$' -seed %d", t.Name(), s)
	return s
}

// nothingLeft checks that no port, connection or window of the nodes is left.
func (f *fabric) nothingLeft() {
	f.t.Helper()
	for i, n := range f.nodes {
		if p := n.Ports(); len(p) != 0 {
			f.t.Errorf("node %d: ports are left: %+v", i, p[:min(len(p), 5)])
		}
		if c := n.Conns(); len(c) != 0 {
			f.t.Errorf("node %d: connections are left: %+v", i, c[:min(len(c), 5)])
		}
		if w := n.Windows(); len(w) != 0 {
			f.t.Errorf("node %d: windows are left: %+v", i, w[:min(len(w), 5)])
		}
		for _, l := range n.Links() {
			if l.Conns != 0 {
				f.t.Errorf("node %d: %d connections on the link to node %d", i, l.Conns, l.Node)
			}
		}
	}
}

// TestCloseStorm opens very many connections and closes them from either side
// or both, at once, in the middle of traffic, or twice.
func TestCloseStorm(t *testing.T) {
	const nodes, workers, conns = 4, 40, 10_000
	s := seed(t)
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, nodes)
		begun := time.Now()
		var servers, clients sync.WaitGroup
		var listeners []attach.NodeEndpoint
		var targets []addr.Addr
		for i := range nodes {
			l, at := fab.listener(i, workers)
			listeners, targets = append(listeners, l), append(targets, at)
			servers.Go(func() { stormServer(&servers, l, rand.New(rand.NewPCG(s, uint64(i)))) })
		}
		for w := range workers {
			clients.Go(func() {
				rng := rand.New(rand.NewPCG(s, uint64(1000+w)))
				for range conns / workers {
					a := fab.open(rng.IntN(nodes))
					if _, err := a.Connect(context.Background(), targets[rng.IntN(nodes)]); err != nil {
						t.Errorf("connect: %v", err)
					}
					stormEnd(a, rng)
				}
			})
		}
		clients.Wait()
		for _, l := range listeners {
			l.Close()
		}
		servers.Wait()
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("it took %v of virtual time: something waited for a time-out", d)
		}
		synctest.Wait()
		fab.nothingLeft()
	})
}

func stormServer(all *sync.WaitGroup, l attach.NodeEndpoint, rng *rand.Rand) {
	for {
		ep, _, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		all.Go(func() { stormEnd(ep, mine) })
	}
}

// stormEnd uses one end of a connection for a moment and closes it.
func stormEnd(ep attach.NodeEndpoint, rng *rand.Rand) {
	ctx := context.Background()
	var others sync.WaitGroup
	defer others.Wait()
	buf := make([]byte, 2000)
	switch rng.IntN(6) {
	case 0: // at once
	case 1:
		ep.Send(ctx, buf[:rng.IntN(2000)])
	case 2:
		ep.TrySend(buf[:rng.IntN(2000)])
	case 3: // a call of another goroutine is blocked
		others.Go(func() { ep.Recv(ctx, make([]byte, 10)) })
	case 4: // until the other end closes, if it does before long
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		for {
			if _, err := ep.Recv(short, buf); err != nil {
				break
			}
		}
	case 5:
		others.Go(func() { ep.Close() })
	}
	ep.Close()
}

// TestCloseDeliversWhatASilentReceiverHasNotRead covers a close during bulk
// towards an application that reads only later.
func TestCloseDeliversWhatASilentReceiverHasNotRead(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		a, b := fab.pair(0, j)
		want := make([]byte, 400_000)
		for i := range want {
			want[i] = byte(i * 13)
		}
		if n, err := a.TrySend(want); err != nil || n != len(want) {
			t.Fatalf("TrySend = %d, %v", n, err)
		}
		begun := time.Now()
		if err := a.Close(); err != nil || time.Since(begun) > time.Second {
			t.Errorf("close: %v after %v", err, time.Since(begun))
		}
		got := make([]byte, 0, len(want))
		buf := make([]byte, 7777)
		for {
			n, err := b.Recv(context.Background(), buf)
			got = append(got, buf[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != string(want) {
			t.Errorf("%d bytes arrived, want %d", len(got), len(want))
		}
		b.Close()
	})
}
