package engine_test

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestRandomCrossings has every node of a cluster connect to every other one at
// a random moment of the time that a dial takes: each pair crosses, no call
// fails, and one link stays of each pair, with both connections. CROSSINGS is
// how many pairs cross at least.
func TestRandomCrossings(t *testing.T) {
	const nodes = 16
	const pairs = nodes * (nodes - 1) / 2
	crossings := setting(t, "CROSSINGS", 8*pairs)
	s := seed(t)
	for round := range uint64((crossings + pairs - 1) / pairs) {
		bubble.Test(t, func(t *testing.T) { crossAll(t, rand.New(rand.NewPCG(s, round)), nodes) })
	}
}

// setting returns the number in an environment variable, or the usual one.
func setting(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number from 1 on", name, text)
	}
	return n
}

func crossAll(t *testing.T, rng *rand.Rand, nodes int) {
	fab := &fabric{t: t, seen: make(map[int][]engine.Evidence),
		hub: newTestNet(netConfig{Delay: 100 * time.Microsecond, Jitter: 300 * time.Microsecond})}
	t.Cleanup(fab.close)
	for i := range nodes {
		fab.add(i, 1)
	}
	var servers, clients sync.WaitGroup
	var listeners []attach.NodeEndpoint
	for i, node := range fab.nodes {
		for j, p := range fab.peers {
			if i != j {
				node.NodeUp(p)
			}
		}
		l, _ := fab.listener(i, nodes)
		listeners = append(listeners, l)
		servers.Go(func() {
			for {
				if _, _, err := l.Accept(context.Background()); err != nil {
					return
				}
			}
		})
	}
	begun := time.Now()
	for i := range nodes {
		for j, l := range listeners {
			if i == j {
				continue
			}
			wait := time.Duration(rng.Int64N(int64(time.Millisecond)))
			clients.Go(func() {
				time.Sleep(wait)
				if _, err := fab.open(i).Connect(context.Background(), l.LocalAddr()); err != nil {
					t.Errorf("node %d to node %d: %v", i, j, err)
				}
			})
		}
	}
	clients.Wait()
	if took := time.Since(begun); took > time.Second {
		t.Errorf("it took %v of virtual time: something was tried again and again", took)
	}
	time.Sleep(time.Second) // sessions that lost are ended
	for i, n := range fab.nodes {
		links := n.Links()
		if len(links) != nodes-1 {
			t.Errorf("node %d has %d links, want %d", i, len(links), nodes-1)
		}
		for _, l := range links {
			if l.Conns != 2 {
				t.Errorf("node %d has %d connections with node %d, want one of each side", i, l.Conns, l.Node)
			}
		}
	}
	for _, l := range listeners {
		l.Close()
	}
	servers.Wait()
}

// TestManyConnectionsLeaveNoMemory opens and closes ten thousand connections
// one after another: the nodes hold no more memory afterwards than before.
func TestManyConnectionsLeaveNoMemory(t *testing.T) {
	const warm = 1000
	count := 10_000
	if raceEnabled {
		count = 2000
	}
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		far, near := fab.nodes[1].NewSession(attach.Credentials{}), fab.nodes[0].NewSession(attach.Credentials{})
		l, err := far.Open()
		if err == nil {
			_, err = l.Bind(2000)
		}
		if err == nil {
			err = l.Listen(1)
		}
		if err != nil {
			t.Fatal(err)
		}
		live := func(n int) (memory uint64, goroutines int) {
			for range n {
				connectOnce(t, near, l)
			}
			time.Sleep(time.Minute) // whatever waits for a while has waited
			synctest.Wait()
			runtime.GC()
			runtime.GC() // memory of pools
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc, runtime.NumGoroutine()
		}
		before, few := live(warm)
		after, many := live(count)
		t.Logf("%d KiB and %d goroutines before, %d KiB and %d after", before>>10, few, after>>10, many)
		if after > before+before/10 {
			t.Errorf("%d connections leave %d KiB, before it were %d: want a tenth more at most", count, after>>10, before>>10)
		}
		if many != few {
			t.Errorf("%d goroutines are left, before it were %d", many, few)
		}
		l.Close()
		fab.nothingLeft()
	})
}

// connectOnce connects to a listener, sends a byte, and closes both ends.
func connectOnce(t *testing.T, near attach.NodeSession, l attach.NodeEndpoint) {
	accepted := make(chan attach.NodeEndpoint, 1)
	go func() {
		far, _, err := l.Accept(context.Background())
		if err != nil {
			t.Error(err)
		}
		accepted <- far
	}()
	ep, err := near.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Connect(context.Background(), l.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	if _, err := ep.Send(context.Background(), []byte{1}); err != nil {
		t.Error(err)
	}
	if _, err := far.Recv(context.Background(), make([]byte, 1)); err != nil {
		t.Error(err)
	}
	ep.Close()
	far.Close()
}
