package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/rma"
)

// TestSlowPathsKeepTheirLinks: a path that carries less than applications send, of
// messages and RMA, stays a link for 20 s, over QUIC and over TCP, and neither node
// reports the other as silent.
func TestSlowPathsKeepTheirLinks(t *testing.T) {
	for _, kbit := range []int{800, 2000, 5000} {
		for name, make := range map[string]func(*testing.T, uint64) chaosNet{"quic": newPacketNet, "tcp": newStreamNet(false)} {
			t.Run(fmt.Sprintf("%s %d kbit a second", name, kbit), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { slowWay(t, make(t, seed(t)), kbit*1000/8) })
			})
		}
	}
}

func slowWay(t *testing.T, net chaosNet, rate int) {
	const span = 20 * time.Second
	network := networkOf(net)
	network.SetDefaultRules(netsim.Rules{Delay: 10 * time.Millisecond, Rate: rate})
	fab := newFabricOver(t, 2, net, engine.Config{Heartbeat: 200 * time.Millisecond, SilenceBound: 1300 * time.Millisecond, GiveUp: 1800 * time.Millisecond})
	var apps sync.WaitGroup
	var over atomic.Bool // from here on connections may end
	var received, written atomic.Int64
	a, b := fab.pair(0, 1)
	c, d := fab.pair(0, 1)
	at, err := register(d, alloc(t, 1<<20), 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	apps.Go(func() { shout(t, a, &over) })
	apps.Go(func() { count(t, b, &received, &over) })
	apps.Go(func() {
		for p := make([]byte, 128<<10); !over.Load(); written.Add(int64(len(p))) {
			if err := c.VWriteTo(p, at, rma.Sync); err != nil && !over.Load() {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	time.Sleep(span)
	over.Store(true)
	t.Logf("%d KiB of messages and %d KiB of RMA have arrived", received.Load()>>10, written.Load()>>10)
	if all := received.Load() + written.Load(); all < int64(rate)*int64(span/time.Second)/2 || received.Load() == 0 || written.Load() == 0 {
		t.Errorf("%d bytes have arrived, half of what the way carries is %d", all, int64(rate)*10)
	}
	fab.close()
	apps.Wait()
	for i := range fab.nodes {
		if seen := fab.evidence(i); slices.Contains(seen, engine.LinkSilent) {
			t.Errorf("node %d reported %v", i, seen)
		}
	}
}

// networkOf returns the network that net sends over.
func networkOf(net chaosNet) *netsim.Network {
	if s, ok := net.(streamNet); ok {
		return s.Network
	}
	return net.(packetNet).Network
}

// shout sends as much as it can.
func shout(t *testing.T, ep attach.NodeEndpoint, over *atomic.Bool) {
	for p := make([]byte, 64<<10); !over.Load(); {
		if _, err := ep.Send(context.Background(), p); err != nil && !over.Load() {
			t.Errorf("send: %v", err)
			return
		}
	}
}

// count receives, and counts the bytes.
func count(t *testing.T, ep attach.NodeEndpoint, n *atomic.Int64, over *atomic.Bool) {
	for p := make([]byte, 64<<10); ; {
		k, err := ep.Recv(context.Background(), p)
		if n.Add(int64(k)); err != nil {
			if !over.Load() {
				t.Errorf("recv: %v", err)
			}
			return
		}
	}
}
