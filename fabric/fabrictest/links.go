package fabrictest

import (
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
)

// A Link is the traffic from one node to another, to be broken. Its methods that
// return a *Fault break it at once; they fail the test if a value is not
// allowed. Several faults of one link act together. The other methods return a
// Link that restricts or configures the fault:
//
//	c.Link(1, 2).Drop(.2)                            // until Heal
//	c.Link(1, 2).Messages().For(time.Second).Cut()   // messages only, for a second
//	f := c.Link(fabrictest.Any, 0).Delay(20*time.Millisecond, 10*time.Millisecond)
//	f.End()
//
// Between nodes in memory there are no packets. The cost of a fault of packets is
// put on the streams of a connection, which are reliable and in order: a lost piece
// comes as late as it would with TCP, and the same goes for [TCP]. With [QUIC] packets
// are broken.
type Link struct {
	c        *Cluster
	from, to int
	rule     faults.Rule
}

// Any is any node, for Link.
const Any = -1

// Link returns the traffic from node from to node to. Each may be Any.
func (c *Cluster) Link(from, to int) Link {
	return Link{c: c, from: from, to: to, rule: faults.Rule{On: faults.Link, At: faults.AtFrom}}
}

// Messages restricts the fault to the messages of connections. They take Delay,
// Rate, Cut, Hold and Reset.
func (l Link) Messages() Link { l.rule.On = faults.Messages; return l }

// RMA restricts the fault to remote memory operations, fences and windows. They
// take Delay, Rate, Cut, Hold and Reset.
func (l Link) RMA() Link { l.rule.On = faults.RMA; return l }

// For ends the fault by itself after d, at most a day.
func (l Link) For(d time.Duration) Link { l.rule.For = faults.Duration(d); return l }

// After lets the fault begin after d.
func (l Link) After(d time.Duration) Link { l.rule.After = faults.Duration(d); return l }

// Flap lets the fault act for up, rest for down, and so on.
func (l Link) Flap(up, down time.Duration) Link {
	l.rule.Up, l.rule.Down = faults.Duration(up), faults.Duration(down)
	return l
}

// Seed seeds the fault's random decisions, instead of the cluster's seed.
func (l Link) Seed(seed uint64) Link { l.rule.Seed = seed; return l }

// Drop loses each packet with a probability, 0 to 1.
func (l Link) Drop(p float64) *Fault { l.rule.Drop = faults.Probability(p); return l.begin() }

// Duplicate lets each packet arrive twice with a probability.
func (l Link) Duplicate(p float64) *Fault {
	l.rule.Duplicate = faults.Probability(p)
	return l.begin()
}

// Reorder holds each packet back, by up to 5 ms, with a probability.
func (l Link) Reorder(p float64) *Fault { l.rule.Reorder = faults.Probability(p); return l.begin() }

// Corrupt changes a byte of each packet with a probability. No receiver sees that
// byte: such a packet counts as lost.
func (l Link) Corrupt(p float64) *Fault { l.rule.Corrupt = faults.Probability(p); return l.begin() }

// Delay adds d, and up to jitter more, to the time in flight.
func (l Link) Delay(d, jitter time.Duration) *Fault {
	l.rule.Delay, l.rule.Jitter = faults.Duration(d), faults.Duration(jitter)
	return l.begin()
}

// Rate limits the bandwidth to so many bytes per second.
func (l Link) Rate(bytesPerSecond int64) *Fault {
	l.rule.Rate = faults.Bytes(bytesPerSecond)
	return l.begin()
}

// Cut lets nothing pass. A link that is cut in one direction dies as a whole
// when it has been silent too long; its connections end with ECONNRESET then.
func (l Link) Cut() *Fault { l.rule.Cut = true; return l.begin() }

// Hold keeps all traffic back until the fault ends, and loses nothing. It requires For,
// so that the traffic is released.
func (l Link) Hold() *Fault { l.rule.Hold = true; return l.begin() }

// HalfOpen stops established links, as Cut does, and refuses new ones.
func (l Link) HalfOpen() *Fault { l.rule.HalfOpen = true; return l.begin() }

// Reset ends the link, or with Messages or RMA the connections, as if the peer
// had lost its memory of them; new ones too, until the fault ends.
func (l Link) Reset() *Fault { l.rule.Reset = true; return l.begin() }

// begin gives the rule to the nodes that send.
func (l Link) begin() *Fault {
	l.c.tb.Helper()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	f := &Fault{c: l.c, ids: map[int][]uint64{}}
	if l.from >= len(l.c.nodes) || l.to >= len(l.c.nodes) {
		l.c.tb.Fatalf("fabrictest: link from %d to %d in a cluster of %d", l.from, l.to, len(l.c.nodes))
	}
	if l.to != Any {
		l.rule.To = faults.Nodes{addr.NodeID(l.to)}
	}
	for i, m := range l.c.nodes {
		if l.from != Any && l.from != i || l.to == i {
			continue
		}
		r := l.rule
		r.From = faults.Nodes{addr.NodeID(i)}
		id, err := m.layer.Plane().Add(r)
		if err != nil {
			l.c.tb.Fatalf("fabrictest: fault from %d to %d: %v", l.from, l.to, err)
		}
		f.ids[i] = []uint64{id}
	}
	return f
}

// A Fault is a fault that a test has begun.
type Fault struct {
	c   *Cluster
	ids map[int][]uint64 // node to its rules
}

// Fired returns how often the fault has had an effect, also when it is over: a
// test whose fault had no effect proves nothing.
func (f *Fault) Fired() uint64 {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	n := uint64(0)
	for i, ids := range f.ids {
		for _, st := range f.c.nodes[i].layer.Plane().List(true) {
			if slices.Contains(ids, st.Rule.ID) {
				n += st.Counts.Fired()
			}
		}
	}
	return n
}

// End ends the fault. A second End does nothing.
func (f *Fault) End() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	for i, ids := range f.ids {
		for _, id := range ids {
			f.c.nodes[i].layer.Plane().Remove(id)
		}
	}
}

// Faults breaks links as `fabricd faults add --file` does: text is JSON, one rule
// or a list of rules. A rule without "at" acts at the sender, so that the same
// text means the same as given to one end of real nodes. Planes that a test
// cluster does not have, gossip and control, do nothing.
func (c *Cluster) Faults(text string) *Fault {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	rules, err := faults.Decode([]byte(text))
	if err != nil {
		c.tb.Fatalf("fabrictest: %v", err)
	}
	return c.addLocked(rules)
}

// addLocked gives rules to every node. A rule for both ends is enforced at the sender
// only.
func (c *Cluster) addLocked(rules []faults.Rule) *Fault {
	c.tb.Helper()
	c.breaks()
	rules = slices.Clone(rules)
	for i := range rules {
		if rules[i].At == faults.AtBoth {
			rules[i].At = faults.AtFrom
		}
	}
	f := &Fault{c: c, ids: map[int][]uint64{}}
	for i, m := range c.nodes {
		ids, err := m.layer.Plane().AddAll(rules)
		if err != nil {
			c.tb.Fatalf("fabrictest: %v", err)
		}
		f.ids[i] = ids
	}
	return f
}

// breaks fails the test if nothing of the cluster can be broken.
func (c *Cluster) breaks() {
	c.tb.Helper()
	if c.opts.unbroken {
		c.tb.Fatalf("fabrictest: the cluster is Unbroken: its links cannot be broken")
	}
}

// A Direction selects the traffic that PartitionGroups cuts.
type Direction string

// The directions.
const (
	Symmetric  Direction = "symmetric"  // every two groups from each other, both ways
	Asymmetric Direction = "asymmetric" // from each group to those after it
	Partial    Direction = "partial"    // groups that are neighbours in the list, both ways
)

// PartitionGroups separates groups of nodes until Heal. Nodes that are in no
// group reach all. No node is removed, as with Partition.
func (c *Cluster) PartitionGroups(d Direction, groups ...[]int) *Fault {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partitionLocked(d, groups...)
}

func (c *Cluster) partitionLocked(d Direction, groups ...[]int) *Fault {
	c.tb.Helper()
	var sets []faults.Nodes
	for _, g := range groups {
		var ids faults.Nodes
		for _, i := range g {
			ids = append(ids, addr.NodeID(i))
		}
		sets = append(sets, ids)
	}
	rules, err := faults.Partition(sets, faults.Direction(d), faults.Rule{On: faults.Link})
	if err != nil {
		c.tb.Fatalf("fabrictest: %v", err)
	}
	return c.addLocked(rules)
}

// Pause makes node i stand still for d, as others see it: traffic to and from it
// waits, and arrives when it goes on. Its own applications go on meanwhile.
// Pause does not wait. A pause that is too long ends the node's links, as silence
// does; removing the node is up to the test.
func (c *Cluster) Pause(i int, d time.Duration) *Fault {
	c.tb.Helper()
	id := faults.Nodes{addr.NodeID(i)}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addLocked([]faults.Rule{
		{On: faults.Link, From: id, Hold: true, For: faults.Duration(d), Name: fmt.Sprintf("pause %d", i)},
		{On: faults.Link, To: id, Hold: true, For: faults.Duration(d), Name: fmt.Sprintf("pause %d", i)},
	})
}

// unbreakLocked ends all faults of links.
func (c *Cluster) unbreakLocked() {
	for _, m := range c.nodes {
		for _, st := range m.layer.Plane().List(false) {
			if st.Rule.Name != isolation && st.Rule.Name != distance {
				m.layer.Plane().Remove(st.Rule.ID)
			}
		}
	}
}
