package membership

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestAnIncarnationThatItsNodeHasGivenUpIsRemovedWithoutAHost: the host ends an incarnation, notifies
// only the node that had it, and dies before it gives that node another one. The process
// runs and answers all; still the members that were not notified cease to list that
// incarnation: those that dial the node and those it dials, those that have seen the incarnation and
// those that joined after its end. When the host is back, the node has the next incarnation.
func TestAnIncarnationThatItsNodeHasGivenUpIsRemovedWithoutAHost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		early := []*node{w.node(2), w.node(3), w.node(4)}
		slices.SortFunc(early, func(a, b *node) int { return compare(a.st, b.st) })
		y := early[1] // one of the others dials it, the other one is dialed
		began, over := time.Now(), y.incarnation()

		w.net.SetRules(ip(y.i), ip(1), netsim.Rules{Cut: true}) // no incarnation is asked for
		sendOnly(w.node(1), y, verdict.RemovedIncarnation{Term: w.node(1).a.member.Term(), Incarnation: over, Reason: verdict.ReasonSilent})
		w.within(time.Second, "the node has given up its incarnation", func() bool { return y.incarnation() == noIncarnation })
		late := []*node{w.joinBeside(5, y, -1), w.joinBeside(6, y, 1)}
		w.within(100*time.Millisecond, "a node that joins now lists it", func() bool {
			return !slices.ContainsFunc(late, func(n *node) bool { return !n.a.lists(over) })
		})
		w.kill(w.node(1))
		w.net.Heal()

		took := w.within(4*time.Second, "no node lists that incarnation", func() bool {
			return !slices.ContainsFunc(w.all, func(n *node) bool { return n.a.lists(over) })
		})
		t.Logf("no node lists it after %v", took)
		time.Sleep(10 * time.Second)
		w.again(1)
		w.within(10*time.Second, "all see all again", func() bool { return mesh(w.all) })
		time.Sleep(5 * time.Second)
		for _, n := range w.all {
			got := removals(n.since(began))
			got = slices.DeleteFunc(got, func(s string) bool { return s == "removed 0.1 crashed" })
			if n != y && n.i > 1 && !slices.Equal(got, []string{"removed " + over.String() + " silent"}) {
				t.Errorf("node %d received %v besides of the host, want one removal of %v", n.i, got, over)
			}
		}
		if got := y.incarnation(); got.Node != over.Node || got.Generation <= over.Generation {
			t.Errorf("the node is %v in the end, want a later incarnation than %v of the same ID", got, over)
		}
	})
}

// compare orders nodes as lifelines do: the lower one dials.
func compare(a, b *state.State) int {
	u, v := a.Identity().Node, b.Identity().Node
	return bytes.Compare(u[:], v[:])
}

// joinBeside joins as node i with a UUID on the given side of that of y.
func (w *world) joinBeside(i int, y *node, side int) *node {
	w.t.Helper()
	dir := filepath.Join(w.dir, fmt.Sprint(i))
	for {
		st := must(state.Prepare(dir, fmt.Sprintf("n%d", i), state.Options{}))
		right := compare(st, y.st) == side
		st.Close()
		if right {
			return w.join(i)
		}
		if err := os.RemoveAll(dir); err != nil {
			w.t.Fatal(err)
		}
	}
}

// sendOnly has the host send one node a message about something that it has not decided.
func sendOnly(host, to *node, m verdict.Message) {
	host.a.post(func() {
		for _, s := range host.a.sessions.open {
			if s.Peer().UUID == to.a.self.UUID {
				s.Send(m)
			}
		}
	})
}

// lists reports whether the agent counts an incarnation as being in the cluster.
func (a *Agent) lists(l addr.Incarnation) bool {
	return slices.ContainsFunc(a.Nodes(), func(n Node) bool { return n.Incarnation == l })
}
