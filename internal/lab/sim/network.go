package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
)

// The time a packet takes without any fault. Each path has a time of its own
// out of this range, and each packet up to a third of it more.
const (
	nearest  = 60 * time.Microsecond
	farthest = 300 * time.Microsecond
)

// A network is the ways between all machines, by traffic.
type network struct {
	w     *world
	rules []*rule
	paths map[faults.Way]*path
	all   []*path // in the order of their first use
}

// A path is one direction of one plane between two machines, whose numbers its way has in
// place of node IDs.
type path struct {
	w     *world
	way   faults.Way
	rng   *rand.Rand
	base  time.Duration
	rules []*bound      // those that are for this path
	last  time.Duration // when the newest packet that nothing reorders arrives
}

// A rule is one fault on links, in force.
type rule struct {
	faults.Rule
	since time.Duration
	fired uint64 // packets that it touched
}

// A bound is a rule on one path, with its counts there. TCP is packets here, which the
// kernels send again, and of which it is not true that UDP is blocked or that they are too long.
type bound struct {
	*rule
	like  faults.Rule
	seen  uint64
	meter faults.Meter
}

func newNetwork(w *world) *network {
	return &network{w: w, paths: make(map[faults.Way]*path)}
}

// path returns a way, and makes it at its first use.
func (n *network) path(from, to int, on faults.Traffic, c faults.Carrier) *path {
	way := faults.Way{From: addr.NodeID(from), To: addr.NodeID(to), On: on, Carrier: c}
	p := n.paths[way]
	if p == nil {
		p = &path{w: n.w, way: way, rng: seeded(n.w.seed, "path "+string(on), from, to, int(c))}
		p.base = between(p.rng, nearest, farthest)
		for _, r := range n.rules {
			p.bind(r)
		}
		n.paths[way] = p
		n.all = append(n.all, p)
	}
	return p
}

func (p *path) bind(r *rule) {
	if !r.Covers(p.way) {
		return
	}
	b := &bound{rule: r, like: r.Rule}
	if p.way.Carrier == faults.Stream {
		b.like.BlockUDP, b.like.MTU = false, 0
	}
	p.rules = append(p.rules, b)
}

// add puts a rule in force between machines.
func (n *network) add(like faults.Rule, from, to []int) *rule {
	r := &rule{Rule: like, since: n.w.now}
	r.From, r.To = machinesAs(from), machinesAs(to)
	if len(from) == 0 || len(to) == 0 { // to a rule it would be all of them
		return r
	}
	n.rules = append(n.rules, r)
	for _, p := range n.all {
		p.bind(r)
	}
	return r
}

func machinesAs(all []int) (ids faults.Nodes) {
	for _, i := range all {
		ids = append(ids, addr.NodeID(i))
	}
	return ids
}

// remove takes a rule back.
func (n *network) remove(r *rule) {
	n.rules = without(n.rules, r)
	for _, p := range n.all {
		p.rules = slices.DeleteFunc(p.rules, func(b *bound) bool { return b.rule == r })
	}
}

// cross sends one packet of size bytes on its way. The rules decide as in the fault plane of
// a node; the other end drops a corrupted packet.
func (p *path) cross(now time.Duration, size int) faults.Decision {
	f := faults.Decision{Delay: p.base + time.Duration(p.rng.Int64N(int64(p.base/3)+1))}
	apart := false // it may be overtaken
	for _, r := range p.rules {
		g := r.decide(p.way, now, size)
		apart = apart || g.Effects&faults.Reordered != 0 || g.Effects&faults.Delayed != 0 && r.Jitter > 0
		if f = f.Then(g); f.Drop || f.Corrupt {
			return faults.Decision{Drop: true}
		}
	}
	// Without a fault packets of one path do not overtake each other.
	if at := now + f.Delay; !apart && at < p.last {
		f.Delay = p.last - now
	} else if !apart {
		p.last = at
	}
	return f
}

// carry sends one packet; arrived runs for each copy of it that the network delivers.
func (p *path) carry(size int, arrived func()) (dropped bool) {
	c := p.cross(p.w.now, size)
	if c.Drop {
		return true
	}
	p.w.after(c.Delay, arrived)
	if c.Twice && p.way.Carrier == faults.Packets {
		p.w.after(c.Later, arrived)
	}
	return false
}

func (b *bound) decide(w faults.Way, now time.Duration, size int) faults.Decision {
	w.Carrier = faults.Packets
	s := faults.Seen{Rule: &b.like, Seed: b.Seed, N: b.seen, Age: now - b.since, Meter: &b.meter}
	b.seen++
	f := s.Decide(w, size)
	if f.Effects != 0 {
		b.fired++
	}
	return f
}

// stops reports whether the path lets nothing pass now, and counts nothing.
func (p *path) stops(now time.Duration) bool {
	for _, r := range p.rules {
		if on, _ := r.Acts(now - r.since); on && r.Stops(p.way.Carrier) {
			return true
		}
	}
	return false
}

// loss returns the share of packets that is lost by drop and corruption.
func (p *path) loss(now time.Duration) float64 {
	passes := 1.0
	for _, r := range p.rules {
		if on, _ := r.Acts(now - r.since); on {
			passes *= (1 - float64(r.Drop)) * (1 - float64(r.Corrupt))
		}
	}
	return 1 - passes
}

// halfOpen reports whether a half-open rule is on the path, so that a connection
// that is opened now is refused at once.
func (p *path) halfOpen(now time.Duration) bool {
	for _, r := range p.rules {
		if on, _ := r.Acts(now - r.since); on && r.HalfOpen {
			r.fired++
			return true
		}
	}
	return false
}
