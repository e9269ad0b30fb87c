package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// A trap is a provider with one call that panics, its own or of its sessions.
type trap struct {
	transport.Provider
	at atomic.Pointer[string] // which one; nil: none
}

func (p *trap) Dial(ctx context.Context, address string) (transport.Session, error) {
	p.spring("dial")
	s, err := p.Provider.Dial(ctx, address)
	return &trapped{s, p}, err
}

func (p *trap) Accept(ctx context.Context) (transport.Session, error) {
	s, err := p.Provider.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &trapped{s, p}, nil
}

func (p *trap) spring(at string) {
	if trap := p.at.Load(); trap != nil && *trap == at {
		panic("trap at " + at)
	}
}

type trapped struct {
	transport.Session
	p *trap
}

func (s *trapped) OpenStream(ctx context.Context) (transport.SendStream, error) {
	s.p.spring("open a stream")
	return s.Session.OpenStream(ctx)
}

func (s *trapped) AcceptStream(ctx context.Context) (transport.RecvStream, error) {
	s.p.spring("accept a stream")
	return s.Session.AcceptStream(ctx)
}

func (s *trapped) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	b, err := s.Session.ReceiveDatagram(ctx)
	if err == nil {
		s.p.spring("datagram")
	}
	return b, err
}

// TestAPanicEndsTheLinkAndNothingElse: wherever serving one peer goes wrong, the links
// of the others, and the node, go on.
func TestAPanicEndsTheLinkAndNothingElse(t *testing.T) {
	guard.Catch(t)
	for _, at := range []string{"dial", "open a stream", "accept a stream", "datagram"} {
		for _, side := range []int{1, 2} { // the node with the trap: node 1 is dialed by node 2
			if at == "dial" && side == 1 {
				continue
			}
			t.Run(at, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { testTrap(t, at, side) })
			})
		}
	}
}

func testTrap(t *testing.T, at string, side int) {
	hub, log := mem.NewHub(mem.Config{}), &notary{}
	var nodes []*engine.Node
	var traps []*trap
	var peers []engine.Peer
	for i := range 3 {
		id := transport.Identity{Cluster: uuid(0xCC), Node: uuid(byte(i + 1)), Host: i == 0}
		inner, err := hub.Provider(string(rune('a'+i)), id)
		if err != nil {
			t.Fatal(err)
		}
		p := &trap{Provider: inner}
		n := engine.Start(engine.Config{Providers: []transport.Provider{p}, Log: zerolog.New(log)})
		defer n.Close()
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		n.SetSelf(engine.Self{Self: attach.Self{Cluster: id.Cluster, Incarnation: incarnation}, UUID: id.Node, Epoch: 1})
		nodes, traps = append(nodes, n), append(traps, p)
		peers = append(peers, engine.Peer{Incarnation: incarnation, UUID: id.Node, Epoch: 1, Addresses: []string{string(rune('a' + i))}})
	}
	for i, n := range nodes {
		for j, p := range peers {
			if i != j {
				n.NodeUp(p)
			}
		}
	}
	if _, err := nodes[side].Ping(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	before := guard.Caught()
	traps[side].at.Store(&at)
	_, err := nodes[2].Ping(t.Context(), 1)
	time.Sleep(5 * time.Second)
	synctest.Wait()
	if at != "datagram" && !errors.Is(err, status.NoDevice) {
		t.Errorf("ping over a trap: %v", err)
	}
	if guard.Caught() == before {
		t.Error("no panic was caught")
	}
	if !strings.Contains(log.String(), `"level":"error"`) || !strings.Contains(log.String(), "trap at "+at) || !strings.Contains(log.String(), "panic_test.go") {
		t.Errorf("logged %s, want the panic with its stack", log)
	}
	traps[side].at.Store(nil)
	for _, ends := range [][2]int{{2, 1}, {1, 2}, {side, 0}, {0, side}} {
		if _, err := nodes[ends[0]].Ping(t.Context(), addr.NodeID(ends[1])); err != nil {
			t.Errorf("afterwards %d pings %d: %v", ends[0], ends[1], err)
		}
	}
}
