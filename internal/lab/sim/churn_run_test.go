package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A Churned is the result of a [Churn].
type Churned struct {
	Incarnations uint64        // that began
	Events       uint64        // beginnings and ends of incarnations that were reported, at all nodes
	Bugs         []string      // broken promises, at most 20
	Virtual      time.Duration // that passed
}

// Churn runs a cluster whose nodes come and go until so many incarnations have begun, and
// checks every event: each node that is notified of an incarnation gets exactly one beginning
// and one end of it, in the order of generations, and no ID has two incarnations. Nodes are
// killed, stopped, cut off and replaced, on disks that fail; every few seconds the
// cluster gets time to be whole again, and has to be.
func Churn(seed uint64, nodes int, incarnations uint64) (Churned, error) {
	w := newWorld(seed, nodes, verdict.Fast(), Options{})
	w.log.keep = func(r history.Record) bool {
		_, logged := r.Body.(*history.Logged)
		return logged
	}
	for _, m := range w.machines {
		w.boot(m)
	}
	c := &churn{w: w}
	for w.watch.incarnations < incarnations && w.watch.bugs < 20 {
		for range 20 {
			c.fault()
			w.until(w.now + between(w.rng, 20*time.Millisecond, 400*time.Millisecond))
		}
		if err := c.heal(); err != nil {
			return c.result(), err
		}
	}
	return c.result(), nil
}

type churn struct {
	w    *world
	stay int // so many machines at the front run all the time
}

func (c *churn) result() Churned {
	w := c.w
	out := Churned{Incarnations: w.watch.incarnations, Events: w.watch.events, Virtual: w.now}
	for _, r := range w.log.records {
		if b, ok := r.Body.(*history.Logged); ok && len(out.Bugs) < 20 {
			out.Bugs = append(out.Bugs, fmt.Sprintf("at %v %s: %s", time.Duration(r.At), b.Target, b.Line))
		}
	}
	return out
}

// fault does one thing to the cluster.
func (c *churn) fault() {
	w := c.w
	m := w.machines[c.stay+w.rng.IntN(len(w.machines)-c.stay)]
	short := between(w.rng, 5*time.Millisecond, 1500*time.Millisecond)
	switch w.rng.IntN(12) {
	case 0, 1, 2, 3, 4: // the same node again, faster than any detection
		w.kill(m, history.DidKill, "")
		w.after(between(w.rng, time.Millisecond, 50*time.Millisecond), func() { w.boot(m) })
	case 5:
		w.kill(m, history.DidKill, "")
		w.after(short, func() { w.boot(m) })
	case 6:
		if w.freeze(m) {
			w.after(2*short, func() { w.thaw(m) })
		}
	case 7, 8:
		if m.proc != nil {
			m.proc.soon(m.proc.leave)
			w.after(short, func() { w.boot(m) })
		}
	case 9:
		if !m.host {
			w.kill(m, history.DidKill, "")
			if c.stay == 0 { // a machine that never comes back keeps its lease until IDs run out
				w.wipe(m)
			}
			w.after(short, func() { w.boot(m) })
		}
	case 10:
		c.cut(m, short)
	case 11:
		d := &w.machines[0].disk
		d.full = true
		w.after(short/4, func() { d.full = false })
	}
}

// cut takes a machine off the network, or one direction between two.
func (c *churn) cut(m *machine, d time.Duration) {
	w := c.w
	all := make([]int, len(w.machines))
	for i := range all {
		all[i] = i
	}
	var rules []*rule
	cut := func(from, to []int) {
		rules = append(rules, w.net.add(faults.Rule{On: faults.All, Cut: true}, from, to))
	}
	if o := w.rng.IntN(len(w.machines)); w.rng.IntN(2) == 0 && o != m.index {
		cut([]int{m.index}, []int{o})
	} else {
		cut([]int{m.index}, all)
		cut(all, []int{m.index})
	}
	w.gossip.changed()
	w.after(d, func() {
		for _, r := range rules {
			w.net.remove(r)
		}
		w.gossip.changed()
	})
}

// healLimit is how long a cluster may take to be whole after the last fault.
const healLimit = 15 * time.Second

// heal waits until every fault is over and the cluster whole.
func (c *churn) heal() error {
	w := c.w
	w.until(w.now + 3*time.Second)
	for _, m := range w.machines {
		w.thaw(m)
		w.boot(m)
	}
	for began := w.now; !w.whole(); w.until(w.now + 50*time.Millisecond) {
		if w.now-began > healLimit {
			return fmt.Errorf("at %v: the cluster is not whole %v after the last fault", w.now, healLimit)
		}
	}
	w.log.records = slices.Clip(w.log.records)
	return nil
}
