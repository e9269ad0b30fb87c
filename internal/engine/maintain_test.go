package engine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// A renamed provider is one in memory under another name.
type renamed struct {
	transport.Provider
	name string
}

func (p renamed) Name() string { return p.name }

// A forked is two nodes that reach each other over two networks: the one that they
// prefer is called quic, the other one tcp.
type forked struct {
	*fabric
	quic, tcp *testNet
	logs      [2]*lines
}

// lines are the log of a node.
type lines struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.all.Bytes(), []byte(text))
}

func fork(t *testing.T, f func(t *testing.T, fab *forked)) {
	bubble.Test(t, func(t *testing.T) {
		net := netConfig{Delay: time.Millisecond}
		fab := &forked{&fabric{t: t, seen: make(map[int][]engine.Evidence)}, newTestNet(net), newTestNet(net), [2]*lines{{}, {}}}
		for i := range 2 {
			id, incarnation := transport.Identity{Cluster: uuid(0xCC), Node: uuid(byte(i + 1)), Host: i == 0}, addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
			cfg := engine.Config{Log: zerolog.New(zerolog.MultiLevelWriter(fab.logs[i], zerolog.NewTestWriter(t))), Report: func(_ addr.Incarnation, e engine.Evidence) {
				fab.mu.Lock()
				defer fab.mu.Unlock()
				fab.seen[i] = append(fab.seen[i], e)
			}}
			for _, way := range []struct {
				name string
				hub  *testNet
			}{{"quic", fab.quic}, {"tcp", fab.tcp}} {
				p, err := way.hub.Provider(fmt.Sprintf("node%d", i), id)
				if err != nil {
					t.Fatal(err)
				}
				cfg.Providers = append(cfg.Providers, renamed{p, way.name})
			}
			node := engine.Start(cfg)
			node.SetSelf(engine.Self{Self: attach.Self{Cluster: id.Cluster, Incarnation: incarnation}, UUID: id.Node, Epoch: 1, Term: 1})
			fab.nodes = append(fab.nodes, node)
			fab.peers = append(fab.peers, engine.Peer{Incarnation: incarnation, UUID: id.Node, Epoch: 1, Addresses: []string{fmt.Sprintf("node%d", i)}})
		}
		fab.nodes[0].NodeUp(fab.peers[1])
		fab.nodes[1].NodeUp(fab.peers[0])
		defer fab.close()
		f(t, fab)
	})
}

// back returns the fork with a connection over tcp, to which the link fell back, and
// one over quic, to which it went back.
func (f *forked) back() (old, young [2]attach.NodeEndpoint) {
	f.t.Helper()
	f.quic.Cut("node0", "node1")
	old[0], old[1] = f.pair(0, 1)
	f.carry("tcp")
	f.quic.HealAll()
	time.Sleep(30 * time.Second)
	young[0], young[1] = f.pair(0, 1)
	f.carry("tcp", "quic")
	return old, young
}

// carry fails unless these providers carry the connections of both nodes, in the order
// of their ports.
func (f *forked) carry(want ...string) {
	f.t.Helper()
	for i, n := range f.nodes {
		var got []string
		for _, c := range n.Conns() {
			got = append(got, c.Provider)
		}
		if !slices.Equal(got, want) {
			f.t.Errorf("node %d: connections over %v, want %v", i, got, want)
		}
	}
}

// links fails unless these providers carry the links of both nodes.
func (f *forked) links(want ...string) {
	f.t.Helper()
	for i, n := range f.nodes {
		got := []string{}
		for _, l := range n.Links() {
			got = append(got, l.Provider)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			f.t.Errorf("node %d: links over %v, want %v", i, got, want)
		}
	}
}

// calm fails if a node has reported anything but signs of life.
func (f *forked) calm() {
	f.t.Helper()
	synctest.Wait()
	for i := range f.nodes {
		for _, e := range f.evidence(i) {
			if e != engine.LinkAlive {
				f.t.Errorf("node %d reported %v", i, f.evidence(i))
				return
			}
		}
	}
}

// TestALinkThatFellBackGoesBack: once the preferred provider works again new
// connections take it. The one that has begun stays where it is, its messages in
// order, and the link under it ends on both sides when the connection has.
func TestALinkThatFellBackGoesBack(t *testing.T) {
	fork(t, func(t *testing.T, fab *forked) {
		fab.quic.Cut("node0", "node1")
		a, b := fab.pair(0, 1)
		fab.links("tcp")
		var over atomic.Bool
		var sent, got uint64
		var apps sync.WaitGroup
		apps.Go(func() {
			for ; !over.Load(); time.Sleep(10 * time.Millisecond) {
				if _, err := a.Send(t.Context(), binary.BigEndian.AppendUint64(nil, sent)); err != nil {
					t.Errorf("send: %v", err)
					return
				}
				sent++
			}
			a.Close()
		})
		apps.Go(func() {
			for p := make([]byte, 8); ; got++ {
				if _, err := io.ReadFull(received{b}, p); err != nil {
					if !errors.Is(err, attach.ErrPeerClosed) {
						t.Errorf("recv: %v", err)
					}
					return
				}
				if number := binary.BigEndian.Uint64(p); number != got {
					t.Errorf("message %d came as number %d", number, got)
					return
				}
			}
		})
		time.Sleep(45 * time.Second) // it is tried in vain
		fab.links("tcp")
		fab.quic.HealAll()
		time.Sleep(30 * time.Second)
		fab.links("quic", "tcp")
		c, d := fab.pair(0, 1)
		passes(t, c, d)
		e, f := fab.pair(1, 0)
		passes(t, e, f)
		for i, n := range fab.nodes {
			count := make(map[string]int)
			for _, c := range n.Conns() {
				count[c.Provider]++
			}
			if count["tcp"] != 1 || count["quic"] != 2 {
				t.Errorf("node %d: connections over %v", i, count)
			}
		}
		over.Store(true)
		apps.Wait()
		b.Close()
		if sent == 0 || sent != got {
			t.Errorf("%d messages sent, %d received", sent, got)
		}
		time.Sleep(30 * time.Second)
		fab.links("quic")
		passes(t, c, d)
		passes(t, e, f)
		fab.calm()
	})
}

// TestALinkAsideTakesOver: the silence of one of two links is not the node's, and new
// connections take the other one. When that is silent too, the node is.
func TestALinkAsideTakesOver(t *testing.T) {
	fork(t, func(t *testing.T, fab *forked) {
		old, young := fab.back()
		fab.quic.Cut("node0", "node1")
		time.Sleep(1700 * time.Millisecond) // silent, and not given up
		if _, err := fab.nodes[0].Ping(t.Context(), 1); err != nil {
			t.Errorf("ping: %v", err)
		}
		a, b := fab.pair(1, 0)
		passes(t, a, b)
		time.Sleep(time.Second)
		if _, err := young[0].Recv(t.Context(), make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection of the silent link: %v", err)
		}
		fab.links("tcp")
		passes(t, old[0], old[1])
		passes(t, a, b)
		fab.calm()
		for i, l := range fab.logs {
			if !l.has(`"provider":"quic","cause":"link silent 2.4 s","age":"`) {
				t.Errorf("node %d does not say why its link has ended", i)
			}
		}
		fab.quic.HealAll()
		time.Sleep(30 * time.Second)
		fab.links("quic", "tcp")
		fab.calm()
		fab.quic.Cut("node0", "node1")
		fab.tcp.Cut("node0", "node1")
		time.Sleep(2 * time.Second)
		for i := range fab.nodes {
			if got := fab.evidence(i); !slices.Contains(got, engine.LinkSilent) {
				t.Errorf("both links are silent, node %d reported %v", i, got)
			}
		}
	})
}

// TestTheSilentLinkThatIsLeft: the silence that was not reported is, when the other
// link ends.
func TestTheSilentLinkThatIsLeft(t *testing.T) {
	fork(t, func(t *testing.T, fab *forked) {
		fab.back()
		fab.tcp.Cut("node0", "node1")
		time.Sleep(1700 * time.Millisecond)
		fab.calm()
		fab.quic.Kill("node1", true)
		fab.quic.Cut("node0", "node1")
		time.Sleep(1700 * time.Millisecond)
		if got := fab.evidence(0); !slices.Contains(got, engine.LinkSilent) {
			t.Errorf("reported %v", got)
		}
	})
}

// TestUnusedLinksEnd: a link that has carried no connection for five minutes ends on
// both sides, which is no evidence, and comes back when it is needed. One with a
// connection stays, however quiet that is.
func TestUnusedLinksEnd(t *testing.T) {
	fork(t, func(t *testing.T, fab *forked) {
		a, b := fab.pair(0, 1)
		time.Sleep(20 * time.Minute)
		fab.links("quic")
		passes(t, a, b)
		a.Close()
		b.Close()
		time.Sleep(4 * time.Minute)
		if _, err := fab.nodes[1].Ping(t.Context(), 0); err != nil {
			t.Error(err)
		}
		fab.links("quic")
		time.Sleep(6 * time.Minute)
		fab.links()
		fab.calm()
		for i, l := range fab.logs {
			if !l.has("link unused") {
				t.Errorf("node %d does not say why its link has ended", i)
			}
		}
		a, b = fab.pair(1, 0)
		passes(t, a, b)
		fab.calm()
	})
}

// TestALinkReplacesBoth: a peer that dials without saying beside has lost both links.
func TestALinkReplacesBoth(t *testing.T) {
	fork(t, func(t *testing.T, fab *forked) {
		self := addr.Incarnation{Node: 9, Generation: 1}
		fab.nodes[0].NodeUp(engine.Peer{Incarnation: self, UUID: uuid(9), Epoch: 1, Addresses: []string{"hand"}})
		dial := func(hub *testNet, beside bool) transport.Session {
			p, err := hub.Provider(fmt.Sprintf("hand%p%v", hub, beside), transport.Identity{Cluster: uuid(0xCC), Node: uuid(9)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			s, err := p.Dial(t.Context(), "node0")
			if err != nil {
				t.Fatal(err)
			}
			stream, err := s.OpenStream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			hello := wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Cluster: uuid(0xCC), Term: 1,
				From: self, FromUUID: uuid(9), FromEpoch: 1, To: fab.peers[0].Incarnation, Beside: beside}
			if _, err := stream.Write(wire.Lease{}.AppendTo(hello.AppendTo(nil))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			return s
		}
		links := func(want int) {
			t.Helper()
			if got := fab.nodes[0].Links(); len(got) != want {
				t.Errorf("%d links, want %d: %+v", len(got), want, got)
			}
		}
		first := dial(fab.tcp, false)
		second := dial(fab.quic, true)
		links(2)
		third := dial(fab.quic, false)
		links(1)
		for i, s := range []transport.Session{first, second} {
			end, _ := errors.AsType[*transport.CloseError](s.Err())
			if end == nil || end.Code != transport.CodeDuplicate {
				t.Errorf("session %d ended with %v", i, s.Err())
			}
		}
		if third.Err() != nil {
			t.Errorf("the new session ended: %v", third.Err())
		}
		third.Close(transport.CodeOK, "")
	})
}
