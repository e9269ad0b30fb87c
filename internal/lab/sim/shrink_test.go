//go:build !race

package sim_test

import (
	"slices"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// TestShrink takes that a node is removed for a mistake, and lets a random
// scenario be made as small as it can be with that in it.
func TestShrink(t *testing.T) {
	const most = 60
	calls := 0
	fails := func(s *scenario.Schedule) bool {
		calls++
		res, err := sim.Run(s, sim.Options{})
		return err == nil && slices.ContainsFunc(res.History, removed)
	}
	for seed := uint64(1); ; seed++ {
		whole := sim.Random(seed).Resolve(seed)
		if len(whole.Scenario.Timeline) < 5 || !fails(whole) {
			continue
		}
		calls = 0
		small := sim.Shrink(whole, fails, most)
		if calls > most {
			t.Errorf("fails was called %d times, want at most %d", calls, most)
		}
		if !fails(small.Resolve(seed)) {
			t.Errorf("seed %d: the small one does not fail", seed)
		}
		if n, w := len(small.Timeline), small.Workload; n > 3 || w.Messages != nil || w.RMA != nil {
			t.Errorf("seed %d: %d actions of %d are left, and of the workload %+v", seed, n, len(whole.Scenario.Timeline), w)
		}
		return
	}
}

// TestShrinkKeeps: a schedule that does not fail is returned unchanged.
func TestShrinkKeeps(t *testing.T) {
	whole := sim.Random(1).Resolve(1)
	if got := sim.Shrink(whole, func(*scenario.Schedule) bool { return false }, 10); got != whole.Scenario {
		t.Errorf("the scenario has changed to %+v", got)
	}
}

func removed(r history.Record) bool {
	e, ok := r.Body.(*history.Event)
	return ok && e.What == history.EventRemoved
}
