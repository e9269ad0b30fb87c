package membership

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestARestoredHostGrantsNoIncarnationAgain: the host's directory goes back to a copy that
// was made before a node joined. The next node gets no incarnation that was that node's, and
// no other node is harmed.
func TestARestoredHostGrantsNoIncarnationAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		member, dir, copied := w.node(2), filepath.Join(w.dir, "1"), filepath.Join(w.dir, "copy")
		own := member.incarnation()
		copyDir(t, copied, dir)
		w.join(3)
		w.within(5*time.Second, "the third node is there", func() bool { return mesh(w.all) })
		gone := w.node(3).incarnation()
		w.kill(w.node(3))
		w.within(5*time.Second, "its end is known", func() bool { return mesh(w.all) })
		w.kill(w.node(1))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		copyDir(t, dir, copied)
		w.again(1)
		w.within(5*time.Second, "the host is back", func() bool { return mesh(w.all) })
		began := time.Now()
		next := w.join(4)
		w.within(10*time.Second, "the fourth node is there", func() bool { return mesh(w.all) })
		time.Sleep(20 * time.Second)
		if got := next.incarnation(); got == gone || got.Node == gone.Node && got.Generation <= gone.Generation {
			t.Errorf("the fourth node lives as %v, and the third one did as %v", got, gone)
		}
		if got := member.incarnation(); got != own || !mesh(w.all) {
			t.Errorf("a node that was there all the time lived as %v and lives as %v, events %v", own, got, words(member.since(began)))
		}
		if got := words(member.since(began)); len(got) != 1 || !strings.HasPrefix(got[0], "added ") {
			t.Errorf("it received %v, want the new node and no more", got)
		}
	})
}

// TestARestoredHostLearnsOfIncarnationsThatItLacks: a node lives in an incarnation that the copy does
// not know. It keeps its ID, in a later incarnation.
func TestARestoredHostLearnsOfIncarnationsThatItLacks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		dir, copied := filepath.Join(w.dir, "1"), filepath.Join(w.dir, "copy")
		copyDir(t, copied, dir)
		w.kill(w.node(3))
		late := w.again(3)
		w.within(5*time.Second, "the third node is back", func() bool { return mesh(w.all) })
		old := late.incarnation()
		w.kill(w.node(1))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		copyDir(t, dir, copied)
		w.again(1)
		w.within(20*time.Second, "all are back", func() bool { return mesh(w.all) })
		if got := late.incarnation(); got.Node != old.Node || got.Generation <= old.Generation {
			t.Errorf("it lived as %v and lives as %v, want a later incarnation of the same ID", old, got)
		}
		if host := w.node(1).incarnation(); host.Node != addr.Host {
			t.Errorf("the host lives as %v", host)
		}
	})
}

// TestABackupRestoredUnderARunningCluster: whole agents come, go, are killed and join
// behind a backup of the host, which is then restored. No incarnation is granted to two, those
// that the backup knows go on, and the rest comes back with a token.
func TestABackupRestoredUnderARunningCluster(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) { runRestored(t, w, rand.New(rand.NewPCG(seed, 29))) })
		})
	}
}

func runRestored(t *testing.T, w *world, rng *rand.Rand) {
	w.cluster(3)
	backup := must(w.node(1).st.Backup())
	for i := range 6 {
		switch n := w.node(2 + rng.IntN(2)); rng.IntN(3) {
		case 0:
			w.join(4 + i)
		case 1:
			w.kill(n)
			w.again(n.i)
		case 2:
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			_ = n.a.Leave(ctx) // it may be between two incarnations
			cancel()
			w.kill(n)
			w.again(n.i)
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	if rng.IntN(2) == 0 {
		must(w.node(1).a.RotateGossipKey(t.Context()))
	}
	w.within(20*time.Second, "all are there", func() bool { return mesh(w.all) })
	w.kill(w.node(1))
	if kept := must(state.Restore(filepath.Join(w.dir, "1"), backup, true, state.Options{})); kept == "" {
		t.Error("nothing was kept")
	}
	w.again(1)
	w.within(40*time.Second, "the nodes of the backup are back", func() bool { return w.sees(1, 2) && w.sees(1, 3) })
	w.join(20)
	w.within(20*time.Second, "a new node is there", func() bool { return w.sees(2, 20) && w.sees(20, 3) })
	w.eachIncarnationIsOneNodes()
}

// sees reports whether node i has the present incarnation of node j among those that live.
func (w *world) sees(i, j int) bool {
	for _, n := range w.node(i).a.Nodes() {
		if n.Incarnation == w.node(j).incarnation() && n.State == verdict.Alive {
			return true
		}
	}
	return false
}

// eachIncarnationIsOneNodes checks by the events of every start of every node that no incarnation was
// that of two starts.
func (w *world) eachIncarnationIsOneNodes() {
	w.t.Helper()
	owner := map[addr.Incarnation]*node{}
	for _, n := range w.every {
		for _, e := range n.since(time.Time{}) {
			if e.Kind != verdict.EventSelf {
				continue
			}
			if o := owner[e.Node.Incarnation]; o != nil && o != n {
				w.t.Errorf("incarnation %v was granted to node %d and to node %d", e.Node.Incarnation, o.i, n.i)
			}
			owner[e.Node.Incarnation] = n
		}
	}
}

func copyDir(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}
