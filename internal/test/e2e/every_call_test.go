package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// silenceLimit bounds how long after a loss a call still waits: the 2 s in
// which the profile fast notices, and a second.
const silenceLimit = 3 * time.Second

// A loss is one way in which a node stops to answer another without a word.
type loss struct {
	name    string
	begin   func(victim, other *node, rest []*node)
	end     func(victim *node)
	removes bool // the victim is removed; else only the pair is reset
	still   bool // the victim's fabricd does not run meanwhile
	passes  bool // TCP, to which the link falls back: a connect succeeds
}

// losses are those of the failure model that say nothing: F5, F13, F14, and F23, for
// which over TCP alone its links are blocked. For kill -9, also of the host (F1, F11),
// see TestKilledNodesAreRemovedOnce.
func (l *lab) losses() []loss {
	t := l.t
	ids := func(nodes ...*node) string {
		var all []string
		for _, n := range nodes {
			all = append(all, n.id())
		}
		return strings.Join(all, ",")
	}
	clear := func(victim *node) { victim.mustFire(); victim.faults("clear") }
	var all []loss
	if l.providers == "tcp" { // which needs no packets
		all = append(all, loss{name: "TCP blocked", end: clear,
			begin: func(victim, other *node, rest []*node) {
				for _, way := range []string{"--from", "--to"} {
					victim.faults("add", way, victim.id(), "--plane", "link", "--cut")
				}
			}})
	} else {
		// First, while their link is over QUIC: the later losses may leave them one over TCP.
		all = append(all, loss{name: "UDP blocked", passes: true, end: clear,
			begin: func(victim, other *node, rest []*node) {
				for _, way := range []string{"--from", "--to"} {
					victim.faults("add", way, victim.id(), "--udp-blocked")
				}
			}})
	}
	return append(all, []loss{
		{name: "stopped for 5 s", removes: true, still: true,
			begin: func(victim, _ *node, _ []*node) { victim.stop(t) },
			end:   func(victim *node) { victim.cont(t) }},
		{name: "partition", removes: true, end: clear,
			begin: func(victim, other *node, rest []*node) {
				victim.faults("add", "--partition", ids(append(rest, other)...)+"/"+victim.id())
			}},
		{name: "cut of one direction", end: clear,
			begin: func(victim, other *node, _ []*node) {
				victim.faults("add", "--from", victim.id(), "--to", other.id(), "--cut")
			}},
		{name: "cut of the other direction", end: clear,
			begin: func(victim, other *node, _ []*node) {
				victim.faults("add", "--from", other.id(), "--to", victim.id(), "--cut")
			}},
	}...)
}

// TestEveryCallEndsAtEverySilentLoss loses a member to another in every silent way,
// with calls of all kinds in both directions. Each ends with the right error, in
// time; so does a connect that follows; and when the loss is over all can talk.
func TestEveryCallEndsAtEverySilentLoss(t *testing.T) { overEach(t, (*lab).loseInEveryWay) }

func (l *lab) loseInEveryWay() {
	t := l.t
	nodes := l.breakable(2)
	host, victim, other := nodes[0], nodes[1], nodes[2]
	for _, k := range l.losses() {
		healthy := l.flow(host, other)
		k.lose(l, host, victim, other)
		l.agree(nodes...)
		l.reconnect(10*time.Second, other, victim)
		healthy.end(t)
		if t.Failed() {
			t.Fatal(k.name)
		}
	}
}

// lose loses victim to other, with everything checked, and ends that.
func (k loss) lose(l *lab, host, victim, other *node) {
	t := l.t
	t.Helper()
	old := victim.incarnation()
	there, here := l.doomed(victim), l.doomed(other)
	calls, own := there.callsFrom(l, other), here.callsFrom(l, victim)
	calls, own = append(calls, here.own...), append(own, there.own...)
	watcher, limit := host.watch(), silenceLimit
	if k.removes {
		calls, limit = append(calls, there.sendsWhenRemoved(l, other)), time.Second
	}
	k.begin(victim, other, []*node{host})
	began := time.Now()
	for _, block := range there.later {
		calls = append(calls, block())
	}
	for _, block := range here.later {
		own = append(own, block())
	}
	time.Sleep(50 * time.Millisecond) // there is no sign that a call blocks
	for _, c := range append(calls, own...) {
		c.blocked(t)
	}

	slowest, slowestOwn := worst(t, calls, began), ""
	if !k.passes {
		refused(t, other.attach(), there, limit)
	}
	switch {
	case k.still:
		time.Sleep(5*time.Second - time.Since(began)) // the pause itself
	default:
		slowestOwn = worst(t, own, began)
		if !k.passes {
			refused(t, victim.attach(), here, limit)
		}
	}
	if k.removes {
		watcher.removed(stepLimit, old)
	}
	k.end(victim)
	if k.still {
		slowestOwn = worst(t, own, time.Now())
	}
	t.Logf("%s: %d calls to it ended, the last one %s; %d of its own, the last one %s", k.name, len(calls), slowest, len(own), slowestOwn)
	switch {
	case k.removes: // which it learns only now
		next := fabric.Incarnation{Node: old.Node, Generation: old.Generation + 1}
		watcher.added(stepLimit, next)
		victim.becomes(next)
	case !k.passes && victim.incarnation() != old:
		t.Errorf("%s: it was %v and is %v", k.name, old, victim.incarnation())
	}
}

// becomes waits until n knows that it is incarnation.
func (n *node) becomes(incarnation fabric.Incarnation) {
	n.l.t.Helper()
	eventually(n.l.t, stepLimit, n.name+" returns", func() error {
		if n.joined(); n.incarnation() != incarnation {
			return fmt.Errorf("it is %v, want %v", n.incarnation(), incarnation)
		}
		return nil
	})
}

// worst waits for calls and says which one took longest.
func worst(t testing.TB, calls []*call, since time.Time) string {
	t.Helper()
	longest, name := time.Duration(0), ""
	for _, c := range calls {
		if took := c.check(t, since, silenceLimit); took > longest {
			longest, name = took, c.name
		}
	}
	return name + " after " + longest.Round(time.Millisecond).String()
}

// refused fails t unless a connect to d, whose node is lost, fails in time: at once
// if the node was removed.
func refused(t testing.TB, app *fabric.Node, d *doomed, limit time.Duration) {
	t.Helper()
	began := time.Now()
	_, err := app.DialAddr(within(t, stepLimit), d.open.Addr().(fabric.Addr))
	if took := time.Since(began); !errors.Is(err, syscall.ENODEV) || took > limit {
		t.Errorf("connect to the lost node: %v after %v, want ENODEV within %v", err, took, limit)
	}
}
