package verdict

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// The facts in this file are measured behaviour of gossip alone, and so of a
// cluster that decides by it. Each test shows that ours does not behave so.

// each runs f in worlds of several seeds, each started with n nodes and a host.
func each(t *testing.T, n int, f func(w *world)) {
	for seed := uint64(1); seed <= 10 && !t.Failed(); seed++ {
		w := newWorld(t, seed, n)
		w.startAll()
		w.run(time.Second)
		f(w)
	}
}

// removedEverywhere reports whether all running nodes but one have reported the
// end of incarnation, once, and fails if one has reported it twice.
func (w *world) removedEverywhere(incarnation addr.Incarnation, but *machine) bool {
	all := true
	for _, m := range w.machines {
		if m == but || m.proc == nil {
			continue
		}
		n := m.proc.count(EventRemoved, incarnation, w.start)
		if n > 1 {
			w.failf("machine %d reported the end of %v %d times", m.index, incarnation, n)
		}
		all = all && n == 1
	}
	return all
}

// quiet fails if any incarnation was removed or reset since the given time, of the
// incarnations in spare excepted.
func (w *world) quiet(since time.Time, spare ...addr.Incarnation) {
	w.t.Helper()
	for _, m := range w.machines {
		if m.proc == nil {
			continue
		}
		for _, e := range m.proc.events {
			spared := false
			for _, l := range spare {
				spared = spared || l == e.Node.Incarnation
			}
			if e.at.After(since) && !spared && (e.Kind == EventRemoved || e.Kind == EventReset) {
				w.failf("machine %d reported %+v", m.index, e.Event)
			}
		}
	}
}

// Gossip: a fast restart under the same name gives no leave and no join.
func TestFastRestartIsSeenByAll(t *testing.T) {
	each(t, 4, func(w *world) {
		m := w.machines[2]
		old := m.proc.member.self
		w.crash(m)
		w.run(20 * time.Millisecond)
		w.boot(m)
		took := w.until(time.Second, "the restart is seen everywhere", func() bool {
			return w.removedEverywhere(old, m) && w.whole()
		})
		if took > 300*time.Millisecond {
			w.failf("a restart was seen after %v, want 300ms", took)
		}
		if got := m.proc.member.self; got != (addr.Incarnation{Node: old.Node, Generation: old.Generation + 1}) {
			w.failf("incarnation after a restart is %v, want the next generation of %v", got, old)
		}
		w.quiet(w.start, old)
	})
}

// Gossip: a partial or one-way partition gives no event at all.
func TestOneWayCutIsNoticed(t *testing.T) {
	each(t, 4, func(w *world) {
		a, b := w.machines[1], w.machines[2]
		la, lb := a.proc.member.self, b.proc.member.self
		since := w.now
		w.cuts[[2]int{a.index, b.index}] = true
		suspects := func(p *proc, l addr.Incarnation) bool {
			q := p.member.known(l)
			return q != nil && q.node.State == Suspect
		}
		w.until(3*time.Second, "both ends suspect each other", func() bool {
			return suspects(a.proc, lb) && suspects(b.proc, la)
		})
		w.run(10 * time.Second)
		w.quiet(since) // the pair resets its links, and stays in the fabric
		w.heal()
		w.until(time.Second, "both ends trust each other again", func() bool {
			return !suspects(a.proc, lb) && !suspects(b.proc, la)
		})
	})
}

func TestEvictedPairLosesOneNode(t *testing.T) {
	for seed := uint64(1); seed <= 10; seed++ {
		w := newWorld(t, seed, 4)
		w.partial = PartialEvict
		w.startAll()
		a, b := w.machines[1], w.machines[2]
		la, lb := a.proc.member.self, b.proc.member.self
		w.cut(a, b)
		w.run(8 * time.Second)
		if n := w.check.removals[la] + w.check.removals[lb]; n == 0 {
			w.failf("neither end of a lost pair was evicted")
		}
		if w.check.removals[la] > 0 && w.check.removals[lb] > 0 && a.proc.member.self.Generation > 1 && b.proc.member.self.Generation > 1 {
			w.failf("both ends of a lost pair were evicted")
		}
	}
}

// Gossip: with datagrams blocked and TCP open a node stays a member, or flaps
// fifteen times a minute.
func TestBlockedDatagramsRemoveOnce(t *testing.T) {
	each(t, 4, func(w *world) {
		m := w.machines[3]
		old := m.proc.member.self
		w.muted[m.index] = true
		took := w.until(3*time.Second, "the muted node is removed", func() bool { return w.removedEverywhere(old, m) })
		if took > 2*time.Second {
			w.failf("a muted node was removed after %v, want 2s", took)
		}
		w.run(30 * time.Second)
		w.heal()
		w.until(5*time.Second, "the node is back", w.whole)
		// It has lost all nodes, and may have reported so, once. No other has.
		for _, o := range w.machines {
			if l := o.proc.member.self; o != m && m.proc.count(EventRemoved, l, w.start) > 1 {
				w.failf("the muted node reported the end of %v more than once", l)
			}
		}
		m.proc.events = nil
		w.quiet(w.start, old)
		if g := m.proc.member.self.Generation; g != old.Generation+1 {
			w.failf("the node came back as generation %d, want one more than %d", g, old.Generation)
		}
	})
}

// Gossip: a node that was isolated for a few seconds and returns makes healthy
// nodes declare healthy nodes dead.
func TestReturningNodeHarmsNobody(t *testing.T) {
	for d := 500 * time.Millisecond; d <= 10*time.Second; d += 500 * time.Millisecond { // 200 in all
		each(t, 5, func(w *world) {
			m := w.machines[2]
			old, since := m.proc.member.self, w.now
			w.isolate(m)
			w.run(d)
			w.heal()
			for _, o := range w.machines { // its stale gossip is believed
				for _, l := range sortedIncarnations(o.proc.member) {
					o.proc.stepMember(Gossip{l, GossipDead})
				}
			}
			w.until(5*time.Second, "every node is back", w.whole)
			w.run(3 * time.Second)
			for _, o := range w.machines {
				if o == m {
					continue
				}
				for _, e := range o.proc.events {
					if e.at.After(since) && e.Node.Incarnation != old && (e.Kind == EventRemoved || e.Kind == EventReset) {
						w.failf("isolated %v: healthy machine %d reported %+v", d, o.index, e.Event)
					}
				}
			}
		})
	}
}

// Gossip: a split of a minute never heals.
func TestSplitHeals(t *testing.T) {
	each(t, 4, func(w *world) {
		for _, a := range w.machines[:3] {
			for _, b := range w.machines[3:] {
				w.cut(a, b)
			}
		}
		w.run(60 * time.Second)
		for _, m := range w.machines[3:] {
			if !m.proc.member.Alone() {
				w.failf("machine %d does not know that the host is lost", m.index)
			}
			if n := len(m.proc.member.peers); n != 1 {
				w.failf("machine %d sees %d peers in a split, want 1", m.index, n)
			}
		}
		w.heal()
		took := w.until(5*time.Second, "a split is healed", w.whole)
		t.Logf("healed in %v", took)
	})
}

// Gossip: after a start some pair stays unaware of each other for a minute.
func TestStartMakesAllAware(t *testing.T) {
	for seed := uint64(1); seed <= 300; seed++ {
		w := newWorld(t, seed, 7)
		w.loss = 0.05
		for _, m := range w.machines {
			w.boot(m)
		}
		w.until(time.Second, "every node knows every node", w.whole)
	}
}

// An idle process wakes up for its heartbeat, and for nothing else.
func TestIdleClusterTicksWithItsHeartbeats(t *testing.T) {
	for name, tm := range map[string]Timing{"fast": Fast(), "normal": Normal(), "calm": Calm()} {
		w := newWorld(t, 1, 7)
		w.tm = tm
		for _, m := range w.machines {
			w.boot(m)
		}
		w.until(5*time.Second, "all joined", w.whole)
		w.run(tm.Grace + time.Second)
		const during = time.Minute
		before := w.wakes
		w.run(during)
		if got, most := w.wakes-before, len(w.machines)*int(during/tm.Heartbeat+1); got > most {
			t.Errorf("%s: %d processes woke up %d times in %v by their timers, want at most %d", name, len(w.machines), got, during, most)
		}
	}
}

// A silent node is known to all nodes as soon as the bounds allow, and so is one
// to which nothing arrives and from which all arrives.
func TestSilenceIsReportedAtItsBound(t *testing.T) {
	t.Run("cut off", func(t *testing.T) { reportedAtItsBound(t, (*world).isolate) })
	t.Run("inbound cut", func(t *testing.T) { reportedAtItsBound(t, (*world).cutInbound) })
	t.Run("inbound cut, and only its session arrives", func(t *testing.T) {
		reportedAtItsBound(t, func(w *world, m *machine) {
			w.unacked = true
			w.cutInbound(m)
		})
	})
}

func reportedAtItsBound(t *testing.T, lose func(*world, *machine)) {
	for name, tm := range map[string]Timing{"fast": Fast(), "normal": Normal(), "calm": Calm()} {
		for seed := uint64(1); seed <= 10; seed++ {
			w := newWorld(t, seed, 7)
			w.tm = tm
			w.startAll()
			w.run(time.Second + time.Duration(w.rng.IntN(2000))*time.Millisecond)
			m := w.machines[4]
			old := m.proc.member.self
			lose(w, m)
			bound := tm.Silence + tm.Check + 20*time.Millisecond
			took := w.until(bound+time.Second, "a loss is reported", func() bool { return w.removedEverywhere(old, m) })
			if took > bound {
				w.failf("%s: a silent loss was reported after %v, want %v", name, took, bound)
			}
		}
	}
}

// TestAReportRemovesNoNodeThatIsReached reports to the host all the time that nodes receive nothing from
// it which do.
func TestAReportRemovesNoNodeThatIsReached(t *testing.T) {
	each(t, 5, func(w *world) {
		host := w.machines[0].proc
		for range 100 {
			for _, m := range w.machines {
				host.stepHost(LossReport{m.proc.member.self})
			}
			host.stepHost(LossReport{addr.Incarnation{Node: 9, Generation: 7}})
			w.run(100 * time.Millisecond)
		}
		w.quiet(w.start)
	})
}

func TestCrashIsReported(t *testing.T) {
	each(t, 7, func(w *world) {
		m := w.machines[4]
		old := m.proc.member.self
		w.crash(m)
		if took := w.until(time.Second, "a crash is reported", func() bool { return w.removedEverywhere(old, m) }); took > 250*time.Millisecond {
			w.failf("a crash was reported after %v, want 250ms", took)
		}
		w.quiet(w.start, old)
	})
}

func TestSilentLossIsReported(t *testing.T) {
	each(t, 7, func(w *world) {
		m := w.machines[4]
		old := m.proc.member.self
		w.isolate(m)
		if took := w.until(3*time.Second, "a loss is reported", func() bool { return w.removedEverywhere(old, m) }); took > 2*time.Second {
			w.failf("a silent loss was reported after %v, want 2s", took)
		}
	})
}

func TestHostLossIsReportedAndTheRestGoesOn(t *testing.T) {
	each(t, 5, func(w *world) {
		h := w.machines[0]
		old, since := h.proc.member.self, w.now
		w.crash(h)
		w.until(time.Second, "the loss of the host is reported", func() bool { return w.removedEverywhere(old, h) })
		w.run(time.Minute)
		w.quiet(since, old)
		victim := w.machines[2]
		gone := victim.proc.member.self
		w.crash(victim)
		w.until(4*time.Second, "a crash is reported without a host", func() bool { return w.removedEverywhere(gone, victim) })
		w.boot(h)
		w.boot(victim)
		w.until(w.tm.Grace+2*time.Second, "the host is back", w.whole)
		w.quiet(since, old, gone)
		for _, m := range w.machines[3:] {
			if g := m.proc.member.self.Generation; g != 1 {
				w.failf("machine %d lost its incarnation to the host's restart: generation %d", m.index, g)
			}
		}
	})
}

func TestShortPausesChangeNothing(t *testing.T) {
	each(t, 4, func(w *world) {
		since := w.now
		for i := range 20 {
			w.pause(w.machines[i%len(w.machines)], time.Second)
			w.run(2500 * time.Millisecond)
		}
		for _, m := range w.machines {
			w.pause(m, 10*time.Second)
		}
		w.run(13 * time.Second)
		w.quiet(since)
		if !w.whole() {
			w.failf("not whole after every node stood still")
		}
	})
}

func TestPausedHostTakesANewIncarnationAndOthersKeepTheirs(t *testing.T) {
	each(t, 4, func(w *world) {
		h := w.machines[0]
		old := h.proc.member.self
		w.pause(h, 6*time.Second)
		w.run(5900 * time.Millisecond)
		if !w.removedEverywhere(old, h) {
			w.failf("a host that stood still for 6s was not reported as lost")
		}
		w.until(5*time.Second, "whole after the host's pause", w.whole)
		for _, m := range w.machines[1:] {
			if g := m.proc.member.self.Generation; g != 1 {
				w.failf("machine %d lost its incarnation to the host's pause: generation %d", m.index, g)
			}
		}
		if got := h.proc.member.self.Generation; got != old.Generation+1 {
			w.failf("the host has generation %d, want %d", got, old.Generation+1)
		}
	})
}

func TestZombieLearnsItsEnd(t *testing.T) {
	each(t, 4, func(w *world) {
		m := w.machines[2]
		old := m.proc.member.self
		w.pause(m, 5*time.Second)
		w.run(4900 * time.Millisecond)
		if !w.removedEverywhere(old, m) {
			w.failf("a node that stood still for 5s is still a member")
		}
		w.until(5*time.Second, "the zombie has a new incarnation", w.whole)
		if m.proc.count(EventReset, old, w.start) != 1 {
			w.failf("the zombie did not reset its old incarnation once")
		}
		w.quiet(w.start, old)
	})
}

func TestJoinStormGivesDistinctIDs(t *testing.T) {
	w := newWorld(t, 1, 100)
	w.loss = 0.05
	for _, m := range w.machines {
		w.boot(m)
	}
	took := w.until(5*time.Second, "a hundred nodes joined", w.whole)
	ids := make(map[addr.NodeID]bool)
	for _, m := range w.machines {
		ids[m.proc.member.self.Node] = true
	}
	if len(ids) != 101 {
		t.Errorf("101 nodes have %d IDs", len(ids))
	}
	t.Logf("whole after %v", took)
}

// A host that is killed anywhere in the middle of a grant never gives one ID
// to two nodes: the checker sees every Grant, and the disk.
func TestHostKilledInAGrant(t *testing.T) {
	for step := range 60 {
		w := newWorld(t, uint64(step), 6)
		for _, m := range w.machines[:3] {
			w.boot(m)
		}
		w.until(2*time.Second, "first nodes", w.whole)
		h := w.machines[0]
		h.proc.crashIn = step
		for _, m := range w.machines[3:] {
			w.boot(m)
		}
		w.crash(w.machines[1])
		w.boot(w.machines[1])
		w.run(300 * time.Millisecond)
		if step < 20 && h.proc != nil {
			w.failf("the host was not killed at step %d: nothing is tested", step)
		}
		w.crash(h)
		w.boot(h)
		w.until(w.tm.Grace+3*time.Second, "whole after the host was killed", w.whole)
	}
}

func TestTwoHosts(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.startAll()
	second := w.addMachine(true)
	w.hosts = w.hosts[:1] // no node dials the second one
	first := w.machines[0].proc
	p := w.boot(second)
	w.run(50 * time.Millisecond)
	seenBy := func(of *proc) HostSeen {
		return HostSeen{UUID: of.at.uuid, Epoch: of.epoch, Term: of.host.Term(), Serving: of.host.Serving(), Where: "there"}
	}
	toFirst, toSecond := seenBy(p), seenBy(first)
	first.stepHost(toFirst)
	p.stepHost(toSecond)
	if p.ended == "" {
		t.Error("a host that serves no node did not step down before one that does")
	}
	if first.ended != "" {
		t.Errorf("the first host stepped down: %s", first.ended)
	}
	first.stepHost(HostSeen{UUID: second.uuid, Epoch: 99, Term: 9, Serving: true, Where: "the other half"})
	if first.ended == "" {
		t.Error("the lower term did not step down after a healed split")
	}
}

// TestTwoHostsOfOneState: a host that came up behind a partition, on a copy of the
// host's state, has its UUID and a later epoch and term. It yields all the same
// while it serves no node, and stays if it does.
func TestTwoHostsOfOneState(t *testing.T) {
	for _, served := range []bool{false, true} {
		w := newWorld(t, 1, 3)
		w.startAll()
		first := w.machines[0].proc
		self, term := first.host.self, first.host.Term()
		first.stepHost(HostSeen{UUID: self.UUID, Epoch: self.Epoch + 1, Term: term + 1, Serving: served, Where: "a copy"})
		if steppedDown := first.ended != ""; steppedDown != served {
			t.Errorf("a copy that serves %v: the first host stepped down %v", served, steppedDown)
		}
		w.crash(w.machines[0])
		second := w.boot(w.machines[0])
		if served {
			w.until(5*time.Second, "the copy serves", second.host.Serving)
		}
		second.stepHost(HostSeen{UUID: self.UUID, Epoch: self.Epoch, Term: term, Serving: true, Where: "the first"})
		if steppedDown := second.ended != ""; steppedDown == served {
			t.Errorf("a copy that serves %v stepped down %v", served, steppedDown)
		}
	}
}

func TestClonedStateDirectoryIsRefused(t *testing.T) {
	each(t, 3, func(w *world) {
		clone := w.addMachine(false)
		clone.uuid, clone.incarnation, clone.known = w.machines[1].uuid, w.machines[1].incarnation, w.machines[1].known
		p := w.boot(clone)
		w.run(2 * time.Second)
		if want := "halt duplicate"; p.ended != want {
			w.failf("the clone ended with %q, want %q", p.ended, want)
		}
		w.quiet(w.start)
		if !w.whole() {
			w.failf("the clone disturbed the cluster")
		}
	})
}

func TestALostLeaseTableGivesEveryIDBackAboveItsGenerations(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		w := newWorld(t, seed, 4)
		w.startAll()
		before := make(map[*machine]addr.Incarnation)
		for _, m := range w.machines[1:] {
			before[m] = m.proc.member.self
		}
		h := w.machines[0]
		w.crash(h)
		clear(h.leases)
		h.cursor, h.floor = 0, 1000
		newcomer := w.addMachine(false)
		w.boot(h)
		w.boot(newcomer)
		w.until(w.tm.Grace+5*time.Second, "whole with the newcomer", w.whole)
		for m, old := range before {
			now := m.proc.member.self
			if now.Node != old.Node || now.Generation <= h.floor {
				t.Errorf("seed %d: machine %d lived as %v and lives as %v, want node %v above generation %d",
					seed, m.index, old, now, old.Node, h.floor)
			}
		}
	}
}
