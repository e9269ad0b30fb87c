package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults"
)

// breakable makes a host and members that were started for faults.
func (l *lab) breakable(members int) []*node {
	l.t.Helper()
	all := []*node{l.host("--enable-faults")}
	for i := range members {
		n := l.member(all[0], fmt.Sprintf("member-%d", i+1), "--enable-faults")
		n.start()
		all = append(all, n)
	}
	l.agree(all...)
	return all
}

// faults runs `fabricd faults` for n and returns what it printed.
func (n *node) faults(args ...string) string {
	n.l.t.Helper()
	out, err := n.l.fabricd(append([]string{"faults", args[0], "--admin", n.adminSocket()}, args[1:]...)...)
	if err != nil {
		n.l.t.Fatal(err)
	}
	return out
}

// fired returns what the faults of n's links did, those that are over too.
func (n *node) fired() (all []faults.Status) {
	n.l.t.Helper()
	var list struct {
		Faults []faults.Status `json:"faults"`
	}
	if err := json.Unmarshal([]byte(n.faults("list", "--json", "--ended")), &list); err != nil {
		n.l.t.Fatal(err)
	}
	return list.Faults
}

// mustFire fails the test if a fault of n did nothing.
func (n *node) mustFire() {
	n.l.t.Helper()
	all := n.fired()
	for _, st := range all {
		if st.Counts.Fired() == 0 {
			n.l.t.Errorf("%s: fault %d did nothing: %v", n.name, st.Rule.ID, st.Rule)
		}
	}
	if len(all) == 0 {
		n.l.t.Errorf("%s: there was no fault", n.name)
	}
}

// id returns the node's ID as text.
func (n *node) id() string { return fmt.Sprint(n.place.ID) }

// reconnect waits until an application at n can talk to one at m again.
func (l *lab) reconnect(limit time.Duration, n, m *node) {
	l.t.Helper()
	listener, err := m.attach().Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer listener.Close()
	go func() { // until the listener is closed
		for {
			c, err := listener.AcceptConn(within(l.t, stepLimit))
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello")) // the reader says whether it came
			c.Close()
		}
	}()
	eventually(l.t, limit, fmt.Sprintf("%s talks to %s", n.name, m.name), func() error {
		c, err := n.attach().Dial(within(l.t, 2*time.Second), listener.Addr().(fabric.Addr))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 5))
		return err
	})
}

// TestOneWayCutResetsThePairOnBothSides cuts what one member sends to another,
// at the sender only. Nobody is removed: the two have lost only each other.
func TestOneWayCutResetsThePairOnBothSides(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	a, b := nodes[1], nodes[2]
	var watchers []*watcher
	for _, n := range nodes {
		watchers = append(watchers, n.watch())
	}
	pair := l.pair(a, b)
	pair.pace(t, 5)
	healthy := l.flow(nodes[0], a)

	out := a.faults("add", "--from", a.id(), "--to", b.id(), "--cut", "--name", "one-way")
	if want := fmt.Sprintf("fault 1: all %s→%s cut", a.id(), b.id()); strings.TrimSpace(out) != want {
		t.Errorf("faults add printed %q, want %q", out, want)
	}
	began := time.Now()
	if err := pair.trip(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("round trip over the cut: %v, want ECONNRESET", err)
	}
	near := time.Since(began)
	select {
	case err := <-pair.errs:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the other end: %v, want ECONNRESET", err)
		}
	case <-time.After(stepLimit):
		t.Error("the other end heard nothing")
	}
	t.Logf("the sender saw ECONNRESET after %v, both ends after %v", near.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))

	st, err := a.status()
	if err != nil || !st.FaultsEnabled || len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "cut") {
		t.Errorf("status during the cut: %v, %q, %v", st.FaultsEnabled, st.Warnings, err)
	}
	if h, err := a.admin.Health(t.Context()); err != nil || !h.Healthy || !strings.Contains(h.Detail, "1 fault is active") {
		t.Errorf("health during the cut: %+v, %v", h, err)
	}
	a.mustFire()
	if out := a.faults("clear", "--name", "one-way"); strings.TrimSpace(out) != "cleared 1 fault" {
		t.Errorf("faults clear printed %q", out)
	}
	l.reconnect(10*time.Second, a, b)
	healthy.end(t)
	for _, w := range watchers {
		w.saw("")
	}
	l.agree(nodes...)
}

// TestPartitionGivenToOneNodeRemovesIt cuts a member from all others, both ways,
// by asking that member alone.
func TestPartitionGivenToOneNodeRemovesIt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	host, healthyOne, lost := nodes[0], nodes[1], nodes[2]
	old := lost.life()
	var watchers []*watcher
	for _, n := range nodes[:2] {
		watchers = append(watchers, n.watch())
	}
	healthy := l.flow(host, healthyOne)

	lost.faults("add", "--partition", host.id()+","+healthyOne.id()+"/"+lost.id(), "--for", "20s", "--name", "split")
	began := time.Now()
	for _, w := range watchers {
		ev := w.removed(10*time.Second, old)
		t.Logf("%s: NODE_REMOVED %v after the partition: %s", w.name, ev.at.Sub(began).Round(time.Millisecond), ev.Reason)
	}
	lost.mustFire()
	lost.faults("clear")
	began = time.Now()
	next := fabric.Life{Node: old.Node, Generation: old.Generation + 1}
	for _, w := range watchers {
		w.added(10*time.Second, next)
	}
	t.Logf("it is back %v after the partition has ended", time.Since(began).Round(time.Millisecond))
	lost.joined()
	if lost.life() != next {
		t.Errorf("it holds that it is %v, the others that it is %v", lost.life(), next)
	}
	healthy.end(t)
	l.agree(nodes...)
	l.reconnect(10*time.Second, healthyOne, lost)
}

// TestLossAndDelayOfPacketsAreInvisible loses a tenth of all packets of links and
// gossip between the host and a member, and delays the rest.
func TestLossAndDelayOfPacketsAreInvisible(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(1)
	var watchers []*watcher
	for _, n := range nodes {
		watchers = append(watchers, n.watch())
	}
	e := l.pair(nodes[0], nodes[1])
	before := e.pace(t, 50)
	for _, n := range nodes {
		for _, plane := range []string{"link", "gossip"} {
			n.faults("add", "--plane", plane, "--at", "from", "--drop", "10%", "--duplicate", "5%", "--corrupt", "1%", "--delay", "5ms", "--jitter", "5ms")
		}
	}
	after := e.pace(t, 100)
	t.Logf("median round trip %v before, %v with 5 to 10 ms each way and 10 %% loss", before.Round(time.Microsecond), after.Round(time.Microsecond))
	if after < 10*time.Millisecond {
		t.Errorf("a median of %v is less than the delays", after)
	}
	for _, n := range nodes {
		// One packet in a hundred is corrupted: a few hundred may have none.
		for rounds := 0; n.untouched(faults.Link) != "" && rounds < 50; rounds++ {
			e.pace(t, 50)
		}
		if what := n.untouched(faults.Link); what != "" {
			t.Error(what)
		}
		n.mustFire()
	}
	for _, w := range watchers {
		w.saw("")
	}
	l.agree(nodes...)
}

// untouched says what a rule for this traffic, which drops, delays, duplicates and
// corrupts, has not yet done to any packet; empty if it has done each.
func (n *node) untouched(on faults.Traffic) string {
	for _, st := range n.fired() {
		c := st.Counts
		if st.Rule.On == on && (c.Dropped == 0 || c.Delayed == 0 || c.Duplicated == 0 || c.Corrupted == 0) {
			return fmt.Sprintf("%s: %v: %+v", n.name, st.Rule, c)
		}
	}
	return ""
}

// TestFaultsAreRefusedUnlessEnabled asks a node that was started without them.
func TestFaultsAreRefusedUnlessEnabled(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	n := l.host()
	for _, args := range [][]string{
		{"add", "--cut"}, {"list"}, {"clear"}, {"add", "--node", "crash"},
	} {
		_, err := l.fabricd(append([]string{"faults", args[0], "--admin", n.adminSocket()}, args[1:]...)...)
		if err == nil || !strings.Contains(err.Error(), "faults are off at this node") || strings.Count(err.Error(), "\n") > 1 {
			t.Errorf("%v: %v", args, err)
		}
	}
	st, err := n.status()
	if err != nil || st.FaultsEnabled || len(st.Warnings) > 0 {
		t.Errorf("status: %v, %q, %v", st.FaultsEnabled, st.Warnings, err)
	}
}
