package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// timely are the invariants that a machine can break by standing still: a process that it stops is
// silent, is late, and is taken for lost. The order of arrival, of writes and of notices does not
// depend on when.
var timely = []string{"cause", "no-hang", "isolation", "recovery"}

// longestStall returns for how long at most the lab itself stood still.
func (w *world) longestStall() (longest int64) {
	for _, x := range w.labStalls {
		longest = max(longest, x.to-x.from)
	}
	return longest
}

// late excuses the violation that was just found if something that had to happen between two times
// came later than a limit, at a time, and the lab itself stood still meanwhile for as long as it
// was late. An event that never came is not excused.
func (g *judge) late(from, limit, at int64) {
	if at <= limit || at == never {
		return
	}
	var stood int64
	for _, x := range g.w.labStalls {
		stood += max(0, min(x.to, at)-max(x.from, from))
	}
	if stood >= at-limit {
		g.j.Excused++
	}
}

// Doubt returns why a result that is not OK proves nothing, nil if it counts. All violations came
// late, by less than the lab itself stood still meanwhile; or they are of timely invariants or of
// expectations, and the lab, which no fault touches, stood still for longer than a node may without
// being removed. Shorter pauses the fabric has promised to survive, and bounds have a slack for
// them.
func (r *Result) Doubt() error {
	may := scenario.Detection(r.Begin.Detection).Bound().Pause
	still := time.Duration(r.Stall)
	sound := func(expected bool) func(Judgement) bool {
		return func(j Judgement) bool {
			explained := still > may && (expected || slices.Contains(timely, j.Name)) || j.Excused == j.Count
			return j.Verdict == Violated && !explained
		}
	}
	unmet := func(j Judgement) bool { return j.Verdict == NotExercised && still <= may }
	if r.OK() || still == 0 || slices.ContainsFunc(r.Invariants, sound(false)) ||
		slices.ContainsFunc(r.Expectations, sound(true)) || slices.ContainsFunc(r.Expectations, unmet) {
		return nil
	}
	return fmt.Errorf("the machine had no processor for the lab for %v, which is as much as something came late, or longer than the %v for which a node may stand still: what is wrong may be its doing",
		still.Round(time.Millisecond), may)
}
