package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
)

// A watched is a provider with sessions that the test can end. Its sessions report
// their end late, if asked: a reader of a stream gets it before, as with
// QUIC.
type watched struct {
	transport.Provider
	late     time.Duration
	ending   sync.WaitGroup
	mu       sync.Mutex // guards sessions
	sessions []*watchedSession
}

type watchedSession struct {
	transport.Session
	done  chan struct{} // closed late
	ended atomic.Bool   // set with it
}

func (p *watched) Dial(ctx context.Context, address string) (transport.Session, error) {
	s, err := p.Provider.Dial(ctx, address)
	return p.watch(s), err
}

func (p *watched) Accept(ctx context.Context) (transport.Session, error) {
	s, err := p.Provider.Accept(ctx)
	return p.watch(s), err
}

func (p *watched) watch(inner transport.Session) transport.Session {
	if inner == nil {
		return nil
	}
	s := &watchedSession{Session: inner, done: make(chan struct{})}
	p.ending.Go(func() {
		<-inner.Done()
		time.Sleep(p.late) // on the bubble's clock
		s.ended.Store(true)
		close(s.done)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions = append(p.sessions, s)
	return s
}

func (s *watchedSession) Done() <-chan struct{} { return s.done }

func (s *watchedSession) Err() error {
	if !s.ended.Load() {
		return nil
	}
	return s.Session.Err()
}

// end closes the sessions that are there.
func (p *watched) end(code uint64) {
	p.mu.Lock()
	all := slices.Clone(p.sessions)
	p.mu.Unlock()
	for _, s := range all {
		s.Close(code, "the test ends it")
	}
}

// relinking runs f in a bubble with two nodes, 5 ms from each other, with sessions
// that the test can end.
func relinking(t *testing.T, late time.Duration, f func(t *testing.T, fab *fabric, sessions []*watched)) {
	bubble.Test(t, func(t *testing.T) {
		var all []*watched
		fab := newFabricWrapped(t, netConfig{Delay: 5 * time.Millisecond}, 2, engine.Config{}, func(p transport.Provider) transport.Provider {
			w := &watched{Provider: p, late: late}
			all = append(all, w)
			return w
		})
		fab.pair(0, 1) // or the link would be dialed below
		f(t, fab, all)
		fab.close()
		for _, w := range all {
			w.ending.Wait()
		}
	})
}

// connecting connects node 0 to at and returns where the result will be.
func connecting(fab *fabric, at addr.Addr) (attach.NodeEndpoint, <-chan error) {
	a, result := fab.open(0), make(chan error, 1)
	go func() {
		_, err := a.Connect(context.Background(), at)
		result <- err
	}()
	return a, result
}

// TestAConnectOutlivesItsLink ends the link of a connect that waits to be accepted:
// if its end does not speak of the node's, the connect goes on over another one, and
// the acceptor sees it once.
func TestAConnectOutlivesItsLink(t *testing.T) {
	for name, tt := range map[string]struct {
		by   int // the node that ends it
		code uint64
		want error
	}{
		"given up by the peer":           {1, transport.CodeOK, nil},
		"given up here":                  {0, transport.CodeOK, nil},
		"the peer has another one":       {1, transport.CodeDuplicate, nil},
		"the peer has removed this node": {1, transport.CodeFenced, syscall.ENODEV},
		"the peer leaves":                {1, transport.CodeLeaving, syscall.ENODEV},
	} {
		t.Run(name, func(t *testing.T) {
			relinking(t, 0, func(t *testing.T, fab *fabric, sessions []*watched) {
				l, at := fab.listener(1, 4)
				a, result := connecting(fab, at)
				time.Sleep(20 * time.Millisecond) // it waits in the queue
				sessions[tt.by].end(tt.code)
				time.Sleep(100 * time.Millisecond)
				b, _, err := l.TryAccept()
				if tt.want != nil {
					if got := <-result; !errors.Is(got, tt.want) || err == nil {
						t.Errorf("connect: %v, want %v; accepted: %v", got, tt.want, err)
					}
					return
				}
				if got := <-result; got != nil || err != nil {
					t.Fatalf("connect: %v; accept: %v", got, err)
				}
				passes(t, a, b)
				if _, _, err := l.TryAccept(); !errors.Is(err, syscall.EAGAIN) {
					t.Errorf("accepted twice: %v", err)
				}
			})
		})
	}
}

// TestAGrantThatItsLinkTakesWithIt ends the link while the peer's grant is on its
// way: the acceptor waits for the connect to come again.
func TestAGrantThatItsLinkTakesWithIt(t *testing.T) {
	relinking(t, 0, func(t *testing.T, fab *fabric, sessions []*watched) {
		l, at := fab.listener(1, 4)
		type accepted struct {
			ep  attach.NodeEndpoint
			err error
		}
		got := make(chan accepted, 1)
		go func() {
			ep, _, err := l.Accept(context.Background())
			got <- accepted{ep, err}
		}()
		a, result := connecting(fab, at)
		time.Sleep(7 * time.Millisecond) // the request has arrived, its grant has not
		sessions[0].end(transport.CodeOK)
		b := <-got
		if err := <-result; err != nil || b.err != nil {
			t.Fatalf("connect: %v; accept: %v", err, b.err)
		}
		passes(t, a, b.ep)
		if _, _, err := l.TryAccept(); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("accepted twice: %v", err)
		}
	})
}

// TestAConnectBehindAReset connects in the moment in which a connection of the same
// link has ended.
func TestAConnectBehindAReset(t *testing.T) {
	for _, late := range []time.Duration{0, time.Millisecond} {
		relinking(t, late, func(t *testing.T, fab *fabric, sessions []*watched) {
			a, _ := fab.pair(0, 1)
			sessions[1].end(transport.CodeOK)
			if _, err := a.Recv(context.Background(), make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the link has ended: %v", err)
			}
			if _, _, err := fab.join(0, 1); err != nil {
				t.Errorf("late by %v: %v", late, err)
			}
		})
	}
}

// TestWhatAnEndProvesIsReported: whichever end learns first of a session's end, and however
// late the session says so, its peer's loss of its state is evidence.
func TestWhatAnEndProvesIsReported(t *testing.T) {
	for _, late := range []time.Duration{0, time.Millisecond} {
		relinking(t, late, func(t *testing.T, fab *fabric, _ []*watched) {
			fab.hub.Kill("node1.1", false)
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			if got := fab.evidence(0); !slices.Contains(got, engine.LinkReset) {
				t.Errorf("late by %v: reported %v, want %v", late, got, engine.LinkReset)
			}
		})
	}
}

// passes sends a byte from a to b.
func passes(t *testing.T, a, b attach.NodeEndpoint) {
	t.Helper()
	if _, err := a.Send(context.Background(), []byte{7}); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1)
	if _, err := b.Recv(context.Background(), p); err != nil || p[0] != 7 {
		t.Fatalf("received %v, %v", p, err)
	}
}

// TestAResetNodeKeepsNoGhosts: the applications are notified of nodes that ended while
// theirs had no incarnation when it has one again, once; of live nodes they are not.
func TestAResetNodeKeepsNoGhosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 3)
		s := fab.nodes[0].NewSession(attach.Credentials{})
		var mu sync.Mutex // guards events
		var events []attach.Event
		defer s.Watch(func(ev attach.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, ev)
		})()
		n := fab.nodes[0]
		n.ResetSelf("removed by the others")
		n.NodeUp(fab.peers[1])
		n.Retain([]addr.Incarnation{fab.peers[1].Incarnation}, "silent")
		n.SetSelf(engine.Self{Self: attach.Self{Cluster: uuid(0xCC), Incarnation: addr.Incarnation{Node: 0, Generation: 2}}, UUID: uuid(1), Epoch: 1, Term: 1})
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(events) != 1 || events[0].Kind != attach.NodeRemoved || events[0].Incarnation != fab.peers[2].Incarnation || events[0].Reason != "silent" {
			t.Errorf("the application received %+v, want that %v was removed", events, fab.peers[2].Incarnation)
		}
		if ids, self, err := s.Nodes(); err != nil || self != 0 || !slices.Equal(ids, []addr.NodeID{0, 1}) {
			t.Errorf("nodes %v of node %d, %v", ids, self, err)
		}
		if _, err := fab.open(0).Connect(context.Background(), addr.Addr{Node: 2, Port: 4000}); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("a connect to the ghost: %v", err)
		}
	})
}
