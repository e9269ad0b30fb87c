package membership

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/state"
)

func TestNodesJoinByTokenAndSeeEachOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		if got := w.node(1).incarnation(); got.Node != 0 || got.Generation != 1 {
			t.Errorf("the host lives as %v, want 0.1", got)
		}
		for i := 2; i <= 4; i++ {
			if got := w.node(i).incarnation(); int(got.Node) != i-1 || got.Generation != 1 {
				t.Errorf("node %d lives as %v, want %d.1", i, got, i-1)
			}
			if s := w.node(i).a.Status(); !s.HostReachable || s.Term != 1 || s.Nodes != 3 || s.Gossiping != 3 || s.Lifelines != 2 {
				t.Errorf("node %d: status %+v, want the host reachable, 3 nodes, 2 lifelines", i, s)
			}
		}
	})
}

func TestKilledNodeIsRemovedEverywhereOnceWithinMilliseconds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		victim := w.node(4)
		began := time.Now()
		w.kill(victim)
		want := []string{"removed 3.1 crashed"}
		took := w.within(time.Second, "all know", func() bool {
			for _, n := range w.all {
				if len(removals(n.since(began))) == 0 {
					return false
				}
			}
			return true
		})
		t.Logf("known everywhere after %v", took)
		if took > 100*time.Millisecond {
			t.Errorf("known everywhere after %v, want at most 100ms", took)
		}
		time.Sleep(30 * time.Second)
		for _, n := range w.all {
			if got := words(n.since(began)); !slices.Equal(got, want) {
				t.Errorf("node %d: events %v, want %v", n.i, got, want)
			}
		}
	})
}

func TestRestartKeepsTheIDWithTheNextGeneration(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		began := time.Now()
		w.kill(w.node(3))
		time.Sleep(50 * time.Millisecond)
		back := w.again(3)
		took := w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		t.Logf("back after %v", took)
		if got := back.incarnation(); got != (addr.Incarnation{Node: 2, Generation: 2}) {
			t.Errorf("it lives as %v, want 2.2", got)
		}
		time.Sleep(10 * time.Second)
		for _, n := range w.all {
			got := words(n.since(began))
			if n == back {
				continue
			}
			if len(got) != 2 || !strings.HasPrefix(got[0], "removed 2.1 ") || got[1] != "added 2.2" {
				t.Errorf("node %d: events %v, want removed 2.1, then added 2.2", n.i, got)
			}
		}
	})
}

func TestInstantRestartIsSeenAsOne(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		began := time.Now()
		w.kill(w.node(3))
		w.again(3)
		w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		for _, n := range w.all[:2] {
			got := words(n.since(began))
			if len(got) != 2 || !strings.HasPrefix(got[0], "removed 2.1 ") || got[1] != "added 2.2" {
				t.Errorf("node %d: events %v, want removed 2.1, then added 2.2", n.i, got)
			}
		}
	})
}

func TestHostRestartKeepsEveryIncarnation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		incarnations := make(map[int]addr.Incarnation)
		for _, n := range w.all {
			incarnations[n.i] = n.incarnation()
		}
		began := time.Now()
		w.kill(w.node(1))
		time.Sleep(time.Second)
		w.again(1)
		w.within(5*time.Second, "the host is back", func() bool { return mesh(w.all) })
		time.Sleep(30 * time.Second) // longer than the grace period
		if !mesh(w.all) {
			t.Error("the cluster did not last")
		}
		for _, n := range w.all[:3] {
			if n.incarnation() != incarnations[n.i] {
				t.Errorf("node %d lives as %v, before as %v", n.i, n.incarnation(), incarnations[n.i])
			}
			if got := removals(n.since(began)); !slices.Equal(got, []string{"removed 0.1 crashed"}) {
				t.Errorf("node %d: removals %v, want only the old incarnation of the host", n.i, got)
			}
		}
		if got := w.node(1).incarnation(); got.Node != 0 || got.Generation <= incarnations[1].Generation {
			t.Errorf("the host lives as %v, before as %v, want a later incarnation of node 0", got, incarnations[1])
		}
	})
}

func TestWithoutAHostMembersDecideAlone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		began := time.Now()
		w.kill(w.node(1))
		w.within(time.Second, "all know that the host is lost", func() bool {
			for _, n := range w.all {
				if !slices.Equal(removals(n.since(began)), []string{"removed 0.1 crashed"}) {
					return false
				}
			}
			return true
		})
		time.Sleep(10 * time.Second)
		if !mesh(w.all) {
			t.Error("the others lost each other with the host")
		}
		if s := w.node(2).a.Status(); !s.Alone || s.HostReachable {
			t.Errorf("status %+v, want alone", s)
		}
		killed := time.Now()
		w.kill(w.node(4))
		took := w.within(2*time.Second, "the others decide alone", func() bool { return mesh(w.all) })
		t.Logf("decided alone after %v", took)
		time.Sleep(10 * time.Second)
		for _, n := range w.all {
			if got := removals(n.since(killed)); !slices.Equal(got, []string{"removed 3.1 crashed"}) {
				t.Errorf("node %d: removals %v, want one of 3.1", n.i, got)
			}
		}
	})
}

func TestIsolationOfASecondChangesNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		began := time.Now()
		for _, i := range []int{4, 1} {
			w.isolate(i)
			time.Sleep(time.Second)
			w.net.Heal()
			time.Sleep(20 * time.Second)
		}
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
		if !mesh(w.all) {
			t.Error("the mesh is not whole")
		}
	})
}

func TestIsolatedNodeIsRemovedOnceAndComesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		began := time.Now()
		w.isolate(4)
		time.Sleep(5 * time.Second)
		for _, n := range w.all {
			if n.i == 4 {
				continue
			}
			got := n.since(began)
			if !slices.Equal(words(got), []string{"removed 3.1 silent"}) {
				t.Errorf("node %d: events after 5s of isolation %v, want one removal of 3.1", n.i, words(got))
			} else if took := got[0].at.Sub(began); took > 2*time.Second {
				t.Errorf("node %d knew after %v, want at most 2s", n.i, took)
			}
		}
		w.net.Heal()
		took := w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		t.Logf("back after %v", took)
		time.Sleep(20 * time.Second)
		if got := w.node(4).incarnation(); got != (addr.Incarnation{Node: 3, Generation: 2}) {
			t.Errorf("it lives as %v, want 3.2", got)
		}
		for _, n := range w.all {
			got := words(n.since(began))
			if n.i == 4 {
				if !slices.Contains(got, "reset") || !slices.Contains(got, "self 3.2") {
					t.Errorf("the isolated node: events %v, want a reset and its new incarnation", got)
				}
				continue
			}
			if !slices.Equal(got, []string{"removed 3.1 silent", "added 3.2"}) {
				t.Errorf("node %d: events %v, want one removal and the new incarnation", n.i, got)
			}
		}
	})
}

func TestSplitHeals(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		began := time.Now()
		w.net.Partition([]string{ip(1), ip(2), ip(3)}, []string{ip(4), ip(5)})
		time.Sleep(60 * time.Second)
		left, right := w.all[:3], w.all[3:]
		for _, n := range left {
			if got := removals(n.since(began)); len(got) != 2 {
				t.Errorf("node %d: removals %v, want the two of the other side", n.i, got)
			}
		}
		for _, n := range right {
			if got := removals(n.since(began)); len(got) != 3 || len(n.a.Nodes()) != 1 {
				t.Errorf("node %d: removals %v, sees %v, want only the other of its side left", n.i, got, n.a.Nodes())
			}
		}
		healed := time.Now()
		w.net.Heal()
		took := w.within(5*time.Second, "the split healed", func() bool { return mesh(w.all) })
		t.Logf("healed after %v", took)
		time.Sleep(20 * time.Second)
		for _, n := range left {
			if got := removals(n.since(healed)); len(got) != 0 {
				t.Errorf("node %d: removals after the heal %v, want none", n.i, got)
			}
			if n.incarnation().Generation != 1 {
				t.Errorf("node %d lives as %v, want its first generation", n.i, n.incarnation())
			}
		}
	})
}

func TestLeaveIsReportedWithItsReason(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		leaver := w.node(3)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := leaver.a.Leave(ctx); err != nil {
			t.Errorf("Leave: %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Leave took %v, want at most 2s", took)
		}
		leaver.st.Close()
		w.all = slices.DeleteFunc(w.all, func(n *node) bool { return n == leaver })
		time.Sleep(10 * time.Second)
		for _, n := range w.all {
			got := n.since(began)
			if !slices.Equal(words(got), []string{"removed 2.1 left"}) {
				t.Errorf("node %d: events %v, want removed 2.1 left", n.i, words(got))
				continue
			}
			if d := got[0].at.Sub(began); d > 100*time.Millisecond {
				t.Errorf("node %d knew after %v, want 100ms", n.i, d)
			}
		}
		select {
		case <-leaver.a.Done():
		default:
			t.Error("the agent runs on after Leave")
		}
		back := w.again(3)
		w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		if got := back.incarnation(); got != (addr.Incarnation{Node: 2, Generation: 2}) {
			t.Errorf("it came back as %v, want 2.2", got)
		}
	})
}

func TestJoinStorm(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.host()
		const count = 20
		var wg sync.WaitGroup
		var states [count]*state.State
		for i := range count {
			wg.Go(func() {
				st := must(state.Prepare(filepath.Join(w.dir, fmt.Sprint(i+2)), fmt.Sprint("n", i+2), state.Options{}))
				if err := Join(t.Context(), w.joinConfig(i+2, st, w.token)); err != nil {
					t.Errorf("node %d: %v", i+2, err)
				}
				states[i] = st
			})
		}
		wg.Wait()
		for i, st := range states {
			w.start(i+2, st)
		}
		took := w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		t.Logf("%d nodes see each other after %v", count, took)
		seen := make(map[addr.NodeID]bool)
		for _, n := range w.all {
			if seen[n.incarnation().Node] {
				t.Errorf("ID %d twice", n.incarnation().Node)
			}
			seen[n.incarnation().Node] = true
		}
	})
}
