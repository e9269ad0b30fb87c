package membership

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

func TestEveryIncarnationHasASignedLeaseOnDisk(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		for _, n := range w.all {
			lease, ok := n.st.Lease()
			if !ok || lease.Incarnation != n.incarnation() {
				t.Fatalf("node %d remembers %+v, want incarnation %v", n.i, lease, n.incarnation())
			}
			other := w.all[(n.i)%len(w.all)]
			got, err := control.VerifyLease(must(LoadTrust(other.st, time.Now)), lease.Signed)
			self := n.a.Self()
			want := control.Lease{Cluster: n.st.Identity().Cluster, UUID: self.UUID, Key: n.a.cfg.Trust.Identity().Key, Epoch: self.Epoch,
				Incarnation: self.Incarnation, Term: 1, Since: got.Since, Name: self.Name()}
			if err != nil || got != want || got.Since.IsZero() {
				t.Errorf("node %d reads the lease of node %d as %+v, %v, want %+v", other.i, n.i, got, err, want)
			}
			if len(lease.Signed) > 1024 {
				t.Errorf("a lease has %d bytes, want at most 1024", len(lease.Signed))
			}
		}
	})
}

// call opens a lifeline from node `from` to node `to`, which presents end and
// lease as its own.
func (w *world) call(from, to *node, end control.End, lease []byte) error {
	d := control.Dialer{Store: must(LoadTrust(from.st, time.Now)), Dial: w.dial(from.i),
		Self: func() (control.End, []byte) { return end, lease }}
	up, err := d.Lifeline(w.t.Context(), dataAddr(to.i), control.Target{}, nil)
	if err == nil {
		up.Abort()
	}
	return err
}

// wantRefused checks that both ends of a refused lifeline say why.
func (w *world) wantRefused(what string, err error, at *node, text string) {
	w.t.Helper()
	var r *control.RefusedError
	if !errors.As(err, &r) || !r.Remote || !strings.Contains(r.Text, text) {
		w.t.Errorf("%s: the caller's error is %v, want a refusal that says %q", what, err, text)
	}
	time.Sleep(100 * time.Millisecond)
	if !strings.Contains(at.logged(), text) {
		w.t.Errorf("%s: the log of node %d does not say %q", what, at.i, text)
	}
}

func TestNobodyPassesForAnotherIncarnation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		mallory, victim, target := w.node(2), w.node(3), w.node(4)
		began := time.Now()
		stolen, own := must2(victim.st.Lease()), must2(mallory.st.Lease())
		as := control.End{UUID: mallory.st.Identity().Node, Epoch: 99, Incarnation: victim.incarnation(), Term: 1}
		w.wantRefused("with a stolen lease", w.call(mallory, target, as, stolen.Signed), target, "its lease is that of node")
		w.wantRefused("without a lease", w.call(mallory, target, as, nil), target, "not a statement signed")
		w.wantRefused("with its own lease", w.call(mallory, target, as, own.Signed), target, "shows the lease of incarnation")
		forged := append([]byte(nil), stolen.Signed...)
		forged[len(forged)-1] ^= 1
		w.wantRefused("with a forged lease", w.call(mallory, target, as, forged), target, "not a statement signed")
		time.Sleep(5 * time.Second)
		for _, n := range w.all {
			if got := words(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: events %v, want none", n.i, got)
			}
		}
	})
}

func must2[T any](v T, ok bool) T {
	if !ok {
		panic("nothing there")
	}
	return v
}

func TestLeaseOfAnEarlierTermIsRefusedWhereItsIncarnationIsUnknown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		old := w.node(3)
		lease := must2(old.st.Lease())
		as := control.End{UUID: old.st.Identity().Node, Epoch: old.a.Self().Epoch, Incarnation: old.incarnation(), Term: 1}
		w.kill(old)
		w.kill(w.node(1))
		time.Sleep(time.Second)
		w.again(1)
		w.within(10*time.Second, "the dead node is gone", func() bool { return mesh(w.all) })
		w.join(4)
		w.within(5*time.Second, "a new node is there", func() bool { return mesh(w.all) })
		old.st = must(state.Open(filepath.Join(w.dir, "3"), state.Options{}))
		w.wantRefused("at a node that saw its end", w.call(old, w.node(2), as, lease.Signed), w.node(2), "incarnation 2.1 is over")
		w.wantRefused("at a node that came later", w.call(old, w.node(4), as, lease.Signed), w.node(4),
			fmt.Sprintf("the lease of incarnation 2.1 is of term 1; the host of term %d does not know that incarnation", w.node(1).incarnation().Generation))
	})
}

func TestATermWithoutALeaseMovesNoHost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		liar := w.node(3)
		w.kill(liar)
		liar.st = must(state.Open(filepath.Join(w.dir, "3"), state.Options{}))
		time.Sleep(time.Second)
		end := control.End{UUID: liar.st.Identity().Node, Epoch: 99, Term: 1000}
		d := control.Dialer{Store: must(LoadTrust(liar.st, time.Now)), Dial: w.dial(3),
			Self: func() (control.End, []byte) { return end, nil }}
		s := must(d.Session(t.Context(), dataAddr(1)))
		got := make(chan any, 8)
		s.Start(func(m any) {
			if _, ok := m.(verdict.Grant); ok {
				got <- m
			}
		}, func(verdict.DownCause, error) {})
		s.Send(verdict.Join{Identity: claims(end, "n3", dataAddr(3)), Previous: addr.Incarnation{Node: 1, Generation: 1}, Term: 1000})
		if g := (<-got).(verdict.Grant); g.Incarnation != (addr.Incarnation{Node: 2, Generation: 2}) || g.Term != 1 {
			t.Errorf("granted %+v, want the node's own ID, in term 1", g)
		}
		if err := w.node(1).a.Err(); err != nil {
			t.Errorf("the host ended: %v", err)
		}
		s.Abort()
		<-s.Done()
		liar.st.Close()
	})
}

func TestALeaseThatProvesNothingIsLeftOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		n := w.node(3)
		lease := must2(n.st.Lease())
		w.kill(n)
		st := must(state.Open(filepath.Join(w.dir, "3"), state.Options{}))
		lease.Signed[len(lease.Signed)-1] ^= 1
		if err := st.PutLease(lease); err != nil {
			t.Fatal(err)
		}
		back := w.start(3, st)
		w.within(5*time.Second, "it is back", func() bool { return mesh(w.all) })
		if got := back.incarnation(); got != (addr.Incarnation{Node: 2, Generation: 2}) {
			t.Errorf("it lives as %v, want 2.2: the host knows it by its UUID", got)
		}
		if !strings.Contains(back.logged(), "the remembered lease proves nothing") {
			t.Error("the log does not say that the lease was left out")
		}
	})
}

func TestLostLeaseTableIsRebuiltFromTheLeasesOfTheNodes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		incarnations := make(map[int]addr.Incarnation)
		for _, n := range w.all[1:] {
			incarnations[n.i] = n.incarnation()
		}
		w.kill(w.node(1))
		w.kill(w.node(4)) // it comes back from its disk, the others are alive
		dir := filepath.Join(w.dir, "1")
		if err := os.WriteFile(filepath.Join(dir, "leases.db"), make([]byte, 8192), 0o600); err != nil {
			t.Fatal(err)
		}
		if st, err := state.Open(dir, state.Options{}); err == nil {
			st.Close()
			t.Fatal("a damaged lease table is accepted")
		} else if !strings.Contains(err.Error(), "--rebuild-leases") {
			t.Errorf("error %v, want the advice to rebuild", err)
		}
		wrong := func() time.Time { return time.Unix(1_600_000_000, 0) }
		st := must(state.Open(dir, state.Options{RebuildLeases: true, Now: wrong}))
		floor := st.Leases().Floor()
		if floor != 1_600_000_000 {
			t.Fatalf("floor %d, want the clock's", floor)
		}
		w.start(1, st)
		w.again(4)
		w.join(5)
		w.within(15*time.Second, "all are back", func() bool { return mesh(w.all) })
		for i, old := range incarnations {
			now := w.node(i).incarnation()
			if now.Node != old.Node || now.Generation <= floor {
				t.Errorf("node %d lived as %v and lives as %v, want node %v with a generation above %d", i, old, now, old.Node, floor)
			}
		}
		if got := w.node(5).incarnation(); got != (addr.Incarnation{Node: 4, Generation: floor + 1}) {
			t.Errorf("the newcomer lives as %v, want 4.%d: no ID that was claimed", got, floor+1)
		}
		// And once more, with a floor below the leases.
		w.kill(w.node(1))
		before := w.node(2).incarnation()
		if err := os.Remove(filepath.Join(dir, "leases.db")); err != nil {
			t.Fatal(err)
		}
		wrong = func() time.Time { return time.Unix(1_590_000_000, 0) }
		w.start(1, must(state.Open(dir, state.Options{RebuildLeases: true, Now: wrong})))
		w.within(15*time.Second, "all are back again", func() bool { return mesh(w.all) })
		if now := w.node(2).incarnation(); now.Node != before.Node || now.Generation <= before.Generation {
			t.Errorf("with a clock that went back: node 2 lived as %v and lives as %v, want a later generation", before, now)
		}
	})
}

// TestALookAtAHostShowsNoIncarnation: the host of another side of a split does not know
// the incarnation of one that looks, and would refuse it.
func TestALookAtAHostShowsNoIncarnation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		host, n := w.node(1), w.node(3)
		n.a.view.mu.Lock()
		n.a.view.self.Incarnation = addr.Incarnation{Node: 99, Generation: 1} // which no host knows
		n.a.view.mu.Unlock()
		self := host.a.Self()
		at := gossip.Member{UUID: self.UUID, Epoch: self.Epoch, Meta: gossip.Meta{Addresses: self.Addresses()}}
		if term, found := n.a.askHost(at); !found || term != 1 {
			t.Errorf("the look found %v, term %d; the host says: %s", found, term, host.logged())
		}
	})
}
