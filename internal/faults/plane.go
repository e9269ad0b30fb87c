package faults

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Options configure a Plane.
type Options struct {
	// Seed decides all that is random, together with a rule's ID, unless the
	// rule has a seed of its own.
	Seed uint64
	// Now is a clock that never goes back. Nil: the time since NewPlane.
	Now func() time.Duration
}

// A Plane holds the rules of one node, decides by them and counts their effects. Its methods may be
// called from any goroutine. It starts none.
type Plane struct {
	seed  uint64
	now   func() time.Duration
	self  atomic.Uint32 // this node's ID, NoNode while it has none
	some  atomic.Bool   // there are rules
	Names Names         // the nodes at each address; filled by the owner

	mu      sync.Mutex // guards the fields below
	rules   []*entry   // in the order of their addition
	ended   []Status   // the last ones, oldest first
	lastID  uint64
	changed chan struct{} // closed and replaced when the rules change
}

// An entry is a rule in a Plane. The Plane's mu guards the fields that change.
type entry struct {
	rule   Rule
	seed   uint64
	added  time.Duration // Plane.now
	wall   time.Time     // the same, for people
	ways   map[Way]*tally
	counts Counters
}

// A tally is a rule's memory of one Way.
type tally struct {
	seen  uint64
	meter Meter
}

// maxEnded bounds the rules that a Plane remembers after their end.
const maxEnded = 256

// maxWays bounds the directions that one rule keeps apart; further ones share one.
const maxWays = 1 << 14

// NewPlane returns a Plane without rules.
func NewPlane(o Options) *Plane {
	p := &Plane{seed: o.Seed, now: o.Now, changed: make(chan struct{})}
	if p.now == nil {
		start := time.Now()
		p.now = func() time.Duration { return time.Since(start) }
	}
	p.self.Store(uint32(addr.NoNode))
	return p
}

// SetSelf sets which node the Plane is of: rules name it so.
func (p *Plane) SetSelf(id addr.NodeID) {
	p.self.Store(uint32(id))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fire()
}

// Self returns the ID that SetSelf was given, addr.NoNode before.
func (p *Plane) Self() addr.NodeID { return addr.NodeID(p.self.Load()) }

// Add adds a rule, which acts from now on or after its After, and returns its
// ID. A rule that Check refuses is not added.
func (p *Plane) Add(r Rule) (id uint64, err error) {
	ids, err := p.AddAll([]Rule{r})
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// ErrFull is returned for rules beyond MaxRules.
var ErrFull = errors.New("too many rules")

// AddAll adds all rules at one moment, or none of them.
func (p *Plane) AddAll(rules []Rule) (ids []uint64, err error) {
	for i := range rules {
		if err := rules[i].Check(); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.expire(now)
	if len(p.rules)+len(rules) > MaxRules {
		return nil, fmt.Errorf("%w: %d are there, %d more: want at most %d together", ErrFull, len(p.rules), len(rules), MaxRules)
	}
	for _, r := range rules {
		p.lastID++
		r.ID = p.lastID
		r.From, r.To = slices.Clone(r.From), slices.Clone(r.To)
		e := &entry{rule: r, seed: r.Seed, added: now, wall: time.Now(), ways: make(map[Way]*tally)}
		if e.seed == 0 {
			e.seed = mix(p.seed ^ mix(r.ID))
		}
		p.rules = append(p.rules, e)
		ids = append(ids, r.ID)
	}
	p.fire()
	return ids, nil
}

// Remove ends the rule with this ID. It reports false if there is none.
func (p *Plane) Remove(id uint64) bool {
	return p.end(func(r *Rule) bool { return r.ID == id }) > 0
}

// RemoveNamed ends the rules with this name and returns how many there were.
func (p *Plane) RemoveNamed(name string) int {
	return p.end(func(r *Rule) bool { return r.Name == name })
}

// Clear ends all rules and returns how many there were.
func (p *Plane) Clear() int { return p.end(func(*Rule) bool { return true }) }

func (p *Plane) end(which func(*Rule) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.expire(now)
	return p.drop(now, func(e *entry) bool { return which(&e.rule) })
}

// expire ends the rules whose time has passed. mu is held.
func (p *Plane) expire(now time.Duration) {
	p.drop(now, func(e *entry) bool { return e.rule.Over(now - e.added) })
}

// drop moves rules to those that have ended. mu is held.
func (p *Plane) drop(now time.Duration, which func(*entry) bool) (n int) {
	kept := p.rules[:0:0]
	for _, e := range p.rules {
		if !which(e) {
			kept = append(kept, e)
			continue
		}
		n++
		st := e.status(now)
		st.State = Ended
		p.ended = append(p.ended, st)
	}
	if n == 0 {
		return 0
	}
	if over := len(p.ended) - maxEnded; over > 0 {
		p.ended = slices.Delete(p.ended, 0, over)
	}
	p.rules = kept
	p.fire()
	return n
}

// fire notifies the waiting goroutines that the rules have changed. mu is held.
func (p *Plane) fire() {
	p.some.Store(len(p.rules) > 0)
	close(p.changed)
	p.changed = make(chan struct{})
}

// Watch returns a channel that is closed when the rules change next, and how
// long it takes until a rule begins, rests or ends by itself; 0: none will.
func (p *Plane) Watch() (changed <-chan struct{}, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.expire(now)
	for _, e := range p.rules {
		if _, at := e.rule.Acts(now - e.added); at > 0 {
			if d := at - (now - e.added); next == 0 || d < next {
				next = d
			}
		}
	}
	return p.changed, next
}

// Idle reports whether there are no rules. It costs one atomic load: callers ask
// it first.
func (p *Plane) Idle() bool { return !p.some.Load() }

// A Meeting is something that passes between this node and a peer.
type Meeting struct {
	Peer    addr.NodeID // addr.NoNode: unknown; only rules for any node cover it
	On      Traffic     // Gossip, Control, Messages, RMA or Link
	Carrier Carrier
	Sending bool // this node sends
	// Below: rules on Link and All are enforced on the packets that
	// carry this stream, and not on it.
	Below bool
}

// way returns the direction of m.
func (p *Plane) way(m Meeting) Way {
	w := Way{From: p.Self(), To: m.Peer, On: m.On, Carrier: m.Carrier}
	if !m.Sending {
		w = w.back()
	}
	return w
}

// concerns reports whether the rule is to be enforced here on w.
func (e *entry) concerns(w Way, m Meeting) bool {
	if m.Below && (e.rule.On == Link || e.rule.On == All) {
		return false
	}
	return e.rule.enforced(m.Sending) && e.rule.Covers(w)
}

// Decide returns the decision about a packet or a piece of a stream, of size bytes, and counts it. Gate
// decides whether a stream may go on at all.
func (p *Plane) Decide(m Meeting, size int) Decision {
	w := p.way(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	var total Decision
	for _, e := range p.rules {
		if age := now - e.added; e.concerns(w, m) {
			if acts, _ := e.rule.Acts(age); !acts {
				continue
			}
			t := e.tally(w)
			s := Seen{Rule: &e.rule, Seed: e.seed, N: t.seen, Age: age, Meter: &t.meter}
			t.seen++
			f := s.Decide(w, size)
			e.counts.add(f.Effects, size)
			if total = total.Then(f); total.Drop {
				break
			}
		}
	}
	return total
}

// tally returns the rule's tally of w. The Plane's mu is held.
func (e *entry) tally(w Way) *tally {
	t := e.ways[w]
	if t == nil && len(e.ways) >= maxWays {
		w = Way{}
		t = e.ways[w]
	}
	if t == nil {
		t = &tally{}
		e.ways[w] = t
	}
	return t
}

// A Gate is the decision about a whole stream.
type Gate struct {
	Stopped bool // nothing passes, neither way unless the rule is on a stream
	Refused bool // new ones are refused at once
	Reset   bool // established ones end
}

// Gate returns the decision about m, a stream, for now. Since a stream's bytes are acknowledged by
// its other direction, a rule that stops either direction stops it, but for rules on Messages and
// RMA alone. With count the decision is counted as having happened to one stream.
func (p *Plane) Gate(m Meeting, count bool) Gate {
	w := p.way(m)
	back := m
	back.Sending = !m.Sending
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	var g Gate
	for _, e := range p.rules {
		r := &e.rule
		stream := r.On == Messages || r.On == RMA
		if !e.concerns(w, m) && (stream || !e.concerns(w.back(), back)) {
			continue
		}
		if acts, _ := r.Acts(now - e.added); !acts {
			continue
		}
		stops := r.Stops(Stream)
		g.Stopped = g.Stopped || stops
		g.Refused = g.Refused || r.HalfOpen
		g.Reset = g.Reset || r.Reset
		if count {
			e.counts.addGate(stops, r.HalfOpen, r.Reset)
		}
	}
	return g
}
