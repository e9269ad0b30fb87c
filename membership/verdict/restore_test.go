package verdict

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// restoreStep is how far a restored table is above its backup (membership/state).
const restoreStep = 1 << 20

// restored is a backup as `fabricd restore` leaves it: the terms, and every generation
// that is granted, begin far above it.
func (s snapshot) restored() snapshot {
	last := s.term
	for _, l := range s.leases {
		last = max(last, uint64(l.Generation))
	}
	s.term = max(last, uint64(s.floor)) + restoreStep
	s.floor = addr.Generation(s.term)
	return s
}

// runRestored runs a cluster in which nodes come and go faster than a second, under a
// clock that is of no use, restores the host's first backup, and goes on. The
// checker of the world fails if an incarnation is granted twice.
func runRestored(t testing.TB, seed uint64, restore func(snapshot) snapshot) {
	w := newWorld(t, seed, 3)
	w.countsTerms = true
	for _, m := range w.machines {
		w.boot(m)
	}
	w.run(time.Second)
	host := w.hosts[0]
	backup := host.backup()
	w.churn(10 + w.rng.IntN(20))
	w.crash(host)
	host.restore(restore(backup))
	w.churn(w.rng.IntN(4)) // no node, or some, before the host is back
	w.boot(host)
	w.churn(10 + w.rng.IntN(20))
	w.run(30 * time.Second)
}

// churn ends and starts machines other than the host, each after a part of a second.
func (w *world) churn(steps int) {
	for range steps {
		m := w.machines[w.rng.IntN(len(w.machines))]
		switch {
		case m == w.hosts[0] && w.rng.IntN(2) == 0 && len(w.machines) < 7:
			w.boot(w.addMachine(false))
		case m == w.hosts[0]:
		case m.proc == nil:
			w.boot(m)
		case w.rng.IntN(2) == 0:
			m.proc.stepMember(Depart{})
		default:
			w.crash(m)
		}
		w.run(time.Duration(50+w.rng.IntN(500)) * time.Millisecond)
	}
}

func TestARestoredHostGrantsNoIncarnationTwice(t *testing.T) {
	first, n := firstSeed(t), uint64(seeds(t, fewSeeds/3))
	t.Logf("%d schedules of restored hosts from seed %d", n, first)
	for i := uint64(0); i < n && !t.Failed(); i++ {
		runRestored(t, first+i, snapshot.restored)
	}
}

// TestACopiedHostGrantsAnIncarnationTwice: the schedules find the failure that the margin prevents.
func TestACopiedHostGrantsAnIncarnationTwice(t *testing.T) {
	r := &recorder{TB: t}
	for seed := uint64(1); seed <= 40 && r.failed == 0; seed++ {
		runRestored(r, seed, func(s snapshot) snapshot { return s })
	}
	if r.failed == 0 {
		t.Error("without a margin no incarnation is granted twice in 40 schedules")
	}
}

// TestARestoredHostAwaitsClaims: until a first incarnation is granted above the margin,
// newcomers wait for the grace period after each start, and those of the table do not.
func TestARestoredHostAwaitsClaims(t *testing.T) {
	lease := Lease{ID: 1, UUID: uuid(1), Generation: 2, Epoch: 10, Name: "n1", State: LeaseActive}
	b := newBench(t, lease)
	var err error
	b.h, err = NewHost(HostConfig{Self: identity(200), Term: 51, Floor: 50, Leases: []Lease{lease}}, b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.wantRefused(b.in(2, joinOf(2)), 2, RefusedBusy)
	if g, ok := sent[Grant](b.in(1, resumeOf(1, addr.Incarnation{Node: 1, Generation: 2})), 1); !ok || g.Incarnation != (addr.Incarnation{Node: 1, Generation: 2}) {
		t.Errorf("a node of the table got %+v, want its incarnation", b.out)
	}
	b.wait(b.h.t.Grace, 1)
	if l := b.join(2, 2); l.Generation <= 50 {
		t.Errorf("a newcomer after the grace period lives as %v, want above 50", l)
	}
	next := Lease{ID: 2, UUID: uuid(2), Generation: 51, Epoch: 10, Name: "n2", State: LeaseActive}
	if b.h, err = NewHost(HostConfig{Self: identity(200), Term: 52, Floor: 50, Leases: []Lease{lease, next}}, b.now); err != nil {
		t.Fatal(err)
	}
	if l := b.join(3, 3); l.Node != 3 {
		t.Errorf("a newcomer of the next start lives as %v, want to at once", l)
	}
}
