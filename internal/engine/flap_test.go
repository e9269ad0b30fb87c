package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/transport"
)

// newFabricOver is newFabric over net, with the times of cfg.
func newFabricOver(t *testing.T, n int, net chaosNet, cfg engine.Config) *fabric {
	f := &fabric{t: t, seen: make(map[int][]engine.Evidence)}
	for i := range n {
		p, err := net.provider(i)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Providers, cfg.Log = []transport.Provider{p}, zerolog.New(zerolog.NewTestWriter(t))
		cfg.Report = func(_ addr.Incarnation, e engine.Evidence) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.seen[i] = append(f.seen[i], e)
		}
		node := engine.Start(cfg)
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		node.SetSelf(engine.Self{Self: attach.Self{Cluster: uuid(0xCC), Incarnation: incarnation}, UUID: uuid(byte(i + 1)), Epoch: 1, Term: 1})
		f.nodes = append(f.nodes, node)
		f.peers = append(f.peers, engine.Peer{Incarnation: incarnation, UUID: uuid(byte(i + 1)), Epoch: 1, Addresses: []string{p.Addr()}})
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

// TestAFlappingPathResetsNothing: two nodes that talk over a path that is cut
// five times in two seconds stay connected, in both profiles, and neither is
// reported as silent. The congestion windows of their session are full whenever
// a cut begins.
func TestAFlappingPathResetsNothing(t *testing.T) {
	fast := engine.Config{Heartbeat: 200 * time.Millisecond, SilenceBound: 1300 * time.Millisecond, GiveUp: 1800 * time.Millisecond}
	normal := engine.Config{Heartbeat: 800 * time.Millisecond, SilenceBound: 1800 * time.Millisecond, GiveUp: 2700 * time.Millisecond}
	seeds := uint64(4)
	if raceEnabled { // a run then takes ten seconds
		seeds = 1
	}
	for name, cfg := range map[string]engine.Config{"fast": fast, "normal": normal} {
		for k := range seeds {
			s := seed(t) + k
			t.Run(fmt.Sprintf("%s seed %d", name, s), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { flap(t, s, cfg) })
			})
		}
	}
}

func flap(t *testing.T, seed uint64, cfg engine.Config) {
	rng := rand.New(rand.NewPCG(seed, 1))
	net := packetNet{netsim.New(seed), newQuicker(t)}
	net.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond})
	fab := newFabricOver(t, 2, net, cfg)
	var apps sync.WaitGroup
	var over atomic.Bool // from here on connections may end
	for range 4 {
		a, b := fab.pair(0, 1)
		for _, way := range [][2]attach.NodeEndpoint{{a, b}, {b, a}} {
			pace := rand.New(rand.NewPCG(rng.Uint64(), 1))
			apps.Go(func() { talk(t, way[0], pace, &over) })
			apps.Go(func() { listenOn(t, way[1], &over) })
		}
	}
	time.Sleep(time.Second + time.Duration(rng.Int64N(int64(time.Second))))
	for range 13 {
		net.cut(0, 1)
		time.Sleep(200 * time.Millisecond)
		net.mend(0, 1)
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(2 * time.Second)
	over.Store(true)
	fab.close()
	apps.Wait()
	for i := range fab.nodes {
		if seen := fab.evidence(i); slices.Contains(seen, engine.LinkSilent) {
			t.Errorf("node %d reported %v", i, seen)
		}
	}
}

// mend undoes cut; the rules of all pairs hold again.
func (n packetNet) mend(i, j int) {
	open := netsim.Rules{Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond}
	n.SetRules(packetHost(i), packetHost(j), open)
	n.SetRules(packetHost(j), packetHost(i), open)
}

// talk sends more than the path takes while it is cut.
func talk(t *testing.T, ep attach.NodeEndpoint, pace *rand.Rand, over *atomic.Bool) {
	for !over.Load() {
		time.Sleep(time.Duration(pace.Int64N(int64(40 * time.Millisecond))))
		if _, err := ep.Send(context.Background(), make([]byte, 64+pace.IntN(60_000))); err != nil && !over.Load() {
			t.Errorf("send: %v", err)
			return
		}
	}
}

func listenOn(t *testing.T, ep attach.NodeEndpoint, over *atomic.Bool) {
	for p := make([]byte, 64<<10); ; {
		if _, err := ep.Recv(context.Background(), p); err != nil {
			if !over.Load() {
				t.Errorf("recv: %v", err)
			}
			return
		}
	}
}
