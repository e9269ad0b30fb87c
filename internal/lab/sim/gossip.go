package sim

import (
	"math/rand/v2"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A gossip is the source of gossip reports: memberlist's reports to each node about each other
// one, with the delays that were measured of it (reliability.md 1.2), and with the
// false ones that follow the return of a node that was away. It carries no bytes; only
// reachability matters.
type gossip struct {
	w      *world
	rng    *rand.Rand
	quiet  bool // reports about a change are being worked out
	delay  [2]time.Duration
	direct [][]bool // whether two machines gossip with each other; nil: all do
}

// deathDelay is how late a true report of a death is, first and last.
func deathDelay(t verdict.Timing) [2]time.Duration {
	switch {
	case t.Silence <= 1200*time.Millisecond:
		return [2]time.Duration{1200 * time.Millisecond, 2000 * time.Millisecond}
	case t.Silence <= 1800*time.Millisecond:
		return [2]time.Duration{1600 * time.Millisecond, 2900 * time.Millisecond}
	}
	return [2]time.Duration{5 * time.Second, 10 * time.Second}
}

// A knownPeer is the gossip state that one process has of another.
type knownPeer struct {
	subject *proc
	reached bool // gossip gets from one to the other
	changes int  // of reached: a report that is on its way may be out of date
	since   time.Duration
	state   verdict.GossipState
}

func newGossip(w *world) *gossip {
	return &gossip{w: w, rng: seeded(w.seed, "gossip"), delay: deathDelay(w.timing)}
}

// changed schedules another look at the reachability of all nodes, once for all changes
// of this moment.
func (g *gossip) changed() {
	if g.quiet {
		return
	}
	g.quiet = true
	g.w.after(0, func() {
		g.quiet = false
		g.look()
	})
}

// look compares reachability with that of the last look.
func (g *gossip) look() {
	once := between(g.rng, g.delay[0], g.delay[1]-150*time.Millisecond)
	g.draw()
	for _, m := range g.w.machines {
		p := m.proc
		if p == nil {
			continue
		}
		for _, o := range g.w.machines {
			if o != m && o.proc != nil && p.peers[o.proc] == nil {
				p.meet(o.proc)
			}
		}
		kept := p.known[:0]
		for _, a := range p.known {
			g.compare(p, a, once)
			if a.subject.dead && a.state == verdict.GossipDead {
				delete(p.peers, a.subject)
				continue
			}
			kept = append(kept, a)
		}
		clear(p.known[len(kept):])
		p.known = kept
	}
}

// draw makes the map of the members that gossip directly, by machine. Without any rule
// all do.
func (g *gossip) draw() {
	n := len(g.w.machines)
	g.direct = nil
	if len(g.w.net.rules) == 0 {
		return
	}
	g.direct = make([][]bool, n)
	for i := range g.direct {
		g.direct[i] = make([]bool, n)
	}
	for i, a := range g.w.machines {
		for k := range i {
			b := g.w.machines[k]
			if a.gossips() && b.gossips() && g.hop(a, b) {
				g.direct[i][k], g.direct[k][i] = true, true
			}
		}
	}
}

// gossips reports whether a fabricd runs there.
func (m *machine) gossips() bool { return m.proc != nil && !m.proc.paused }

func (p *proc) meet(o *proc) {
	if p.peers == nil {
		p.peers = make(map[*proc]*knownPeer)
	}
	a := &knownPeer{subject: o}
	p.peers[o] = a
	p.known = append(p.known, a)
}

func (g *gossip) compare(p *proc, a *knownPeer, once time.Duration) {
	reached := g.reaches(p, a.subject)
	if reached == a.reached {
		return
	}
	away := g.w.now - a.since
	a.reached, a.since = reached, g.w.now
	a.changes++
	if reached {
		g.report(p, a, between(g.rng, 50*time.Millisecond, 300*time.Millisecond), verdict.GossipAlive, true)
		if a.changes > 1 && away > 2*time.Second && g.rng.IntN(4) == 0 {
			g.stir(a.subject)
		}
		return
	}
	late := once + between(g.rng, 0, 150*time.Millisecond)
	g.report(p, a, late*2/3, verdict.GossipSuspect, true)
	g.report(p, a, late, verdict.GossipDead, true)
}

// report sends r to p in d, unless the reach has changed by then, or p has it already. One
// that is not true is not noted.
func (g *gossip) report(p *proc, a *knownPeer, d time.Duration, r verdict.GossipState, so bool) {
	n := a.changes
	g.w.after(d, func() {
		if a.changes != n || so && a.state == r {
			return
		}
		if so {
			a.state = r
		}
		p.soon(func() { p.agent.takeGossip(a.subject, r) })
	})
}

// stir spreads the false reports that a node brings back that was away for
// more than two seconds: for a while some believe healthy nodes to be dead.
func (g *gossip) stir(back *proc) {
	for _, m := range g.w.machines {
		p := m.proc
		if p == nil || p == back {
			continue
		}
		for _, a := range p.known {
			if a.subject == back || !a.reached || a.state != verdict.GossipAlive || g.rng.IntN(3) != 0 {
				continue
			}
			g.report(p, a, between(g.rng, 0, 500*time.Millisecond), verdict.GossipDead, false)
			g.report(p, a, between(g.rng, 800*time.Millisecond, 2500*time.Millisecond), verdict.GossipAlive, false)
		}
	}
}

// reaches reports whether gossip gets from p to o and back, straight or by
// another node.
func (g *gossip) reaches(p, o *proc) bool {
	if p.dead || o.dead || o.paused || o.at.proc != o {
		return false
	}
	if g.direct == nil || p.paused { // it receives from the others once it continues
		return true
	}
	a, b := g.direct[p.at.index], g.direct[o.at.index]
	if a[o.at.index] {
		return true
	}
	for i := range a {
		if a[i] && b[i] {
			return true
		}
	}
	return false
}

// hop reports whether two machines gossip with each other directly. Gossip
// goes over TCP where UDP is blocked.
func (g *gossip) hop(a, b *machine) bool {
	open := func(x, y int) bool {
		p := g.w.net.path(x, y, faults.Gossip, faults.Stream)
		return !p.stops(g.w.now) && p.loss(g.w.now) < 0.9
	}
	return open(a.index, b.index) && open(b.index, a.index)
}

// takeGossip takes a report about a process.
func (a *agent) takeGossip(o *proc, r verdict.GossipState) {
	k := verdict.Start{UUID: o.agent.self.uuid, Epoch: o.agent.self.epoch}
	a.gossipStates[k] = r
	if n, ok := a.lines.Living(k); ok {
		a.feedMember(verdict.Gossip{Incarnation: n.Incarnation, State: r})
	}
}

// feedGossip feeds the member the gossip state of an incarnation, if there is one.
func (a *agent) feedGossip(n verdict.Node) {
	if r, ok := a.gossipStates[verdict.Start{UUID: n.UUID, Epoch: n.Epoch}]; ok {
		a.feedMember(verdict.Gossip{Incarnation: n.Incarnation, State: r})
	}
}

// gossipTo sends a packet of gossip, which arrived handles at its receiver.
func (a *agent) gossipTo(o *proc, arrived func()) {
	a.w.net.path(a.at.index, o.at.index, faults.Gossip, faults.Packets).carry(packetLen, func() { o.soon(arrived) })
}

// sendLossReport sends the report that nothing of the host arrives at this node, in one packet.
func (a *agent) sendLossReport(x verdict.SendLossReport) {
	incarnation := a.member.Self().Incarnation
	for _, m := range a.w.machines {
		o := m.proc
		if o == nil || o.agent.self.uuid != x.Host || o.agent.self.epoch != x.Epoch {
			continue
		}
		a.gossipTo(o, func() {
			if o.agent.host != nil {
				o.agent.feedHost(verdict.LossReport{Incarnation: incarnation})
			}
		})
		return
	}
}
