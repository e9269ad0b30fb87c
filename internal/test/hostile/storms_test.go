package hostile

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// TestConnectStormOfOneApplication has one application of the honest node
// connect with all its endpoints to a port without a listener. Every one is refused,
// and the link of all the others stays.
func TestConnectStormOfOneApplication(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	_, port := r.listen(1)
	app := r.honest.NewSession(attach.Credentials{UID: 1001})
	var failed atomic.Int32
	var work sync.WaitGroup
	underWay := make(chan struct{}, 1024) // more calls an application cannot have at a time
	for range 4000 {
		ep, err := app.Open()
		if err != nil {
			t.Fatal(err)
		}
		underWay <- struct{}{}
		work.Go(func() {
			defer func() { <-underWay }()
			if _, err := ep.Connect(within(t), addr.Addr{Node: victimID, Port: port + 1}); status.Of(err) != status.Refused {
				failed.Add(1)
			}
		})
	}
	work.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of 4000 connects ended with something else than a refusal", n)
	}
	r.talk(a, b)
}

// TestSilentSessionsOfOneMember opens session after session and says nothing.
// An honest node still establishes its link meanwhile.
func TestSilentSessionsOfOneMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hub := mem.NewHub(mem.Config{})
		nodes := map[addr.NodeID]*engine.Node{}
		var evil *mem.Provider
		for id := victimID; id <= evilID; id++ {
			p, err := hub.Provider(fmt.Sprint(id), transport.Identity{Cluster: clusterID, Node: nodeUUID(id)})
			if err != nil {
				t.Fatal(err)
			}
			if id == evilID {
				evil = p
				defer p.Close()
				break
			}
			n := engine.Start(engine.Config{Providers: []transport.Provider{p}, Log: zerolog.Nop()})
			defer n.Close()
			n.SetSelf(engine.Self{Self: attach.Self{Cluster: clusterID, Incarnation: addr.Incarnation{Node: id, Generation: 1}}, UUID: nodeUUID(id), Epoch: 1, Term: 1})
			nodes[id] = n
		}
		for at, n := range nodes {
			for id := victimID; id <= evilID; id++ {
				if id != at {
					n.NodeUp(engine.Peer{Incarnation: addr.Incarnation{Node: id, Generation: 1}, UUID: nodeUUID(id), Epoch: 1, Addresses: []string{fmt.Sprint(id)}})
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for range 300 {
			work.Go(func() {
				for ctx.Err() == nil {
					if s, err := evil.Dial(ctx, fmt.Sprint(victimID)); err == nil {
						select {
						case <-s.Done():
							time.Sleep(50 * time.Millisecond)
						case <-ctx.Done():
							s.Close(transport.CodeOK, "")
						}
					} else {
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
		time.Sleep(time.Second)
		if _, err := nodes[honestID].Ping(t.Context(), victimID); err != nil {
			t.Errorf("an honest node finds no way in: %v", err)
		}
		cancel()
		work.Wait()
	})
}
