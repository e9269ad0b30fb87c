package membership

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// TestRealSockets runs a host and two nodes on loopback, with everything as in
// a fabricd, and ends one of them as kill -9 would.
func TestRealSockets(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) }) // after the other cleanups
	dir := t.TempDir()
	w := &world{t: t}
	st, token, err := Init(filepath.Join(dir, "1"), state.InitOptions{Name: "n1"}, trust.TokenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	start := func(i int, st *state.State, seeds, gossipSeeds []string) *node {
		n := &node{w: w, i: i, st: st}
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		a, err := Start(t.Context(), Config{
			State:     st,
			Trust:     must(LoadTrust(st, time.Now)),
			Node:      NodeConfig{Name: fmt.Sprintf("n%d", i), Addresses: []string{l.Addr().String()}},
			Listener:  l,
			Seeds:     seeds,
			Gossip:    GossipConfig{Bind: "127.0.0.1:0", Seeds: gossipSeeds},
			Detection: gossip.Fast,
			OnEvent:   n.event,
			Log:       zerolog.New(n),
		})
		if err != nil {
			t.Fatal(err)
		}
		n.a = a
		w.all = append(w.all, n)
		t.Cleanup(func() {
			a.Close()
			st.Close()
		})
		return n
	}
	host := start(1, st, nil, nil)
	seeds, gossipSeeds := host.a.Self().Addresses(), []string{host.a.gossip.Address().String()}
	for i := 2; i <= 3; i++ {
		st := must(state.Prepare(filepath.Join(dir, fmt.Sprint(i)), fmt.Sprintf("n%d", i), state.Options{}))
		err := Join(t.Context(), JoinConfig{State: st, Token: token, Addresses: seeds, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		start(i, st, seeds, gossipSeeds)
	}
	w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })

	began := time.Now()
	victim := w.all[2]
	victim.a.Close()
	w.all = w.all[:2]
	took := w.within(10*time.Second, "the others know", func() bool {
		return len(removals(w.all[0].since(began))) == 1 && len(removals(w.all[1].since(began))) == 1
	})
	t.Logf("known everywhere after %v", took)

	left := w.all[1].incarnation()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.all[1].a.Leave(ctx); err != nil {
		t.Errorf("Leave: %v", err)
	}
	w.within(10*time.Second, "the host knows that the other left", func() bool {
		return slices.Contains(removals(host.since(began)), fmt.Sprintf("removed %v left", left))
	})
	host.a.Close()
	for _, n := range []*node{host, w.all[1], victim} {
		n.st.Close()
	}
}
