package membership

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestALifeThatItsNodeHasGivenUpIsRemovedWithoutAHost: the host ends a life, tells
// only whom it was, and dies before it gives that node another one. The process is
// there and answers everybody; all the same those who were not told cease to list
// that life, who dials the node as who is dialed by it, and who has seen the life as
// who joined after its end. When the host is back, the node has the next life.
func TestALifeThatItsNodeHasGivenUpIsRemovedWithoutAHost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.host()
		y := w.join(2)
		next := 3
		for lower, higher := false, false; !lower || !higher; next++ {
			n := w.join(next)
			if bytes.Compare(n.a.self.UUID[:], y.a.self.UUID[:]) < 0 {
				lower = true
			} else {
				higher = true
			}
		}
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(2 * time.Second)
		began, over := time.Now(), y.life()

		w.net.SetRules(ip(2), ip(1), netsim.Rules{Cut: true}) // no life is asked for
		tellOnly(w.node(1), y, verdict.RemovedLife{Term: w.node(1).a.member.Term(), Life: over, Reason: verdict.ReasonSilent})
		w.within(time.Second, "the node has given up its life", func() bool { return y.life() == noLife })
		late := w.join(next)
		w.within(100*time.Millisecond, "who joins now lists it", func() bool { return late.a.lists(over) })
		w.kill(w.node(1))
		w.net.Heal()

		took := w.within(4*time.Second, "nobody lists that life", func() bool {
			return !slices.ContainsFunc(w.all, func(n *node) bool { return n.a.lists(over) })
		})
		t.Logf("nobody lists it after %v", took)
		time.Sleep(10 * time.Second)
		w.again(1)
		w.within(10*time.Second, "all see all again", func() bool { return mesh(w.all) })
		time.Sleep(5 * time.Second)
		for _, n := range w.all {
			got := removals(n.since(began))
			got = slices.DeleteFunc(got, func(s string) bool { return s == "removed 0.1 crashed" })
			if n.i > 2 && !slices.Equal(got, []string{"removed " + over.String() + " silent"}) {
				t.Errorf("node %d was told %v besides of the host, want one removal of %v", n.i, got, over)
			}
		}
		if got := y.life(); got.Node != over.Node || got.Generation <= over.Generation {
			t.Errorf("the node is %v in the end, want a later life than %v of the same ID", got, over)
		}
	})
}

// tellOnly has the host tell one node something that it has not decided.
func tellOnly(host, to *node, m verdict.Message) {
	host.a.post(func() {
		for _, s := range host.a.sessions {
			if s.Peer().UUID == to.a.self.UUID {
				s.Send(m)
			}
		}
	})
}

// lists reports whether the agent counts a life as being in the cluster.
func (a *Agent) lists(l addr.Life) bool {
	return slices.ContainsFunc(a.Nodes(), func(n Node) bool { return n.Life == l })
}
