package chaos

import (
	"context"
	"slices"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// A Shortening is a scenario made shorter while it still breaks the same
// promise with the same seed.
type Shortening struct {
	Scenario *scenario.Scenario // nothing in it is random any more
	Promise  string             // name of the judgement that stays violated
	Runs     int                // that it took
	Before   int                // actions of the schedule
	After    int                // steps that are left
}

// MaxShorteningRuns bounds the runs of one Minimize.
const MaxShorteningRuns = 2000

// Minimize shortens a scenario that breaks a promise with a seed: it leaves out
// actions, parts of the workload and time ([sim.Shrink]), as long as a run still breaks
// the first promise that the whole one broke. run makes one run and judges it; it has
// to be repeatable, which only the simulation is. progress is called after every run
// that got shorter; it may be nil.
func Minimize(ctx context.Context, sc *scenario.Scenario, seed uint64,
	run func(context.Context, *scenario.Schedule) *Outcome, progress func(Shortening)) (*Shortening, error) {
	schedule := sc.Resolve(seed)
	out := run(ctx, schedule)
	short := &Shortening{Promise: firstBroken(out), Runs: 1, Before: len(schedule.Actions)}
	if short.Promise == "" && out.Err != nil {
		return nil, out.Err
	}
	if short.Promise == "" {
		return nil, refusef("scenario %s with seed %d breaks nothing: there is nothing to shorten", sc.Name, seed)
	}
	fails := func(s *scenario.Schedule) bool {
		if ctx.Err() != nil {
			return false
		}
		short.Runs++
		if !breaks(run(ctx, s), short.Promise) {
			return false
		}
		short.Scenario, short.After = s.Scenario, len(s.Actions)
		if progress != nil {
			progress(*short)
		}
		return true
	}
	short.Scenario = sim.Shrink(schedule, fails, MaxShorteningRuns)
	short.After = len(short.Scenario.Timeline)
	return short, ctx.Err()
}

// judgements are all judgements of an outcome.
func judgements(out *Outcome) []check.Judgement {
	if out.Result == nil {
		return nil
	}
	return slices.Concat(out.Result.Invariants, out.Result.Expectations)
}

// firstBroken names the first judgement that is violated, "" if none is.
func firstBroken(out *Outcome) string {
	for _, j := range judgements(out) {
		if j.Count > 0 {
			return j.Name
		}
	}
	return ""
}

// breaks reports whether the outcome violates the judgement of a name.
func breaks(out *Outcome, name string) bool {
	return slices.ContainsFunc(judgements(out), func(j check.Judgement) bool { return j.Name == name && j.Count > 0 })
}
