package check

import (
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A machine judges one promise.
type machine interface {
	// see is given every record in order.
	see(i int, r *history.Record)
	// finish is called once, after the last record.
	finish()
	judgement() Judgement
}

// machines returns all invariants over a world.
func machines(w *world) []machine {
	return []machine{
		newWhole(w), newFired(w),
		newPrefix(w), newDrain(w), newResetAll(w), newHang(w),
		newEvents(w), newTold(w), newCause(w), newHolder(w), newAgreement(w),
		newFencing(w), newRMA(w), newFence(w), newWindows(w),
		newPaths(w), newLeaks(w), newRecovery(w), newIsolation(w), newStalls(w), newSurvival(w),
	}
}

// Run judges a history, which is ordered by time, source and number ([history.Merge]), and, if s is
// not nil, holds it to the scenario's expectations and makes its figures. It never fails: a gap in
// the history is a violation of the invariant "whole".
func Run(records []history.Record, s *scenario.Scenario) *Result {
	w := newWorld(records)
	all := machines(w)
	for i := range records {
		for _, m := range all {
			m.see(i, &records[i])
		}
	}
	out := &Result{Begin: w.begin, Zero: w.zero, End: w.end, Records: len(records), Stall: w.longestStall(), Paths: wentOver(records)}
	for _, m := range all {
		m.finish()
		out.Invariants = append(out.Invariants, m.judgement())
	}
	if s != nil {
		schedule := s.Resolve(w.begin.Seed)
		for i := range s.Expect {
			out.Expectations = append(out.Expectations, expect(w, schedule, &s.Expect[i]))
		}
		out.Figures = figures(w, s.Figures)
	} else {
		out.Figures = figures(w, scenario.FigureNames)
	}
	return out
}
