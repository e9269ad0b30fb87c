package membership

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A node is identified by its key, wherever it is: killed at one address and started
// at another one, it has its ID again, and all nodes learn the path to it.
func TestNodeThatComesBackElsewhereKeepsItsID(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		began := time.Now()
		old := w.node(3)
		was, next := old.incarnation(), addr.Incarnation{Node: old.incarnation().Node, Generation: old.incarnation().Generation + 1}
		w.kill(old)
		w.within(time.Second, "its end is known", func() bool { return mesh(w.all) })
		moved := w.start(9, must(state.Open(filepath.Join(w.dir, "3"), state.Options{})), func(c *Config) { c.Node.Name = "n3" })
		w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		if moved.incarnation() != next {
			t.Errorf("at the new address it is %v, want %v", moved.incarnation(), next)
		}
		time.Sleep(10 * time.Second)
		for _, n := range w.all {
			if n == moved {
				continue
			}
			got := n.a.Nodes()
			i := slices.IndexFunc(got, func(x Node) bool { return x.Incarnation == next })
			if i < 0 || got[i].State != verdict.Alive || !slices.Equal(got[i].Addresses(), []string{dataAddr(9)}) {
				t.Errorf("node %d sees %+v, want %v alive at %s", n.i, got, next, dataAddr(9))
			}
			if got := removals(n.since(began)); !slices.Equal(got, []string{"removed " + was.String() + " crashed"}) {
				t.Errorf("node %d: removals %v, want one, of %v", n.i, got, was)
			}
		}
	})
}
