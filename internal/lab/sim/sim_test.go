package sim_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

func decode(t testing.TB, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Decode("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const workload = `
workload:
  pairs: mesh
  messages: {size: 64..4096, rate: 50}
  rma: {size: 8..4096, rate: 50, window: 64KiB, fence: 10, signal: 20, reads: 20%}
  connects: 2
  waiters: true
`

const broken = `
version: 1
name: broken
on: [sim]
cluster: {nodes: 3, detection: fast}
select: {victim: {any: 1, not: [0]}, other: {any: 1, fresh: true}}
duration: 6s
timeline:
  - {at: 1s..2s, node: {id: $victim, do: kill, for: 1s}}
  - {every: 2s, from: 2s, until: 5s, node: {id: $other, do: stop, for: 100ms..2s}}
  - {at: 1s, link: {from: 1, to: 2, drop: 20%, delay: 2ms, jitter: 10ms, duplicate: 5%, reorder: 5%, for: 3s}}
  - {at: 4s, partition: {groups: [[0, 1], [2]], for: 2s}}
` + workload

// run runs a scenario and demands that the simulation itself found nothing.
func run(t testing.TB, s *scenario.Scenario, seed uint64) []history.Record {
	t.Helper()
	res, err := sim.Run(s.Resolve(seed), sim.Options{})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for _, r := range res.History {
		if b, ok := r.Body.(*history.Logged); ok {
			t.Errorf("seed %d: %v %s: %s", seed, time.Duration(r.At), b.Target, b.Line)
		}
	}
	return res.History
}

// TestSameSeedSameHistory tests the basis of every other use of a seed.
func TestSameSeedSameHistory(t *testing.T) {
	s := decode(t, broken)
	seeds := uint64(twiceSeeds)
	if testing.Short() {
		seeds = 5
	}
	seen := map[[32]byte]uint64{}
	for seed := uint64(1); seed <= seeds; seed++ {
		a, err := sum(run(t, s, seed))
		if err != nil {
			t.Fatal(err)
		}
		b, err := sum(run(t, s, seed))
		if err != nil {
			t.Fatal(err)
		}
		if a != b {
			t.Errorf("seed %d: two runs have histories %x and %x", seed, a[:8], b[:8])
		}
		if other, ok := seen[a]; ok {
			t.Errorf("seeds %d and %d have the same history: the hash sees nothing", other, seed)
		}
		seen[a] = seed
	}
}

// sum returns a hash of a history's lines. Two runs of one schedule and seed
// have the same.
func sum(records []history.Record) ([sha256.Size]byte, error) {
	h := sha256.New()
	var line []byte
	for _, r := range records {
		var err error
		if line, err = history.Append(line[:0], r); err != nil {
			return [sha256.Size]byte{}, err
		}
		h.Write(line)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}
