package membership

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

// stall makes the loop of a node stand still, as a pause of its process would.
func (n *node) stall(d time.Duration) {
	n.a.post(func() { time.Sleep(d) })
}

func TestPauseOfASecondIsInvisible(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		began := time.Now()
		for _, i := range []int{3, 1} {
			w.isolate(i)
			w.node(i).stall(time.Second)
			time.Sleep(time.Second)
			w.net.Heal()
			time.Sleep(10 * time.Second)
		}
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
	})
}

func TestLongPauseRevalidatesAndRemovesNobodyElse(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.host()
		var revalidated atomic.Int32
		w.join(2)
		w.join(3, func(c *Config) { c.Revalidate = func() { revalidated.Add(1) } })
		w.join(4)
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(2 * time.Second)
		began := time.Now()
		w.isolate(3)
		w.node(3).stall(5 * time.Second)
		time.Sleep(5 * time.Second)
		w.net.Heal()
		w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		time.Sleep(20 * time.Second)
		if revalidated.Load() == 0 {
			t.Error("the links were not asked to revalidate")
		}
		for _, n := range w.all {
			if got := removals(n.since(began)); n.i != 3 && !slices.Equal(got, []string{"removed 2.1 silent"}) {
				t.Errorf("node %d: removals %v, want only that of the paused node", n.i, got)
			}
		}
	})
}

func TestAnOldLifelineReportHarmsNoHealthyNode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		began := time.Now()
		victim := w.node(3).incarnation()
		for range 20 {
			for _, e := range []verdict.Evidence{verdict.LinkRefused, verdict.LinkSilent, verdict.LinkReset, verdict.LinkFenced} {
				w.node(2).a.Report(victim, e)
				w.node(4).a.Report(victim, e)
			}
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
	})
}

func TestPairThatLostOnlyEachOtherStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		began := time.Now()
		cut := netsim.Rules{Cut: true}
		w.net.SetRules(ip(3), ip(4), cut)
		w.net.SetRules(ip(4), ip(3), cut)
		time.Sleep(30 * time.Second)
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
		if !w.node(3).suspects(w.node(4)) {
			t.Error("node 3 does not suspect the node that it cannot reach")
		}
		w.net.Heal()
		w.within(5*time.Second, "the pair sees each other again", func() bool { return mesh(w.all) })
	})
}

// TestPairThatLostOnlyEachOtherIsParted is the other policy, which the host decides:
// one of the pair goes, the same at every node, and comes back.
func TestPairThatLostOnlyEachOtherIsParted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.host(func(c *Config) { c.Partial = verdict.PartialEvict })
		for i := 2; i <= 4; i++ {
			w.join(i)
		}
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		began := time.Now()
		cut := netsim.Rules{Cut: true}
		w.net.SetRules(ip(3), ip(4), cut)
		w.net.SetRules(ip(4), ip(3), cut)
		w.within(10*time.Second, "one of the pair is removed", func() bool { return len(removals(w.node(2).since(began))) > 0 })
		w.net.Heal()
		w.within(10*time.Second, "all see all again", func() bool { return mesh(w.all) })
		for _, n := range w.all[:2] {
			if got := removals(n.since(began)); len(got) != 1 || got[0] != removals(w.node(1).since(began))[0] {
				t.Errorf("node %d received %v, want one removal, the same as node 1", n.i, got)
			}
		}
		for _, e := range w.node(1).since(began) {
			uuid := e.Node.UUID
			if e.Kind == EventRemoved && (e.Reason != verdict.ReasonPartitioned || uuid != w.node(3).st.Identity().Node && uuid != w.node(4).st.Identity().Node) {
				t.Errorf("%v, want the end of one of the pair", e)
			}
		}
	})
}

// A swallower is a connection that can get stuck, as if its kernel waited for
// minutes before it sends again: bytes written to it are lost, and neither end
// is notified.
type swallower struct {
	net.Conn
	stuck *atomic.Bool
}

func (c *swallower) Write(p []byte) (int, error) {
	if c.stuck.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close notifies the other end only if that is possible. The network ends the rest.
func (c *swallower) Close() error {
	if c.stuck.Load() {
		return c.SetDeadline(time.Unix(1, 0)) // a reader here is to return
	}
	return c.Conn.Close()
}

// TestStuckLifelinesAreReplaced: the network is back long before the connection of
// a lifeline is, or only one end of that knows that it is over. The pair sees each
// other again at once, and stays so.
func TestStuckLifelinesAreReplaced(t *testing.T) {
	for name, end := range map[string]func(dialed *swallower){
		"nothing gets through": func(*swallower) {},
		"one end knows":        func(c *swallower) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var between []*swallower // that node 3 or 4 has dialed to the other one
				w.host(func(c *Config) { c.Partial = verdict.PartialEvict })
				w.join(2)
				for i := 3; i <= 4; i++ {
					w.join(i, func(c *Config) {
						dial, other := c.Dial, dataAddr(7-i)
						c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
							conn, err := dial(ctx, to)
							if err != nil || to != other {
								return conn, err
							}
							mu.Lock()
							defer mu.Unlock()
							between = append(between, &swallower{conn, new(atomic.Bool)})
							return between[len(between)-1], nil
						}
					})
				}
				w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
				time.Sleep(5 * time.Second)
				began := time.Now()
				mu.Lock()
				for _, c := range between {
					c.stuck.Store(true)
					end(c)
				}
				mu.Unlock()
				time.Sleep(time.Minute)
				for _, n := range w.all {
					if got := removals(n.since(began)); len(got) > 0 {
						t.Errorf("node %d received %v, want nothing", n.i, got)
					}
				}
				a, b := w.node(3), w.node(4)
				if a.suspects(b) || b.suspects(a) {
					t.Error("the pair has not found each other again")
				}
			})
		})
	}
}

// A pair may lose each other at any time between two signs of life.
func TestLostPairIsNoticedWithinTheBoundOfEachProfile(t *testing.T) {
	for profile, bound := range map[gossip.Profile]time.Duration{
		gossip.Fast: 2 * time.Second, gossip.Normal: 3 * time.Second, gossip.Calm: 10 * time.Second,
	} {
		t.Run(string(profile), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				as := func(c *Config) { c.Detection = profile }
				w.host(as)
				for i := 2; i <= 4; i++ {
					w.join(i, as)
				}
				w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
				var worst time.Duration
				for i := range 12 {
					time.Sleep(15*time.Second + time.Duration(i)*137*time.Millisecond)
					w.net.SetRules(ip(3), ip(4), netsim.Rules{Cut: true})
					w.net.SetRules(ip(4), ip(3), netsim.Rules{Cut: true})
					worst = max(worst, w.within(bound, "both ends of the pair suspect each other", func() bool {
						return w.node(3).suspects(w.node(4)) && w.node(4).suspects(w.node(3))
					}))
					w.net.Heal()
					w.within(5*time.Second, "they trust each other again", func() bool {
						return !w.node(3).suspects(w.node(4)) && !w.node(4).suspects(w.node(3))
					})
				}
				t.Logf("noticed after at most %v", worst)
			})
		})
	}
}

// suspects reports whether n suspects o.
func (n *node) suspects(o *node) bool {
	return slices.ContainsFunc(n.a.Nodes(), func(x Node) bool {
		return x.Incarnation == o.incarnation() && x.State == verdict.Suspect
	})
}

func TestEventsWaitForTheHandlerAndTheLoopDoesNot(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.host()
		w.join(2)
		block := make(chan struct{})
		var handled atomic.Int32
		slow := &node{w: w, i: 3}
		w.join(3, func(c *Config) {
			inner := slow.event
			c.OnEvent = func(e Event) {
				if e.Kind == verdict.EventRemoved {
					<-block
					handled.Add(1)
				}
				inner(e)
			}
		})
		w.join(4)
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		w.kill(w.node(4))
		time.Sleep(time.Second)
		w.join(5)
		w.within(5*time.Second, "the loop goes on while the handler blocks", func() bool { return mesh(w.all) })
		if handled.Load() != 0 {
			t.Error("the removal was handled before the handler returned")
		}
		if q := w.node(3).a.Queues(); q.Events != 1 || q.Inbox > MaxInbox {
			t.Errorf("%+v, want one event to wait behind the removal", q)
		}
		close(block)
		w.within(time.Second, "the events come in order", func() bool {
			got := words(slow.since(time.Time{}))
			return len(got) >= 2 && strings.HasPrefix(got[len(got)-2], "removed ") && strings.HasPrefix(got[len(got)-1], "added ")
		})
	})
}

// TestEachIncarnationHasAFewLifelines: an incarnation has lifelines to its watchers, and to those with
// which it has links in use, however many others there are.
func TestEachIncarnationHasAFewLifelines(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(13)
		time.Sleep(10 * time.Second)
		few := func() bool {
			for _, x := range w.all[1:] {
				if x.a.Status().Lifelines != 8 {
					return false
				}
			}
			return true
		}
		w.within(5*time.Second, "each of twelve has eight lifelines", few)
		a := w.node(2)
		i := slices.IndexFunc(w.all, func(x *node) bool {
			watched := true
			onLoop(a.a, func() { watched = x == a || x == w.node(1) || a.a.member.Watches(x.incarnation()) })
			return !watched
		})
		b := w.all[i]
		a.a.Watch(b.incarnation(), true)
		b.a.Watch(a.incarnation(), true)
		w.within(3*time.Second, "a pair with links has one too", func() bool {
			return a.a.Status().Lifelines == 9 && b.a.Status().Lifelines == 9
		})
		a.a.Watch(b.incarnation(), false)
		b.a.Watch(a.incarnation(), false)
		w.within(3*time.Second, "it is closed again", few)
		w.kill(b)
		w.within(100*time.Millisecond, "all others know that it is gone", func() bool { return mesh(w.all) })
	})
}

// TestWithoutAHostAllLookWhereAWatcherDoubts kills a node, and cuts another one off,
// while there is no host. Those that do not watch them learn it from those that do, look
// for themselves, and know as soon.
func TestWithoutAHostAllLookWhereAWatcherDoubts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(14)
		w.kill(w.node(1))
		w.within(3*time.Second, "all know that the host is gone", func() bool { return mesh(w.all) })
		time.Sleep(3 * time.Second)
		w.kill(w.node(5))
		w.within(500*time.Millisecond, "all know that a node is gone", func() bool { return mesh(w.all) })
		cut := w.node(9)
		incarnation := cut.incarnation()
		var rest []string
		for _, n := range w.all {
			if n != cut {
				rest = append(rest, ip(n.i))
			}
		}
		w.net.Partition([]string{ip(9)}, rest)
		knows := func() bool {
			return !slices.ContainsFunc(w.all, func(n *node) bool {
				return n != cut && slices.ContainsFunc(n.a.Nodes(), func(x Node) bool { return x.Incarnation == incarnation })
			})
		}
		w.within(3*time.Second, "all others know that it is silent", knows)
	})
}

func TestProbeOverTheDataPathDecides(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var asked atomic.Int32
		probe := func(c *Config) {
			c.Probe = func(context.Context, addr.Incarnation) error {
				asked.Add(1)
				return nil
			}
		}
		w.host(probe)
		w.join(2, probe)
		n := w.join(3, probe)
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		began := time.Now()
		w.node(2).a.Report(n.incarnation(), verdict.LinkRefused)
		time.Sleep(5 * time.Second)
		if asked.Load() == 0 {
			t.Error("the data path was not asked")
		}
		if got := removals(w.node(2).since(began)); len(got) != 0 {
			t.Errorf("removals %v of a node that answers, want none", got)
		}
	})
}

func TestLeaveWithoutAHost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		w.kill(w.node(1))
		time.Sleep(time.Second)
		n := w.node(3)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := n.a.Leave(ctx); err != nil {
			t.Errorf("Leave: %v", err)
		}
		w.all = w.all[:1]
		w.within(5*time.Second, "the other knows", func() bool { return mesh(w.all) })
		if err := n.a.Leave(ctx); err != ErrClosed {
			t.Errorf("second Leave: %v, want ErrClosed", err)
		}
		if err := n.a.Close(); err != nil || n.a.Err() != ErrClosed {
			t.Errorf("Close: %v, Err: %v", err, n.a.Err())
		}
	})
}

func TestHostThatLeavesIsGoneAndComesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		began := time.Now()
		h := w.node(1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := h.a.Leave(ctx); err != nil {
			t.Errorf("Leave: %v", err)
		}
		h.st.Close()
		w.all = w.all[1:]
		w.within(5*time.Second, "the others know", func() bool { return mesh(w.all) })
		for _, n := range w.all {
			if got := removals(n.since(began)); len(got) != 1 || !strings.HasPrefix(got[0], "removed 0.1 ") {
				t.Errorf("node %d: removals %v, want only the host's", n.i, got)
			} else {
				t.Logf("node %d: %s", n.i, got[0])
			}
		}
		w.again(1)
		w.within(5*time.Second, "the host is back", func() bool { return mesh(w.all) })
		if got := w.node(2).incarnation(); got != (addr.Incarnation{Node: 1, Generation: 1}) {
			t.Errorf("node 2 lives as %v, want as before", got)
		}
	})
}

func TestLossDoesNotRemove(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		began := time.Now()
		w.net.SetDefaultRules(netsim.Rules{Delay: time.Millisecond, Jitter: 2 * time.Millisecond, Loss: 0.05, Duplicate: 0.01, Reorder: 0.05})
		time.Sleep(time.Minute)
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
		if w.net.Counters().Lost == 0 {
			t.Error("nothing was lost: the test shows nothing")
		}
	})
}

func TestSilentLossIsKnownWithinTheBoundOfEachProfile(t *testing.T) {
	for profile, bound := range map[gossip.Profile]time.Duration{
		gossip.Fast: 2 * time.Second, gossip.Normal: 3 * time.Second, gossip.Calm: 10 * time.Second,
	} {
		t.Run(string(profile), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				as := func(c *Config) { c.Detection = profile }
				w.host(as)
				for i := 2; i <= 5; i++ {
					w.join(i, as)
				}
				w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
				time.Sleep(3300 * time.Millisecond)
				began := time.Now()
				w.isolate(4)
				victim := w.node(4)
				w.all = slices.DeleteFunc(w.all, func(n *node) bool { return n == victim })
				took := w.within(bound, "all know of the silent node", func() bool { return mesh(w.all) })
				t.Logf("known after %v", took)
				time.Sleep(bound)
				for _, n := range w.all {
					if got := removals(n.since(began)); !slices.Equal(got, []string{"removed 3.1 silent"}) {
						t.Errorf("node %d: removals %v, want only that of the silent node", n.i, got)
					}
				}
				// Without a host: the loss of it, then of another node.
				w.kill(w.node(1))
				w.within(bound, "all know that the host is lost", func() bool { return mesh(w.all) })
				w.isolate(5)
				victim = w.node(5)
				w.all = slices.DeleteFunc(w.all, func(n *node) bool { return n == victim })
				took = w.within(bound, "the two that are left decide alone", func() bool { return mesh(w.all) })
				t.Logf("decided alone after %v", took)
			})
		})
	}
}
