//go:build !race

package sim_test

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

const oneOfFifty = `
version: 1
name: one-of-fifty
on: [sim]
cluster: {nodes: 50, detection: normal}
select: {victim: {any: 1, not: [0]}}
workload:
  pairs: ring
  messages: {size: 64, rate: 10}
  rma: {size: 64, rate: 10, window: 64KiB, fence: 5}
  connects: 2
duration: 18s
timeline:
  - {at: 6s..7s, node: {id: $victim, do: stop, for: 5s}}
expect:
  - removed: {node: $victim, times: 1, within: 3s}
  - removals: {min: 1, max: 1}
  - unharmed: {nodes: others}
  - traffic: {among: others, stall: 250ms, least: 90%}
  - mesh: {within: 5s}
figures: [latency]
`

// TestOneOfFifty lets one node of fifty stand still: the others lose a tenth of
// their throughput at most, none of their connections stalls, and 99 of 100 of
// their fences and first messages take a tenth longer at most.
func TestOneOfFifty(t *testing.T) {
	s := decode(t, oneOfFifty)
	const seed = 1
	// Without a bound so many nodes would say little to each other.
	res, err := sim.Run(s.Resolve(seed), sim.Options{Full: true})
	if err != nil {
		t.Fatal(err)
	}
	judged := check.Run(res.History, s)
	for _, p := range judged.Problems() {
		t.Errorf("seed %d: %s", seed, p)
	}
	for _, of := range []string{"fence_wait", "first message"} {
		was, is := latencyOf(judged, of+", before"), latencyOf(judged, of+", since the first fault")
		if was.Count < 100 || is.Count < 100 {
			t.Errorf("seed %d: %s was timed %d times before the fault and %d times since, want 100 each", seed, of, was.Count, is.Count)
		}
		if is.P99*10 > was.P99*11 {
			t.Errorf("seed %d: %s takes %v since the fault (p99 of %d), before it %v (of %d): want a tenth more at most",
				seed, of, time.Duration(is.P99), is.Count, time.Duration(was.P99), was.Count)
		}
	}
}

// latencyOf returns one of the figures of latency, empty if nothing was timed.
func latencyOf(r *check.Result, of string) check.Figure {
	for _, f := range r.Figures {
		if f.Name == scenario.Latency && f.Of == of {
			return f
		}
	}
	return check.Figure{}
}
