package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults"
)

// breakable makes a host and members that were started for faults.
func (l *lab) breakable(members int) []*node { return l.cluster(members, "--enable-faults") }

// faults runs `fabricd faults` for n and returns its output.
func (n *node) faults(args ...string) string {
	n.l.t.Helper()
	out, err := n.l.fabricd(append([]string{"faults", args[0], "--admin", n.adminSocket()}, args[1:]...)...)
	if err != nil {
		n.l.t.Fatal(err)
	}
	return out
}

// fired returns the counts of the faults of n's links, those that are over too.
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
		c, err := n.attach().DialAddr(within(l.t, 2*time.Second), listener.Addr().(fabric.Addr))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 5))
		return err
	})
}

// TestOneWayCutResetsThePairOnBothSides cuts the packets from one member to another,
// at the sender only. No node is removed: the two have lost only each other.
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
		t.Error("the other end received nothing")
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
	old := lost.incarnation()
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
	lost.returns(old, watchers)
	t.Logf("it is back %v after the partition has ended", time.Since(began).Round(time.Millisecond))
	healthy.end(t)
	l.agree(nodes...)
	l.reconnect(10*time.Second, healthyOne, lost)
}

// returns waits until n, whose incarnation old is over, is back with its next one: all
// watchers see that, and n reports it too.
func (n *node) returns(old fabric.Incarnation, watchers []*watcher) {
	t := n.l.t
	t.Helper()
	next := fabric.Incarnation{Node: old.Node, Generation: old.Generation + 1}
	for _, w := range watchers {
		w.added(10*time.Second, next)
	}
	n.joined()
	if n.incarnation() != next {
		t.Errorf("it holds that it is %v, the others that it is %v", n.incarnation(), next)
	}
}

// TestPartitionOfOneDirectionRemovesTheNodeThatReceivesNothing cuts the packets from all others to a
// member, by asking that member alone. Its own packets still pass, but it gives up
// itself, and is removed for it.
func TestPartitionOfOneDirectionRemovesTheNodeThatReceivesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	host, healthyOne, lost := nodes[0], nodes[1], nodes[2]
	old := lost.incarnation()
	var watchers []*watcher
	for _, n := range nodes[:2] {
		watchers = append(watchers, n.watch())
	}
	healthy := l.flow(host, healthyOne)
	pair := l.pair(lost, healthyOne)
	pair.pace(t, 5)

	out := lost.faults("add", "--partition", host.id()+","+healthyOne.id()+"/"+lost.id(), "--direction", "asymmetric", "--name", "split")
	if want := fmt.Sprintf("fault 1: all %s,%s→%s cut", host.id(), healthyOne.id(), lost.id()); strings.TrimSpace(out) != want {
		t.Errorf("faults add printed %q, want %q and nothing of the other direction", out, want)
	}
	began := time.Now()
	if err := pair.trip(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("round trip of a node that receives nothing: %v, want ECONNRESET", err)
	}
	for _, w := range watchers {
		ev := w.removed(10*time.Second, old)
		t.Logf("%s: NODE_REMOVED %v after the cut: %s", w.name, ev.at.Sub(began).Round(time.Millisecond), ev.Reason)
	}
	lost.mustFire()
	lost.faults("clear", "--name", "split")
	lost.returns(old, watchers)
	healthy.end(t)
	l.agree(nodes...)
	l.reconnect(10*time.Second, healthyOne, lost)
}

// TestPartialPartitionRemovesNobody cuts a member from two others, which reach each
// other, as all reach the host: connections across the cuts end, and no others.
func TestPartialPartitionRemovesNobody(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(3)
	host, left, middle, right := nodes[0], nodes[1], nodes[2], nodes[3]
	var watchers []*watcher
	for _, n := range nodes {
		watchers = append(watchers, n.watch())
	}
	healthy := []*flow{l.flow(left, right), l.flow(host, middle)}
	across := []*echo{l.pair(left, middle), l.pair(middle, right)}
	for _, p := range across {
		p.pace(t, 5)
	}
	middle.faults("add", "--partition", left.id()+"/"+middle.id()+"/"+right.id(), "--direction", "partial")
	for i, p := range across {
		if err := p.trip(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("round trip over cut %d: %v, want ECONNRESET", i, err)
		}
	}
	middle.mustFire()
	if n := len(middle.fired()); n != 4 {
		t.Errorf("%d faults, want one of each direction of two cuts", n)
	}
	middle.faults("clear")
	l.reconnect(10*time.Second, left, middle)
	l.reconnect(10*time.Second, right, middle)
	for _, f := range healthy {
		f.end(t)
	}
	for _, w := range watchers {
		w.saw("")
	}
	l.agree(nodes...)
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

// TestEachFaultOfPacketsIsListed breaks the packets between the host and a member
// in one way at a time: the list counts just that, and the applications' bytes
// come back intact meanwhile.
func TestEachFaultOfPacketsIsListed(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(1)
	host, member := nodes[0], nodes[1]
	watch := host.watch()
	e := l.pair(host, member)
	for _, plane := range []string{"link", "all"} {
		for kind, effects := range map[string]func(faults.Counters) uint64{
			"drop":      func(c faults.Counters) uint64 { return c.Dropped },
			"duplicate": func(c faults.Counters) uint64 { return c.Duplicated },
			"reorder":   func(c faults.Counters) uint64 { return c.Reordered },
			"corrupt":   func(c faults.Counters) uint64 { return c.Corrupted },
		} {
			name := plane + "-" + kind
			host.faults("add", "--plane", plane, "--to", member.id(), "--"+kind, "20%", "--name", name)
			// Over TCP only heartbeats can come twice, and few of them pass in a round.
			for began, rounds := time.Now(), 0; rounds < 3 || effects(host.counts(name)) == 0 && time.Since(began) < stepLimit; rounds++ {
				e.exact(t, 32<<10)
			}
			if c := host.counts(name); effects(c) == 0 || effects(c) != c.Fired() || effects(c) >= c.Seen {
				t.Errorf("%s: %+v, want some of its own and nothing else", name, c)
			}
			host.faults("clear", "--name", name)
		}
	}
	watch.saw("")
	l.agree(nodes...)
}

// TestHalfOpenLinkIsListed lets two members forget each other: their connection
// ends, the next one is refused, and the list counts both.
func TestHalfOpenLinkIsListed(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"link", "all"} {
		t.Run(plane, func(t *testing.T) {
			l := newLab(t)
			nodes := l.breakable(2)
			host, a, b := nodes[0], nodes[1], nodes[2]
			watch := host.watch()
			healthy := l.flow(host, a)
			e := l.pair(a, b)
			e.exact(t, 32<<10)
			a.faults("add", "--plane", plane, "--from", a.id(), "--to", b.id(), "--half-open", "--name", "half")
			a.faults("add", "--plane", plane, "--from", b.id(), "--to", a.id(), "--half-open", "--name", "half")
			if err := e.trip(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("round trip over a half-open link: %v, want ECONNRESET", err)
			}
			if c, err := a.attach().DialAddr(within(t, stepLimit), fabric.Addr{Node: b.place.ID, Port: 1}); err == nil {
				t.Error("connected over a half-open link")
				c.Close()
			}
			if c := a.counts("half"); c.Stopped == 0 || c.Refused == 0 || c.Fired() != c.Stopped+c.Refused {
				t.Errorf("%+v, want what was stopped and what was refused", c)
			}
			a.faults("clear", "--name", "half")
			l.reconnect(10*time.Second, a, b)
			l.pair(a, b).exact(t, 32<<10)
			healthy.end(t)
			watch.saw("")
			l.agree(nodes...)
		})
	}
}

// counts returns the sum of the counters of the faults of n's links with a name.
func (n *node) counts(name string) (sum faults.Counters) {
	n.l.t.Helper()
	for _, st := range n.fired() {
		if c := st.Counts; st.Rule.Name == name {
			sum.Seen += c.Seen
			sum.Dropped += c.Dropped
			sum.Stopped += c.Stopped
			sum.Duplicated += c.Duplicated
			sum.Reordered += c.Reordered
			sum.Corrupted += c.Corrupted
			sum.Refused += c.Refused
			sum.Delayed += c.Delayed
			sum.Reset += c.Reset
		}
	}
	return sum
}

// exact sends n bytes there and expects them back.
func (e *echo) exact(t *testing.T, n int) {
	t.Helper()
	sent, back := make([]byte, n), make([]byte, n)
	for i := range sent {
		sent[i] = byte(i ^ i>>8 ^ i>>16)
	}
	if err := e.conn.SetDeadline(time.Now().Add(stepLimit)); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { _, err := e.conn.Write(sent); wrote <- err }()
	if _, err := io.ReadFull(e.conn, back); err != nil || !bytes.Equal(sent, back) {
		t.Fatalf("%d bytes there and back, as they were: %v, %v", n, bytes.Equal(sent, back), err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
}

// untouched names the effects that a rule for this traffic, which drops, delays, duplicates
// and corrupts, has not yet had on any packet; empty if it has had each.
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
		ended, ok := errors.AsType[*exec.ExitError](err)
		if !ok || ended.ExitCode() != 1 || !strings.Contains(err.Error(), "faults are off at this node") || strings.Count(err.Error(), "\n") > 1 {
			t.Errorf("%v: %v, want exit code 1 and one line", args, err)
		}
	}
	st, err := n.status()
	if err != nil || st.FaultsEnabled || len(st.Warnings) > 0 {
		t.Errorf("status: %v, %q, %v", st.FaultsEnabled, st.Warnings, err)
	}
}
