package inject

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
)

// wires are TCP-like connections from node 1 to node 2, each end below the Layer
// of its node.
type wires struct {
	t        testing.TB
	layers   [2]*Layer
	on       faults.Traffic
	dial     DialFunc
	listener net.Listener
}

func openWires(t testing.TB, on faults.Traffic) *wires {
	n := netsim.New(1)
	w := &wires{t: t, on: on}
	for i := range w.layers {
		w.layers[i] = layer(t, addr.NodeID(i+1))
		names(w.layers[i])
	}
	l, err := n.Listen("10.0.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	w.listener = w.layers[1].Listener(l, on)
	w.dial = w.layers[0].Dial(func(ctx context.Context, address string) (net.Conn, error) {
		return n.Dial(ctx, "10.0.0.1", address)
	}, on)
	t.Cleanup(func() { w.listener.Close() })
	return w
}

// connect returns the two ends of a connection. On Control its peers are
// identified, as the control server does.
func (w *wires) connect() (near, far net.Conn) {
	w.t.Helper()
	near, far, err := w.tryConnect(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return near, far
}

func (w *wires) tryConnect(ctx context.Context) (near, far net.Conn, err error) {
	if near, err = w.dial(ctx, "10.0.0.2:7000"); err != nil {
		return nil, nil, err
	}
	if far, err = w.listener.Accept(); err != nil {
		near.Close()
		return nil, nil, err
	}
	w.t.Cleanup(func() { near.Close(); far.Close() })
	if w.on == faults.Control {
		near.(*Conn).Identified(idB.Node)
		far.(*Conn).Identified(idA.Node)
	}
	return near, far, nil
}

// roundTrip sends a byte there and back, and returns how long that took.
func roundTrip(near, far net.Conn, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	near.SetDeadline(start.Add(limit))
	far.SetDeadline(start.Add(limit))
	defer near.SetDeadline(time.Time{})
	defer far.SetDeadline(time.Time{})
	b := []byte{7}
	for _, way := range []struct{ from, to net.Conn }{{near, far}, {far, near}} {
		if _, err := way.from.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(way.to, b); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// TestConnIsANetConn runs the standard library's conformance tests for
// connections on wrapped ones: without rules, and with rules that make every
// byte pass the queues.
func TestConnIsANetConn(t *testing.T) {
	for name, rules := range map[string][]faults.Rule{
		"no rules":   nil,
		"for others": {{On: faults.All, From: faults.Nodes{8}, Cut: true}},
		"delay":      {{On: faults.All, Delay: faults.Duration(100 * time.Microsecond)}},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				p := faults.NewPlane(faults.Options{})
				p.SetSelf(1)
				if len(rules) > 0 {
					if _, err := p.AddAll(rules); err != nil {
						return nil, nil, nil, err
					}
				}
				l := New(p)
				nobody := func() []addr.NodeID { return []addr.NodeID{addr.NoNode} }
				inner, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return nil, nil, nil, err
				}
				defer inner.Close()
				raw, err := net.Dial("tcp", inner.Addr().String())
				if err != nil {
					return nil, nil, nil, err
				}
				other, err := inner.Accept()
				if err != nil {
					return nil, nil, nil, err
				}
				a, b = l.newConn(raw, faults.Control, nobody), l.newConn(other, faults.Control, nobody)
				return a, b, func() { a.Close(); b.Close(); l.Close() }, nil
			})
		})
	}
}

// TestFaultsOfStreams has each fault of streams act on a connection between two
// nodes, with the rule at the one that dialed and at the one that accepted.
func TestFaultsOfStreams(t *testing.T) {
	const limit = 5 * time.Second
	tests := []struct {
		name string
		r    faults.Rule
		// least and most bound a round trip; 0: it does not come back.
		least, most time.Duration
		fired       func(faults.Counters) uint64
	}{
		{"delay of one direction", faults.Rule{From: faults.Nodes{1}, To: faults.Nodes{2}, Delay: 50 * ms}, 50 * time.Millisecond, 51 * time.Millisecond,
			func(c faults.Counters) uint64 { return c.Delayed }},
		{"delay of both", faults.Rule{Delay: 50 * ms}, 100 * time.Millisecond, 101 * time.Millisecond,
			func(c faults.Counters) uint64 { return c.Delayed }},
		{"jitter", faults.Rule{Jitter: 50 * ms}, time.Microsecond, 101 * time.Millisecond, func(c faults.Counters) uint64 { return c.Delayed }},
		{"every segment lost", faults.Rule{From: faults.Nodes{2}, To: faults.Nodes{1}, Drop: 1}, 1600 * time.Millisecond, 1601 * time.Millisecond,
			func(c faults.Counters) uint64 { return c.Dropped }},
		{"rate", faults.Rule{Rate: 1000}, 2 * time.Millisecond, 3 * time.Millisecond, func(c faults.Counters) uint64 { return c.Limited }},
		{"cut of one direction stops both", faults.Rule{From: faults.Nodes{2}, To: faults.Nodes{1}, Cut: true}, 0, 0,
			func(c faults.Counters) uint64 { return c.Stopped }},
		{"half-open", faults.Rule{HalfOpen: true}, 0, 0, func(c faults.Counters) uint64 { return c.Stopped }},
		{"cut for a while", faults.Rule{Cut: true, For: 700 * ms}, 700 * time.Millisecond, 702 * time.Millisecond,
			func(c faults.Counters) uint64 { return c.Stopped }},
		{"hold", faults.Rule{Hold: true, For: 700 * ms}, 700 * time.Millisecond, 702 * time.Millisecond,
			func(c faults.Counters) uint64 { return c.Stopped }},
	}
	for _, tt := range tests {
		for end, name := range []string{"dialer", "acceptor"} {
			t.Run(tt.name+" at the "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := openWires(t, faults.Control)
					near, far := w.connect()
					if took, err := roundTrip(near, far, limit); err != nil || took > time.Millisecond {
						t.Fatalf("without a rule: %v, %v", took, err)
					}
					tt.r.On = faults.Control
					counts := add(t, w.layers[end], tt.r)
					synctest.Wait()
					took, err := roundTrip(near, far, limit)
					if tt.least == 0 && !errors.Is(err, os.ErrDeadlineExceeded) || tt.least > 0 && (err != nil || took < tt.least || took > tt.most) {
						t.Errorf("round trip %v, %v; want %v to %v", took, err, tt.least, tt.most)
					}
					if tt.fired(counts()) == 0 {
						t.Errorf("the rule did not fire: %+v", counts())
					}
					if tt.least == 0 {
						w.layers[end].plane.Clear()
						// The bytes under way arrive, once; then all is as before.
						if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
							t.Errorf("after the rule: %v", err)
						}
						if took, err := roundTrip(near, far, limit); err != nil || took > time.Millisecond {
							t.Errorf("after the rule: %v, %v", took, err)
						}
					}
				})
			})
		}
	}
}

func TestDialsAcrossACutHang(t *testing.T) {
	for end := range 2 {
		bubble.Test(t, func(t *testing.T) {
			w := openWires(t, faults.Gossip)
			counts := add(t, w.layers[end], faults.Rule{On: faults.All, From: faults.Nodes{2}, To: faults.Nodes{1}, Cut: true, For: 10000 * ms})
			start := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			near, far, err := w.tryConnect(ctx)
			if end == 0 {
				var op *net.OpError
				if err == nil || time.Since(start) != 3*time.Second || !errors.As(err, &op) || !op.Timeout() {
					t.Errorf("dial: %v after %v, want a timeout after 3s", err, time.Since(start))
				}
			} else if err == nil { // the acceptor cannot stop the dial, but the data behind it
				if _, err := roundTrip(near, far, time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("over the cut: %v", err)
				}
				far.Close()
				near.Close()
			}
			if counts().Stopped == 0 {
				t.Error("the rule did not fire")
			}
			if near, far, err = w.tryConnect(context.Background()); err != nil || end == 0 && time.Since(start) != 10*time.Second {
				t.Fatalf("the dial that waits for the end of the cut: %v after %v", err, time.Since(start))
			}
			time.Sleep(10 * time.Second)
			if _, err := roundTrip(near, far, time.Second); err != nil {
				t.Errorf("after the cut: %v", err)
			}
		})
	}
}

func TestHalfOpenRefusesAndResetEnds(t *testing.T) {
	for end := range 2 {
		bubble.Test(t, func(t *testing.T) {
			w := openWires(t, faults.Control)
			near, far := w.connect()
			counts := add(t, w.layers[end], faults.Rule{On: faults.Control, From: faults.Nodes{1}, To: faults.Nodes{2}, HalfOpen: true})
			synctest.Wait()
			if end == 0 {
				if _, err := w.dial(t.Context(), "10.0.0.2:7000"); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("dial: %v, want ECONNREFUSED", err)
				}
			} else {
				second, accepted := w.connect() // identified, it ends
				if _, err := accepted.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the accepted end: %v, want ECONNRESET", err)
				}
				if _, err := second.Read(make([]byte, 1)); err == nil {
					t.Error("the dialed end goes on")
				}
			}
			if counts().Refused == 0 {
				t.Errorf("the rule refused nothing: %+v", counts())
			}
			w.layers[end].plane.Clear()
			if _, err := roundTrip(near, far, time.Second); err != nil {
				t.Errorf("what was established did not survive: %v", err)
			}

			read := make(chan error, 1)
			go func() {
				_, err := [2]net.Conn{near, far}[end].Read(make([]byte, 1))
				read <- err
			}()
			synctest.Wait()
			counts = add(t, w.layers[end], faults.Rule{On: faults.Control, Reset: true})
			if err := <-read; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a read that waits: %v, want ECONNRESET", err)
			}
			if _, err := [2]net.Conn{far, near}[end].Read(make([]byte, 1)); err == nil {
				t.Error("the other end goes on after a reset")
			}
			if counts().Reset != 1 {
				t.Errorf("%+v", counts())
			}
		})
	}
}

// TestBytesStayInOrder sends much through delays, losses and cuts at both ends,
// while rules come and go.
func TestBytesStayInOrder(t *testing.T) {
	for seed := range uint64(20) {
		bubble.Test(t, func(t *testing.T) {
			w := openWires(t, faults.Gossip)
			near, far := w.connect()
			rng := rand.New(rand.NewPCG(seed, 1))
			const total = 1 << 20
			var wg sync.WaitGroup
			for _, way := range []struct{ from, to net.Conn }{{near, far}, {far, near}} {
				sizes := rand.New(rand.NewPCG(seed, 2))
				wg.Go(func() {
					at := 0
					for at < total {
						p := make([]byte, min(1+sizes.IntN(60000), total-at))
						for i := range p {
							p[i] = pattern(at + i)
						}
						if _, err := way.from.Write(p); err != nil {
							t.Errorf("seed %d: write at %d: %v", seed, at, err)
							return
						}
						at += len(p)
						time.Sleep(time.Duration(sizes.IntN(int(20 * time.Millisecond))))
					}
				})
				wg.Go(func() {
					p := make([]byte, total)
					if n, err := io.ReadFull(way.to, p); err != nil {
						t.Errorf("seed %d: read at %d: %v", seed, n, err)
						return
					}
					for i := range p {
						if p[i] != pattern(i) {
							t.Errorf("seed %d: byte %d is %d, want %d", seed, i, p[i], pattern(i))
							return
						}
					}
				})
			}
			for range 30 {
				l := w.layers[rng.IntN(2)]
				r := faults.Rule{On: faults.Gossip, For: faults.Duration(1 + rng.Int64N(int64(100*time.Millisecond)))}
				switch rng.IntN(4) {
				case 0:
					r.Delay, r.Jitter = faults.Duration(rng.Int64N(int64(30*time.Millisecond))), faults.Duration(rng.Int64N(int64(30*time.Millisecond)))
				case 1:
					r.Drop = .2
				case 2:
					r.Rate = 1 << 20
				case 3:
					r.Cut = true
				}
				if r.Delay == 0 && r.Jitter == 0 && r.Drop == 0 && r.Rate == 0 {
					r.Cut = true
				}
				add(t, l, r)
				time.Sleep(time.Duration(rng.IntN(int(30 * time.Millisecond))))
			}
			wg.Wait()
		})
	}
}

func pattern(i int) byte { return byte(i ^ i>>8*7) }

// TestCloseAcrossACutIsSeenWhenItEnds closes one end of a connection that is cut: the peer sees it
// afterwards, behind the written bytes.
func TestCloseAcrossACutIsSeenWhenItEnds(t *testing.T) {
	for end := range 2 {
		bubble.Test(t, func(t *testing.T) {
			w := openWires(t, faults.Control)
			near, far := w.connect()
			add(t, w.layers[end], faults.Rule{On: faults.All, Cut: true, For: 5000 * ms})
			synctest.Wait()
			start := time.Now()
			if end == 0 {
				if _, err := near.Write([]byte("last words")); err != nil {
					t.Fatal(err)
				}
			}
			near.Close()
			if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("write after close: %v", err)
			}
			got, err := io.ReadAll(far)
			if want := []string{"last words", ""}[end]; string(got) != want || err != nil || time.Since(start) != 5*time.Second {
				t.Errorf("the peer read %q, %v after %v", got, err, time.Since(start))
			}
		})
	}
}

// TestStreamsOfGossipFromSharedAddresses has two nodes on one IP address: it is not known which of
// them has opened a stream.
func TestStreamsOfGossipFromSharedAddresses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := openWires(t, faults.Gossip)
		third := addr.UUID{3}
		names := &w.layers[1].plane.Names
		names.SetID(third, 3)
		names.SetPlace(third, "10.0.0.1:9000")
		near, far := w.connect()
		add(t, w.layers[1], faults.Rule{On: faults.Gossip, From: faults.Nodes{3}, To: faults.Nodes{2}, Delay: 50 * ms})
		if took, err := roundTrip(near, far, time.Second); err != nil || took > time.Millisecond {
			t.Errorf("a delay for one of the two: %v, %v", took, err)
		}
		add(t, w.layers[1], faults.Rule{On: faults.Gossip, From: faults.Nodes{3}, To: faults.Nodes{2}, Cut: true})
		if _, err := roundTrip(near, far, time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a cut for one of the two: %v", err)
		}
		w.layers[1].plane.Clear()
		add(t, w.layers[1], faults.Rule{On: faults.Gossip, From: faults.Nodes{5}, Cut: true})
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if _, err := roundTrip(near, far, time.Second); err != nil {
			t.Errorf("a cut for neither: %v", err)
		}
	})
}

// TestControlConnectionsAreNobodysUntilIdentified lets a rule for the peer hold
// from that moment on.
func TestControlConnectionsAreNobodysUntilIdentified(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := openWires(t, faults.Control)
		add(t, w.layers[1], faults.Rule{On: faults.Control, From: faults.Nodes{1}, Cut: true})
		near, err := w.dial(t.Context(), "10.0.0.2:7000")
		if err != nil {
			t.Fatal(err)
		}
		far, err := w.listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		defer far.Close()
		if _, err := roundTrip(near, far, time.Second); err != nil {
			t.Errorf("before: %v", err)
		}
		far.(interface{ Identified(addr.UUID) }).Identified(idA.Node)
		if _, err := roundTrip(near, far, time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after: %v", err)
		}
	})
}

// TestTheEndOfALayerFreesEverything leaves connections open under all kinds of rules; the test's
// leak check and the bubble see the leaks.
func TestTheEndOfALayerFreesEverything(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := openWires(t, faults.Gossip)
		var all []net.Conn
		for i := range 8 {
			near, far := w.connect()
			all = append(all, near, far)
			add(t, w.layers[i%2], faults.Rule{On: faults.Gossip, Delay: 10 * ms})
			if _, err := near.Write(make([]byte, 5000)); err != nil {
				t.Fatal(err)
			}
		}
		add(t, w.layers[0], faults.Rule{On: faults.Gossip, Cut: true})
		for _, c := range all[:6] {
			c.Close()
		}
		reads := make(chan error, 1)
		go func() { _, err := all[7].Read(make([]byte, 1)); reads <- err }()
		w.layers[0].Close()
		w.layers[1].Close()
		<-reads
		if _, err := all[6].Write([]byte("x")); err == nil {
			t.Error("a connection outlives its layer")
		}
		if _, err := w.dial(t.Context(), fmt.Sprintf("10.0.0.%d:7000", 2)); err == nil {
			t.Error("a dial outlives its layer")
		}
	})
}
