package sim

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// Shrink returns the shortest scenario that it finds whose resolved schedule still
// fails. It leaves out actions, half of them first and single ones in the end, then
// parts of the workload, and then makes the rest shorter. It calls fails at most most
// times. The result has nothing random left but the decisions about packets; the seed of s
// repeats it.
func Shrink(s *scenario.Schedule, fails func(*scenario.Schedule) bool, most int) *scenario.Scenario {
	k := &shrinker{seed: s.Seed, fails: fails, left: most, best: s.Fixed(nil)}
	if !k.try(k.best) {
		return s.Scenario // fixed, it does not fail: the random part matters
	}
	k.actions()
	k.workload()
	k.lengths()
	k.nodes()
	return k.best
}

// A shrinker holds the best scenario so far.
type shrinker struct {
	seed  uint64
	fails func(*scenario.Schedule) bool
	left  int
	best  *scenario.Scenario
}

// try takes c if it is valid and fails.
func (k *shrinker) try(c *scenario.Scenario) bool {
	if k.left <= 0 || c.Check() != nil {
		return false
	}
	k.left--
	if !k.fails(c.Resolve(k.seed)) {
		return false
	}
	k.best = c
	return true
}

// actions leaves out as many steps as it can, large parts first, and single ones until each
// is needed.
func (k *shrinker) actions() {
	for part := (len(k.best.Timeline) + 1) / 2; part > 0; part /= 2 {
		for again := true; again; {
			again = k.leaveOut(part) && part == 1
		}
	}
}

// leaveOut leaves out parts of so many steps, and reports whether it could.
func (k *shrinker) leaveOut(part int) (gone bool) {
	for from := 0; from < len(k.best.Timeline) && k.left > 0; {
		c := *k.best
		c.Timeline = slices.Delete(slices.Clone(c.Timeline), from, min(from+part, len(c.Timeline)))
		if k.try(&c) {
			gone = true
		} else {
			from += part
		}
	}
	return gone
}

// workload leaves out parts of the workload.
func (k *shrinker) workload() {
	for _, less := range []func(*scenario.Workload){
		func(w *scenario.Workload) { w.RMA = nil },
		func(w *scenario.Workload) { w.Messages = nil },
		func(w *scenario.Workload) { w.Connects = 0 },
		func(w *scenario.Workload) { w.Windows = 0 },
		func(w *scenario.Workload) { w.Waiters = false },
	} {
		c := *k.best
		less(&c.Workload)
		k.try(&c)
	}
}

// lengths halves how long faults and the run last.
func (k *shrinker) lengths() {
	for range 4 {
		for i := range k.best.Timeline {
			c := *k.best
			c.Timeline = slices.Clone(c.Timeline)
			if halve(&c.Timeline[i].Do) {
				k.try(&c)
			}
		}
		c := *k.best
		c.Duration = (c.Duration * 3 / 4) / scenario.Duration(time.Millisecond) * scenario.Duration(time.Millisecond)
		k.try(&c)
	}
}

// halve makes an action half as long. It reports false if it has no length.
func halve(d *scenario.Do) bool {
	*d = d.Clone()
	span := d.Lasts()
	if span == nil || !span.Set || span.From < scenario.Duration(2*time.Millisecond) {
		return false
	}
	*span = scenario.At((span.From / 2) / scenario.Duration(time.Millisecond) * scenario.Duration(time.Millisecond))
	return true
}

// nodes takes nodes off the end of the cluster.
func (k *shrinker) nodes() {
	for k.best.Cluster.Nodes > 2 {
		c := *k.best
		c.Cluster.Nodes--
		if !k.try(&c) {
			return
		}
	}
}
