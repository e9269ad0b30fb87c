//go:build !race

package sim_test

import (
	"testing"

	"github.com/fabricd/fabricd/internal/check"
	"github.com/fabricd/fabricd/internal/sim"
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
  rma: {size: 64, rate: 10, window: 64KiB, fence: 10}
duration: 13s
timeline:
  - {at: 2s..3s, node: {id: $victim, do: stop, for: 5s}}
expect:
  - removed: {node: $victim, times: 1, within: 3s}
  - removals: {min: 1, max: 1}
  - unharmed: {nodes: others}
  - traffic: {among: others, stall: 250ms, least: 90%}
  - mesh: {within: 5s}
`

// TestOneOfFifty lets one node of fifty stand still: the others lose a tenth of
// their throughput at most, and none of their connections stalls.
func TestOneOfFifty(t *testing.T) {
	s := decode(t, oneOfFifty)
	const seed = 1
	// Without a bound so many nodes would say little to each other.
	res, err := sim.Run(s.Resolve(seed), sim.Options{Messages: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range check.Run(res.History, s).Problems() {
		t.Errorf("seed %d: %s", seed, p)
	}
}
