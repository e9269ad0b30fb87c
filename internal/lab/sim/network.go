package sim

import (
	"math/rand/v2"
	"slices"
	"time"

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
	paths map[pathID]*path
	all   []*path // in the order of their first use
}

type pathID struct {
	from, to int
	on       faults.Traffic
	carrier  faults.Carrier
}

// A path is one direction of one plane between two machines.
type path struct {
	id    pathID
	rng   *rand.Rand
	base  time.Duration
	rules []*bound      // those that are for this path
	last  time.Duration // when the newest packet that nothing reorders arrives
}

// A rule is one fault on links, in force.
type rule struct {
	faults.Rule
	from, to []bool // by machine
	since    time.Duration
	seed     uint64
	fired    uint64 // packets that it touched
}

// A bound is a rule on one path, with the counters and random numbers of this path alone.
type bound struct {
	*rule
	rng  *rand.Rand
	free time.Duration // when the line, whose rate is limited, has sent its queue
}

func newNetwork(w *world) *network {
	return &network{w: w, paths: make(map[pathID]*path)}
}

// path returns a way, and makes it at its first use.
func (n *network) path(from, to int, on faults.Traffic, c faults.Carrier) *path {
	id := pathID{from, to, on, c}
	p := n.paths[id]
	if p == nil {
		p = &path{id: id, rng: seeded(n.w.seed, "path "+string(on), from, to, int(c))}
		p.base = between(p.rng, nearest, farthest)
		for _, r := range n.rules {
			p.bind(r)
		}
		n.paths[id] = p
		n.all = append(n.all, p)
	}
	return p
}

func (p *path) bind(r *rule) {
	if r.from[p.id.from] && r.to[p.id.to] && r.On.Includes(p.id.on) {
		p.rules = append(p.rules, &bound{rule: r, rng: seeded(r.seed, "rule "+string(p.id.on), p.id.from, p.id.to, int(p.id.carrier))})
	}
}

// add puts a rule in force.
func (n *network) add(r *rule) {
	r.since = n.w.now
	n.rules = append(n.rules, r)
	for _, p := range n.all {
		p.bind(r)
	}
}

// remove takes a rule back.
func (n *network) remove(r *rule) {
	n.rules = slices.DeleteFunc(n.rules, func(o *rule) bool { return o == r })
	for _, p := range n.all {
		p.rules = slices.DeleteFunc(p.rules, func(b *bound) bool { return b.rule == r })
	}
}

// A crossing is the fate of one packet.
type crossing struct {
	lost  bool
	delay time.Duration
	twin  time.Duration // when a duplicate arrives; 0: there is none
}

// cross sends one packet of size bytes on its way.
func (p *path) cross(now time.Duration, size int) crossing {
	c := crossing{delay: p.base + time.Duration(p.rng.Int64N(int64(p.base/3)+1))}
	apart := false
	for _, r := range p.rules {
		if on, _ := r.Acts(now - r.since); !on {
			continue
		}
		if r.stopsPacket(p.id.carrier, size) {
			r.fired++
			c.lost = true
			return c
		}
		apart = r.bend(&c, now, size) || apart
		if c.lost {
			return c
		}
	}
	// Without a fault packets of one path do not overtake each other.
	if at := now + c.delay; !apart && at < p.last {
		c.delay = p.last - now
	} else if !apart {
		p.last = at
	}
	return c
}

// stops reports whether the path lets nothing pass now, and counts nothing.
func (p *path) stops(now time.Duration) bool {
	for _, r := range p.rules {
		if on, _ := r.Acts(now - r.since); on && r.stopsPacket(p.id.carrier, 0) {
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

// half reports whether a half-open rule is on the path, so that a connection
// that is opened now is refused at once.
func (p *path) half(now time.Duration) bool {
	for _, r := range p.rules {
		if on, _ := r.Acts(now - r.since); on && r.HalfOpen {
			r.fired++
			return true
		}
	}
	return false
}

func (r *rule) stopsPacket(c faults.Carrier, size int) bool {
	return r.Cut || r.HalfOpen || r.Hold || c == faults.Packets && (r.BlockUDP || r.MTU > 0 && size > r.MTU)
}

// bend applies the rule to a packet, short of blocking it. It reports whether the
// packet may be overtaken.
func (r *bound) bend(c *crossing, now time.Duration, size int) (apart bool) {
	hit := func(p faults.Probability) bool {
		return p > 0 && r.rng.Float64() < float64(p)
	}
	if hit(r.Drop) || hit(r.Corrupt) {
		r.fired++
		c.lost = true
		return false
	}
	if r.Delay > 0 || r.Jitter > 0 {
		r.fired++
		c.delay += time.Duration(r.Delay)
		if r.Jitter > 0 {
			c.delay += r.jitter()
			apart = true
		}
	}
	if hit(r.Reorder) {
		r.fired++
		c.delay += between(r.rng, 0, faults.ReorderSpan)
		apart = true
	}
	if hit(r.Duplicate) {
		r.fired++
		c.twin = c.delay + between(r.rng, 1, faults.ReorderSpan)
	}
	if r.Rate > 0 {
		r.limit(c, now, size)
	}
	return apart
}

// jitter draws the random part of a delay.
func (r *bound) jitter() time.Duration {
	j := float64(r.Jitter)
	switch r.Shape {
	case faults.Normal:
		return time.Duration(min(max(j/2+r.rng.NormFloat64()*j/6, 0), j))
	case faults.Exponential:
		return time.Duration(min(r.rng.ExpFloat64()*j/4, j))
	}
	return time.Duration(r.rng.Float64() * j)
}

// limit makes a packet wait for the line. A packet that does not fit into the buffer is lost.
func (r *bound) limit(c *crossing, now time.Duration, size int) {
	perByte := float64(time.Second) / float64(r.Rate)
	buffer := r.Buffer
	if buffer == 0 {
		buffer = faults.DefaultBuffer
	}
	free := max(r.free, now)
	if time.Duration(float64(buffer)*perByte) < free-now {
		r.fired++
		c.lost = true
		return
	}
	r.free = free + time.Duration(float64(size)*perByte)
	if r.free-now > 0 {
		c.delay += r.free - now
		r.fired++
	}
}
