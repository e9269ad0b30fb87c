package verdict

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// seeds returns how many seeds to run: VERDICT_SEEDS, or few.
func seeds(t *testing.T, few int) int {
	s := os.Getenv("VERDICT_SEEDS")
	if s == "" {
		return few
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("VERDICT_SEEDS: %v", err)
	}
	return n
}

// firstSeed returns VERDICT_SEED, to run one again, or 1.
func firstSeed(t *testing.T) uint64 {
	s := os.Getenv("VERDICT_SEED")
	if s == "" {
		return 1
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("VERDICT_SEED: %v", err)
	}
	return n
}

// runSchedule runs a cluster under faults of every kind, lets it rest, and
// demands that it is whole again. It returns the sum of the run.
func runSchedule(t testing.TB, seed uint64, tm Timing) uint64 {
	w := newWorld(t, seed, 3)
	w.tm = tm
	w.trace = os.Getenv("VERDICT_TRACE") != ""
	for range w.rng.IntN(3) {
		w.addMachine(false)
	}
	if w.rng.IntN(4) == 0 {
		w.after(0, w.nosy)
	}
	if w.rng.IntN(4) == 0 {
		w.loss = 0.05
	}
	w.startAll()
	for end := w.now.Add(12 * time.Second); w.now.Before(end); {
		w.fault()
		w.run(time.Duration(50+w.rng.IntN(1200)) * time.Millisecond)
	}
	w.heal()
	w.loss = 0
	for _, m := range w.machines {
		m.full = false
		if m.proc != nil {
			m.proc.crashIn = -1
		}
	}
	w.run(6*time.Second + w.tm.Silence + w.tm.Check) // pauses end, processes that are to halt halt
	for _, m := range w.machines {
		w.boot(m)
	}
	w.until(w.tm.Grace+5*time.Second, "whole again", w.whole)
	for _, m := range w.machines {
		// While the host is lost, nodes that lose each other report each other's
		// end, and one of two has to begin anew: not always the faulty one.
		if !m.touched && m.proc != nil && w.check.resetsOf(m.proc) > 0 && !w.check.disputed[m.proc] {
			w.failf("machine %d, which no fault touched, was reset", m.index)
		}
	}
	return w.sum
}

// resetsOf returns how many resets p has reported.
func (c *checker) resetsOf(p *proc) int {
	n := 0
	for _, e := range p.events {
		if e.Kind == EventReset {
			n++
		}
	}
	return n
}

// fault does one thing to the cluster that may happen to a real one.
func (w *world) fault() {
	m := w.machines[w.rng.IntN(len(w.machines))]
	other := w.machines[w.rng.IntN(len(w.machines))]
	short := time.Duration(20+w.rng.IntN(3000)) * time.Millisecond
	switch w.rng.IntN(12) {
	case 0: // a process crashes, and comes back
		w.crash(m)
		w.after(short, func() { w.boot(m) })
	case 1: // it crashes between two actions
		if m.proc != nil {
			m.touched = true
			m.proc.crashIn = w.rng.IntN(30)
		}
		w.after(short+time.Second, func() { w.boot(m) })
	case 2:
		w.pause(m, time.Duration(w.rng.IntN(5000))*time.Millisecond)
	case 3: // a pair is cut, maybe one way only
		if m != other {
			w.cut(m, other)
			w.touchSides(m, other)
			if w.rng.IntN(2) == 0 {
				delete(w.cuts, [2]int{m.index, other.index})
			}
			w.after(short, w.heal)
		}
	case 4:
		w.isolate(m)
		w.touchSides(m, m)
		w.after(short, w.heal)
	case 5, 6: // gossip reports that nothing supports
		w.falseGossip(m)
	case 7: // a process leaves, and comes back
		if m.proc != nil {
			m.touched = true
			m.proc.stepMember(Depart{})
			w.after(short+time.Second, func() { w.boot(m) })
		}
	case 8: // a machine loses its disk
		if !m.host {
			w.crash(m)
			m.uuid, m.incarnation, m.known = w.newUUID(m.index), addr.Incarnation{}, 0
			w.after(short, func() { w.boot(m) })
		}
	case 9: // the lease table cannot be written for a while
		h := w.hosts[0]
		h.full = true
		w.after(short, func() { h.full = false })
	case 11: // a copy of a state directory is started, and stopped again
		if !m.host && len(w.machines) < 12 {
			c := w.addMachine(false)
			c.uuid, c.incarnation, c.known, m.touched = m.uuid, m.incarnation, m.known, true
			w.boot(c)
			w.after(2*time.Second, func() { w.crash(c); c.gone = true })
		}
	case 10: // everything stops at once
		for _, o := range w.machines {
			w.pause(o, short)
		}
	}
}

// touchSides marks the machines that may lose the host, or be lost to it, by a cut
// between a and b.
func (w *world) touchSides(a, b *machine) {
	if a.host || b.host {
		for _, m := range w.machines {
			m.touched = true
		}
	}
}

// falseGossip makes some nodes believe for a while that others are dead, as a node
// does that returns from an isolation.
func (w *world) falseGossip(m *machine) {
	for _, o := range w.machines {
		if o.proc == nil || o.proc.paused || w.rng.IntN(2) == 0 {
			continue
		}
		for _, incarnation := range sortedIncarnations(o.proc.member) {
			p := o.proc
			w.to(p, w.delay(), func() { p.stepMember(Gossip{incarnation, GossipDead}) })
			w.to(p, time.Duration(300+w.rng.IntN(2500))*time.Millisecond, func() { p.stepMember(Gossip{incarnation, GossipAlive}) })
		}
	}
}

func TestRandomSchedules(t *testing.T) {
	first := firstSeed(t)
	for seed := first; seed < first+uint64(seeds(t, fewSeeds)) && !t.Failed(); seed++ {
		runSchedule(t, seed, Fast())
		if seed%8 == 0 {
			runSchedule(t, seed, Normal())
			runSchedule(t, seed, Calm())
		}
	}
}

func TestSameSeedSameRun(t *testing.T) {
	for seed := uint64(1000); seed < 1005; seed++ {
		a, b := runSchedule(t, seed, Fast()), runSchedule(t, seed, Fast())
		if a != b {
			t.Errorf("seed %d: two runs have sums %x and %x", seed, a, b)
		}
		if a == runSchedule(t, seed+5000, Fast()) {
			t.Errorf("seeds %d and %d have the same sum %x: the sum sees nothing", seed, seed+5000, a)
		}
	}
}
