package verdict

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A snapshot has the contents of a backup of a machine's state directory.
type snapshot struct {
	incarnation addr.Incarnation
	known       uint64
	term        uint64
	cursor      addr.NodeID
	floor       addr.Generation
	leases      map[addr.NodeID]Lease
}

func (m *machine) backup() snapshot {
	return snapshot{m.incarnation, m.known, m.term, m.cursor, m.floor, maps.Clone(m.leases)}
}

func (m *machine) restore(s snapshot) {
	m.incarnation, m.known, m.term, m.cursor, m.floor, m.leases = s.incarnation, s.known, s.term, s.cursor, s.floor, maps.Clone(s.leases)
}

// runCopies runs a cluster whose state directories are copied and go back to
// copies at random, whole or in part. It fails through the checker of the world if
// an incarnation is granted twice. Each step takes a second or more, as a restore does.
func runCopies(t testing.TB, seed uint64, countsTerms bool) {
	w := newWorld(t, seed, 2)
	w.countsTerms = countsTerms
	copies := make(map[*machine][]snapshot)
	for _, m := range w.machines {
		w.boot(m)
	}
	w.run(time.Second)
	for range 8 + w.rng.IntN(8) {
		host, m := w.hosts[0], w.machines[w.rng.IntN(len(w.machines))]
		switch w.rng.IntN(8) {
		case 0, 1:
			copies[m] = append(copies[m], m.backup())
		case 2:
			copies[host] = append(copies[host], host.backup())
		case 3, 4: // a directory goes back to a copy; the process may stay away for a while
			if w.rng.IntN(2) == 0 {
				m = host
			}
			w.restoreOne(m, copies[m])
		case 5:
			w.crash(m)
		case 6:
			if m.proc != nil {
				m.proc.stepMember(Depart{})
			}
		case 7: // a machine that is new
			if len(w.machines) < 6 {
				w.boot(w.addMachine(false))
			}
		}
		w.run(time.Second + time.Duration(w.rng.IntN(1000))*time.Millisecond)
		for _, o := range w.machines {
			if o.proc == nil && w.rng.IntN(3) > 0 {
				w.boot(o)
			}
		}
		w.run(time.Duration(w.rng.IntN(1000)) * time.Millisecond)
	}
}

// restoreOne stops a machine and gives it an earlier copy of its directory, or of its
// lease table alone beside the newer term.
func (w *world) restoreOne(m *machine, copies []snapshot) {
	w.crash(m)
	if len(copies) == 0 {
		return
	}
	s := copies[w.rng.IntN(len(copies))]
	if w.rng.IntN(4) == 0 {
		s.term, s.incarnation, s.known = m.term, m.incarnation, m.known
	}
	m.restore(s)
}

func TestNoIncarnationIsGrantedTwice(t *testing.T) {
	first, n := firstSeed(t), uint64(seeds(t, fewSeeds/3))
	t.Logf("%d schedules of copies from seed %d", n, first)
	var next atomic.Uint64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < n && !t.Failed(); i = next.Add(1) - 1 {
				runCopies(t, first+i, false)
			}
		})
	}
	workers.Wait()
}

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed int
}

func (r *recorder) Errorf(string, ...any) { r.failed++ }
func (r *recorder) Helper()               {}

// TestCountedTermsGrantAnIncarnationTwice: the schedules find the failure that terms above the
// age of the cluster prevent.
func TestCountedTermsGrantAnIncarnationTwice(t *testing.T) {
	r := &recorder{TB: t}
	for seed := uint64(1); seed <= 20 && r.failed == 0; seed++ {
		runCopies(r, seed, true)
	}
	if r.failed == 0 {
		t.Error("with terms that are only counted no incarnation is granted twice in 20 schedules")
	}
}

// TestAHostWithAnOldCopyTakesATermOfItsOwn: where the clock does not help, the copy of
// a host's directory begins a term that members know from another process. Before it
// grants anything it takes one above, and a new incarnation with it.
func TestAHostWithAnOldCopyTakesATermOfItsOwn(t *testing.T) {
	for _, known := range []uint64{3, 7} {
		b := newBench(t, Lease{ID: 1, UUID: uuid(1), Generation: 2, Epoch: 10, Name: "n1", State: LeaseActive})
		m := resumeOf(1, addr.Incarnation{Node: 1, Generation: 2})
		m.Term = known
		out := b.in(1, m)
		b.wantRefused(out, 1, RefusedBusy)
		if p, ok := did[Persist](out); !ok || p.Term != known+1 {
			t.Fatalf("known term %d: %+v, want the next one written", known, out)
		}
		b.wantRefused(b.in(2, joinOf(2)), 2, RefusedBusy)
		if r, ok := sent[RemovedIncarnation](b.sync(), LocalSession); !ok || r.Incarnation != (addr.Incarnation{Generation: 3}) {
			t.Errorf("known term %d: the host's own node received %+v, want that its incarnation 0.3 is over", known, b.out)
		}
		if _, ok := b.h.Living(addr.Incarnation{Generation: addr.Generation(known + 1)}); !ok || b.h.Term() != known+1 {
			t.Errorf("known term %d: the host has term %d", known, b.h.Term())
		}
		if g, ok := sent[Grant](b.in(1, m), 1); !ok || g.Incarnation != m.Incarnation || g.Term != known+1 {
			t.Errorf("known term %d: the member got %+v, want its incarnation in the new term", known, b.out)
		}
		m.Term = known + 1
		b.in(1, m)
		if b.h.Term() != known+1 {
			t.Errorf("known term %d: a host that serves took term %d for its own word", known, b.h.Term())
		}
	}
}

// TestANewTermAwaitsClaims: once a node proves an incarnation that the table lacks, newcomers
// wait until the nodes that had IDs have them back.
func TestANewTermAwaitsClaims(t *testing.T) {
	b := newBench(t, Lease{ID: 1, UUID: uuid(1), Generation: 2, Epoch: 10, Name: "n1", State: LeaseActive})
	b.step(Claim{UUID: uuid(1), Incarnation: addr.Incarnation{Node: 1, Generation: 2}, Term: 2})
	first := b.join(2, 2)
	if first != (addr.Incarnation{Node: 2, Generation: 3}) {
		t.Errorf("with nothing missing a newcomer lives as %v, want 2.3 at once", first)
	}
	b.step(Claim{UUID: uuid(4), Incarnation: addr.Incarnation{Node: 3, Generation: 9}, Term: 2})
	b.wantRefused(b.in(5, joinOf(5)), 5, RefusedBusy)
	back := joinOf(4)
	back.Previous, back.Term = addr.Incarnation{Node: 3, Generation: 9}, 2
	b.in(4, back)
	if g, ok := sent[Grant](b.sync(), 4); !ok || g.Incarnation != (addr.Incarnation{Node: 3, Generation: 10}) {
		t.Errorf("the node that claims got %+v, want 3.10", b.out)
	}
	b.wait(b.h.t.Grace, 2, 4)
	if l := b.join(5, 5); l != (addr.Incarnation{Node: 4, Generation: 10}) {
		t.Errorf("a newcomer after the grace period lives as %v, want 4.10: above all that was claimed", l)
	}
}

// TestAGrantOfATakenTermIsTakenBack: a lease that is being written when the host learns
// that its term was another's is granted to no node.
func TestAGrantOfATakenTermIsTakenBack(t *testing.T) {
	b := newBench(t)
	b.in(1, joinOf(1))
	taken := joinOf(2)
	taken.Previous, taken.Term = addr.Incarnation{Node: 1, Generation: 3}, 3
	out := b.in(2, taken)
	b.wantRefused(out, 1, RefusedBusy)
	b.wantRefused(out, 2, RefusedBusy)
	if _, ok := sent[Grant](b.sync(), 1); ok || b.h.Term() != 4 || b.h.Serving() {
		t.Errorf("term %d, serving %v, %+v, want term 4 and no grant", b.h.Term(), b.h.Serving(), b.out)
	}
	b.in(2, taken)
	if g, ok := sent[Grant](b.sync(), 2); !ok || g.Incarnation.Generation < 4 {
		t.Errorf("in the new term: %+v, want an incarnation of generation 4 or later", b.out)
	}
}
