package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// listener returns a listening endpoint of node i and its address.
func (f *fabric) listener(i, backlog int) (attach.NodeEndpoint, addr.Addr) {
	l := f.open(i)
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(backlog)
	}
	if err != nil {
		f.t.Error(err)
	}
	return l, addr.Addr{Node: addr.NodeID(i), Port: port}
}

func TestConnectIsRefusedAndTheEndpointTriesAgain(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		a := fab.open(0)
		_, err := a.Connect(context.Background(), addr.Addr{Node: addr.NodeID(j), Port: 4000})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		l, at := fab.listener(j, 1)
		go l.Accept(context.Background())
		port, err := a.Connect(context.Background(), at)
		if err != nil || port != a.LocalAddr().Port {
			t.Errorf("second try: port %d, %v", port, err)
		}
	})
}

func TestConnectCompletesAtAcceptAndTimesOutWithoutIt(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		l, at := fab.listener(j, 2)
		begun := time.Now()
		_, err := fab.open(0).Connect(context.Background(), at)
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) != 10*time.Second {
			t.Errorf("not accepted: %v after %v", err, time.Since(begun))
		}
		if _, _, err := l.TryAccept(); err != status.Again {
			t.Errorf("TryAccept of a request that was given up: %v", err)
		}
	})
}

// TestALinkCarriesSoManyConnections: one more is refused at once, with a word on
// why, instead of waiting for a stream that is never given up, whichever node asked.
func TestALinkCarriesSoManyConnections(t *testing.T) {
	for name, from := range map[string][4]int{"one way": {0, 0, 0, 0}, "both ways": {0, 1, 0, 1}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				fab := newFabricOf(t, 2, engine.Config{MaxConns: 3})
				var ends []attach.NodeEndpoint
				for _, i := range from[:3] {
					a, b := fab.pair(i, 1-i)
					ends = append(ends, a, b)
				}
				begun := time.Now()
				_, _, err := fab.join(from[3], 1-from[3])
				if !errors.Is(err, syscall.ENOBUFS) || !strings.Contains(err.Error(), "3 connections") || time.Since(begun) > time.Millisecond {
					t.Errorf("a fourth connection: %v after %v", err, time.Since(begun))
				}
				ends[0].Close()
				ends[1].Close()
				synctest.Wait()
				fab.pair(from[3], 1-from[3])
			})
		})
	}
}

// TestASessionHasSoManyEndpoints: the text names the limit.
func TestASessionHasSoManyEndpoints(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newFabricOf(t, 1, engine.Config{MaxEndpoints: 2}).nodes[0].NewSession(attach.Credentials{})
		for range 2 {
			if _, err := s.Open(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Open(); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "2 endpoints") {
			t.Errorf("a third endpoint: %v", err)
		}
	})
}

func TestFullBacklogRefusesAtOnce(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		_, at := fab.listener(j, 2)
		for range 2 {
			go fab.open(0).Connect(context.Background(), at)
		}
		synctest.Wait()
		begun := time.Now()
		if _, err := fab.open(0).Connect(context.Background(), at); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) > time.Second {
			t.Errorf("third request: %v after %v", err, time.Since(begun))
		}
	})
}

func TestListenerCloseRejectsWaitingRequests(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		l, at := fab.listener(j, 2)
		got := make(chan error, 1)
		go func() {
			_, err := fab.open(0).Connect(context.Background(), at)
			got <- err
		}()
		blocked := make(chan error, 1)
		synctest.Wait()
		l2, _ := fab.listener(j, 1)
		go func() {
			_, _, err := l2.Accept(context.Background())
			blocked <- err
		}()
		synctest.Wait()
		begun := time.Now()
		l.Close()
		l2.Close()
		if err := <-got; !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) > time.Second {
			t.Errorf("waiting connect: %v after %v", err, time.Since(begun))
		}
		if err := <-blocked; !errors.Is(err, syscall.EINTR) {
			t.Errorf("blocked accept: %v", err)
		}
	})
}

func TestNonBlockingConnectReportsItsResultOnce(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		l, at := fab.listener(j, 1)
		a := fab.open(0)
		if _, err := a.TryConnect(at); err != status.InProgress {
			t.Fatalf("first call: %v", err)
		}
		synctest.Wait()
		if _, err := a.TryConnect(at); err != status.InProgress || a.Ready() != 0 {
			t.Errorf("while pending: %v, ready %v", err, a.Ready())
		}
		if _, _, err := l.TryAccept(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if a.Ready() != attach.PollOut {
			t.Errorf("ready %v, want POLLOUT", a.Ready())
		}
		if port, err := a.TryConnect(at); err != nil || port == 0 {
			t.Errorf("result: %d, %v", port, err)
		}
		if _, err := a.TryConnect(at); err != status.IsConn {
			t.Errorf("after the result: %v", err)
		}
		b := fab.open(0)
		b.TryConnect(addr.Addr{Node: at.Node, Port: 9})
		synctest.Wait()
		if b.Ready() != attach.PollOut {
			t.Errorf("failed connect: ready %v", b.Ready())
		}
		if _, err := b.TryConnect(at); err != status.Refused {
			t.Errorf("failed connect: %v", err)
		}
		if _, err := b.TryConnect(at); err != status.InProgress {
			t.Errorf("another try: %v", err)
		}
	})
}

func TestSlowReceiverHoldsUpNobodyElse(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		for range 4 { // several without a reader
			a, _ := fab.pair(0, j)
			go a.Send(context.Background(), make([]byte, 4<<20))
		}
		synctest.Wait()
		a, b := fab.pair(0, j)
		go a.Send(context.Background(), make([]byte, 4<<20))
		buf := make([]byte, 1<<20)
		for got := 0; got < 4<<20; {
			n, err := b.Recv(context.Background(), buf)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		for _, n := range fab.nodes {
			for _, c := range n.Conns() {
				if c.Unread > 512<<10 {
					t.Errorf("%d bytes wait for a receiver that does not read", c.Unread)
				}
			}
		}
	})
}

func TestCrossingDialsEndInOneLink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		_, at0 := fab.listener(0, 100)
		_, at1 := fab.listener(1, 100)
		for range 20 {
			go fab.open(0).Connect(context.Background(), at1)
			go fab.open(1).Connect(context.Background(), at0)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		for i, n := range fab.nodes {
			if l := n.Links(); len(l) != 1 || l[0].Conns != 20 {
				t.Errorf("node %d: links %+v", i, l)
			}
		}
	})
}

func TestSilentLinkIsReportedThenGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		a, _ := fab.pair(0, 1)
		fab.hub.Cut("node0.1", "node1.1")
		begun := time.Now()
		_, err := a.Recv(context.Background(), make([]byte, 1))
		if d := time.Since(begun); !errors.Is(err, syscall.ECONNRESET) || d > 3*time.Second {
			t.Errorf("Recv on a cut link: %v after %v", err, d)
		}
		got := fab.evidence(0)
		if len(got) == 0 || got[0] != engine.LinkSilent {
			t.Errorf("evidence %v", got)
		}
		if _, err := fab.open(0).Connect(context.Background(), addr.Addr{Node: 1, Port: 2000}); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("Connect over a cut: %v", err)
		}
		fab.hub.HealAll()
		time.Sleep(time.Second)
		c, _ := fab.pair(0, 1)
		if _, err := c.Send(context.Background(), []byte("x")); err != nil {
			t.Errorf("after the cut: %v", err)
		}
	})
}

// TestLinkThatAnswersTakesEvidenceBack: evidence against a peer would be
// repeated for ever without a report that it answers again.
func TestLinkThatAnswersTakesEvidenceBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		fab.pair(0, 1)
		time.Sleep(time.Second)
		fab.hub.Cut("node0.1", "node1.1")
		time.Sleep(2 * time.Second) // silent, and not given up
		fab.hub.HealAll()
		time.Sleep(3 * time.Second)
		fab.pair(0, 1)
		time.Sleep(time.Second)
		got := fab.evidence(0)
		if len(got) < 3 || got[0] != engine.LinkAlive || !slices.Contains(got, engine.LinkSilent) || got[len(got)-1] != engine.LinkAlive {
			t.Errorf("evidence %v, want alive, silent, alive", got)
		}
	})
}

// refuses lets a node 9 answer the first link of node 0 with m. The channel has the
// error of that link at node 9.
func (f *fabric) refuses(t *testing.T, m wire.HelloRefuse) <-chan error {
	t.Helper()
	p, err := f.hub.Provider("refuses", transport.Identity{Cluster: uuid(0xCC), Node: uuid(9)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	f.nodes[0].NodeUp(engine.Peer{Incarnation: addr.Incarnation{Node: 9, Generation: 1}, UUID: uuid(9), Epoch: 1, Addresses: []string{"refuses"}})
	ended := make(chan error, 1)
	go func() {
		sess, err := p.Accept(context.Background())
		if err == nil {
			defer func() { <-sess.Done() }()
			_, err = (&hostile{t: t, sess: sess}).open(m.AppendTo(nil))
		}
		ended <- err
	}()
	return ended
}

// TestAnotherVersionIsNoEvidence: a peer that refuses a link for its version has
// answered. Evidence against it would never be taken back, because there
// never is a link.
func TestAnotherVersionIsNoEvidence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 1)
		refused := fab.refuses(t, wire.HelloRefuse{
			Code: status.Version, VersionMin: wire.VersionMax + 1, VersionMax: wire.VersionMax + 1, Reason: "no common version"})
		if _, err := fab.nodes[0].Ping(context.Background(), 9); !errors.Is(err, status.Version) {
			t.Errorf("ping: %v, want that the versions differ", err)
		}
		if err := <-refused; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if got := fab.evidence(0); len(got) != 0 {
			t.Errorf("evidence %v, want none", got)
		}
	})
}

func TestPauseOfTheLinkSuspendsOperationsUntilBothIncarnationsAreConfirmed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		a, b := fab.pair(0, 1)
		mem := alloc(t, 4096)
		off, err := register(b, mem, 0, 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		fab.hub.Cut("node0.1", "node1.1")
		time.Sleep(1100 * time.Millisecond) // longer than the fence, shorter than the silence bound
		if got := fab.evidence(0); len(got) != 0 {
			t.Errorf("evidence after 1.1 s: %v", got)
		}
		fab.hub.HealAll()
		if err := a.VWriteTo([]byte{1}, off, rma.Sync); err != nil || mem[0] != 1 {
			t.Errorf("write after the pause: %v, memory %d", err, mem[0])
		}
		if l := fab.nodes[0].Links(); len(l) != 1 {
			t.Errorf("links %+v", l)
		}
	})
}

func TestRevalidateAsksThePeerBeforeItServes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		a, b := fab.pair(0, 1)
		mem := alloc(t, 4096)
		off, err := register(b, mem, 0, 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		fab.nodes[1].Revalidate()
		if l := fab.nodes[1].Links(); len(l) != 1 || l[0].Serving {
			t.Errorf("links %+v, want one that does not serve", l)
		}
		if err := a.VWriteTo([]byte{1}, off, rma.Sync); err != nil || mem[0] != 1 {
			t.Errorf("write: %v, memory %d", err, mem[0])
		}
		if l := fab.nodes[1].Links(); len(l) != 1 || !l[0].Serving {
			t.Errorf("links %+v, want one that serves again", l)
		}
	})
}

func TestPing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		if _, err := fab.nodes[0].Ping(context.Background(), 1); err != nil {
			t.Error(err)
		}
		if _, err := fab.nodes[0].Ping(context.Background(), 7); status.Of(err) != status.NoDevice {
			t.Errorf("unknown node: %v", err)
		}
	})
}

// TestManyRefusalsLeaveTheLinkAlone closes listeners with more requests waiting than
// the control stream has room for, while that does not move: each requester is refused,
// and the link lives.
func TestManyRefusalsLeaveTheLinkAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		gate := &controlGate{open: make(chan struct{})}
		fab := newFabricWrapped(t, netConfig{}, 2, engine.Config{}, gate.wrap)
		a, b := fab.pair(0, 1)
		const each = 900
		got := make(chan error, 2*each)
		var listeners []attach.NodeEndpoint
		for range 2 {
			l, at := fab.listener(1, each)
			listeners = append(listeners, l)
			for range each {
				e := fab.open(0)
				go func() {
					_, err := e.Connect(context.Background(), at)
					got <- err
				}()
			}
		}
		synctest.Wait()
		gate.shut.Store(true)
		for _, l := range listeners {
			l.Close()
		}
		synctest.Wait()
		if n := len(fab.nodes[1].Links()); n != 1 {
			t.Errorf("%d links, want 1", n)
		}
		close(gate.open)
		for range 2 * each {
			if err := <-got; !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("a requester: %v", err)
			}
		}
		exchange(t, a, b)
	})
}

// A controlGate holds up writes to the first stream of each session, the control
// stream, while it is shut and until open is closed.
type controlGate struct {
	shut atomic.Bool
	open chan struct{}
}

func (g *controlGate) wrap(p transport.Provider) transport.Provider { return &gatedProvider{p, g} }

type gatedProvider struct {
	transport.Provider
	g *controlGate
}

func (p *gatedProvider) Accept(ctx context.Context) (transport.Session, error) {
	s, err := p.Provider.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &gatedSession{Session: s, g: p.g}, nil
}

func (p *gatedProvider) Dial(ctx context.Context, address string) (transport.Session, error) {
	s, err := p.Provider.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return &gatedSession{Session: s, g: p.g}, nil
}

type gatedSession struct {
	transport.Session
	g     *controlGate
	first atomic.Bool
}

func (s *gatedSession) OpenStream(ctx context.Context) (transport.SendStream, error) {
	l, err := s.Session.OpenStream(ctx)
	if err != nil || s.first.Swap(true) {
		return l, err
	}
	return &gatedStream{l, s.g}, nil
}

type gatedStream struct {
	transport.SendStream
	g *controlGate
}

func (l *gatedStream) Write(p []byte) (int, error) {
	if l.g.shut.Load() {
		<-l.g.open
	}
	return l.SendStream.Write(p)
}
