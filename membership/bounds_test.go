package membership

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestIdentitiesHaveABound: no more nodes join than max-nodes, and by one token no
// more in a minute than its share; to ask again is no new one.
func TestIdentitiesHaveABound(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.host(func(c *Config) { c.MaxNodes = 3 })
		ask := func(name string, request []byte) error {
			_, err := control.Ask(t.Context(), w.dial(9), dataAddr(1), w.token, time.Now, control.JoinAsk{Name: name, Request: request})
			return err
		}
		for i := range 3 {
			key := must(trust.NewKey())
			for range 3 {
				if err := ask(fmt.Sprint("m", i), must(trust.RequestFor(key))); err != nil {
					t.Errorf("node %d: %v", i, err)
				}
				time.Sleep(time.Second)
			}
		}
		err := ask("m3", must(trust.RequestFor(must(trust.NewKey()))))
		if err == nil || !strings.Contains(err.Error(), "max-nodes") {
			t.Errorf("a fourth node: %v, want that there is no room", err)
		}
		if _, err := w.node(1).a.BanNode(t.Context(), "m0", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * 24 * time.Hour / 100) // their certificates have expired for long
		must(w.node(1).a.RemoveNode(t.Context(), "m1"))
		if err := ask("m3", must(trust.RequestFor(must(trust.NewKey())))); err != nil {
			t.Errorf("after one was removed: %v", err)
		}
		if list := w.node(1).a.Enrolments(); len(list) != 3 || !list[0].IsBanned() {
			t.Errorf("the host knows %+v", list)
		}
	})
}

func TestJoinsOfAMinuteHaveABound(t *testing.T) {
	var r joinRate
	now, greedy := time.Now(), trust.TokenID{1}
	n := 0
	for range 10 * joinsPerTokenMinute {
		if r.take(now, greedy) {
			n++
		}
	}
	if n != joinsPerTokenMinute || !r.take(now, trust.TokenID{2}) {
		t.Errorf("one token let %d in, want %d and room for another's", n, joinsPerTokenMinute)
	}
	if !r.take(now.Add(time.Minute), greedy) {
		t.Error("no node is let in a minute later")
	}
}

// TestRenewalsHaveABound: a member that asks for certificates without end gets one.
func TestRenewalsHaveABound(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		n := w.node(3)
		w.kill(n)
		time.Sleep(2 * time.Minute) // since it has joined
		s, _ := w.mute(n)
		defer func() { s.Abort(); <-s.Done() }()
		before := strings.Count(w.node(1).logged(), "certificate renewed")
		request := must(trust.RequestFor(n.a.cfg.Trust.Credentials().Key))
		for range 5000 {
			s.Send(control.Renew{Request: request})
		}
		time.Sleep(5 * time.Second)
		log := w.node(1).logged()
		if got := strings.Count(log, "certificate renewed") - before; got != 1 {
			t.Errorf("%d certificates for 5000 requests, want 1", got)
		}
		if lines := strings.Count(log, "\n"); lines > 200 {
			t.Errorf("the host has logged %d lines", lines)
		}
		s.Send(control.Renew{Request: must(trust.RequestFor(must(trust.NewKey())))})
		time.Sleep(2 * time.Minute)
		if got := strings.Count(w.node(1).logged(), "certificate renewed") - before; got > 1 {
			t.Errorf("another key got a certificate of the node")
		}
	})
}

// TestSessionsEndWithTheCertificate: a member that never renews is out when its
// certificate ends; the others, which do, notice nothing else.
func TestSessionsEndWithTheCertificate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		short := func(c *Config) { c.CertificateValidity = 10 * time.Minute }
		w.host(short)
		w.join(2, short)
		w.join(3, short)
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		n := w.node(3)
		w.kill(n)
		s, incarnation := w.mute(n)
		ended := make(chan struct{})
		go func() { <-s.Done(); close(ended) }()
		stop := make(chan struct{})
		var beats sync.WaitGroup
		beats.Go(func() {
			for i := uint64(1); ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					s.Send(verdict.Ping{Incarnation: incarnation, Nonce: i})
				}
			}
		})
		time.Sleep(9 * time.Minute)
		select {
		case <-ended:
			t.Error("its session has ended before its certificate")
		default:
		}
		time.Sleep(time.Minute + 5*time.Second)
		select {
		case <-ended:
		default:
			t.Error("its session goes on without a certificate")
		}
		close(stop)
		beats.Wait()
		s.Abort()
		time.Sleep(10 * time.Second)
		for _, i := range []int{1, 2} {
			got := removals(w.node(i).since(time.Time{}))
			if len(got) != 2 || !strings.HasPrefix(got[1], "removed "+incarnation.String()) {
				t.Errorf("node %d: removals %v, want those of node 3's two incarnations only", i, got)
			}
		}
	})
}

// TestTheHostIsLookedForAtFewAddresses: gossip costs a node few dials, whatever its
// contents, and the table and the seeds come first.
func TestTheHostIsLookedForAtFewAddresses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		a := w.node(2).a
		list, _ := ask(a, func() []string {
			for i := range 500 {
				k := gossip.Key{UUID: addr.UUID{9, byte(i), byte(i >> 8)}, Epoch: 1}
				a.gossiped.members[k] = gossip.Member{UUID: k.UUID, Epoch: 1, Meta: gossip.Meta{Host: true, Term: 1 << 60,
					Addresses: []string{fmt.Sprintf("10.9.%d.%d:1", i>>8, i&255), fmt.Sprintf("10.8.%d.%d:1", i>>8, i&255)}}}
			}
			return a.hostAddresses()
		})
		if len(list) > maxHostAddresses || list[0] != dataAddr(1) {
			t.Errorf("the host is looked for at %v, want %s first and %d at most", list, dataAddr(1), maxHostAddresses)
		}
		var mu sync.Mutex
		var dialed []string
		a.dialer.Dial = func(_ context.Context, to string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dialed = append(dialed, to)
			return nil, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
		}
		if _, err := a.openSession(list); err == nil {
			t.Error("a member was reached")
		}
		if mu.Lock(); !slices.Equal(dialed, list) {
			t.Errorf("dialed %v, want each of %v once, in this order", dialed, list)
		}
		mu.Unlock()
	})
}

// TestAddressesOfMembersAreKnown: also of one that is gone, and after a restart.
func TestAddressesOfMembersAreKnown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		known := func(i int) bool { return w.node(1).a.Knows(netip.MustParseAddr(ip(i))) }
		if !known(2) || known(3) {
			t.Errorf("node 2 is known: %v, a stranger: %v", known(2), known(3))
		}
		w.kill(w.node(2))
		time.Sleep(10 * time.Second) // its end is known, and written down
		if !known(2) {
			t.Error("a member that is gone is a stranger")
		}
		w.kill(w.node(1))
		w.again(1)
		if !known(1) || known(3) {
			t.Errorf("after a restart its own address is known: %v, a stranger's: %v", known(1), known(3))
		}
	})
}
