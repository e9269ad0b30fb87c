package sim_test

import (
	"cmp"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// judge runs a scenario with a seed and returns the problems. Where the run was cut
// short as an endless loop, it adds the problems until then.
func judge(t testing.TB, s *scenario.Scenario, seed uint64) []string {
	t.Helper()
	res, err := sim.Run(s.Resolve(seed), sim.Options{})
	if errors.Is(err, sim.ErrUnable) {
		return nil
	}
	if err != nil {
		return append(untilCut(check.Run(res.History, nil).Problems()), err.Error())
	}
	return check.Run(res.History, s).Problems()
}

// untilCut drops the problems of every history that was cut short: it has no end, and
// faults that were not taken back.
func untilCut(problems []string) []string {
	return slices.DeleteFunc(quietly(problems), func(p string) bool { return strings.HasPrefix(p, "whole:") })
}

// TestRandomSchedules runs random scenarios: SIM_SEEDS of them from SIM_SEED on.
func TestRandomSchedules(t *testing.T) { many(t, sim.Random, randomSeeds) }

// TestZombies is B7: nodes that stand still in the middle of operations, five in
// each of SIM_SEEDS runs.
func TestZombies(t *testing.T) { many(t, sim.Zombies, randomSeeds/2) }

// TestFenceCuts is B10: connections that end at random points of fences and
// signals, ten in each of SIM_SEEDS runs.
func TestFenceCuts(t *testing.T) { many(t, sim.Cuts, randomSeeds/2) }

func many(t *testing.T, make func(uint64) *scenario.Scenario, otherwise uint64) {
	first, n := number(t, "SIM_SEED", 1), number(t, "SIM_SEEDS", otherwise)
	var next atomic.Uint64
	next.Store(first)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < first+n; seed = next.Add(1) - 1 {
				for _, p := range quietly(judge(t, make(seed), seed)) {
					t.Errorf("seed %d: %s", seed, p)
				}
			}
		})
	}
	wg.Wait()
}

// quietly leaves out faults that never did anything: a random one may come when
// there is nothing to break.
func quietly(problems []string) []string {
	return slices.DeleteFunc(problems, func(p string) bool { return strings.HasPrefix(p, "fired:") })
}

func number(t testing.TB, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestHunt looks for any problem in a minute's worth of runs, and ends with the first
// one. The mutants are found by it: SIM_HUNT=1 runs all of it and not just two
// scenarios, SIM_ONLY names the scenario to begin with, or the random one: random-29.
func TestHunt(t *testing.T) {
	first, whole := os.Getenv("SIM_ONLY"), os.Getenv("SIM_HUNT") != ""
	all := suite(t)
	slices.SortStableFunc(all, func(a, b *scenario.Scenario) int {
		return cmp.Compare(rank(a, first), rank(b, first))
	})
	if !whole {
		all = all[:2]
	}
	if number, ok := strings.CutPrefix(first, "random-"); ok {
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		found(t, "random", seed, quietly(judge(t, sim.Random(seed), seed)))
	}
	for _, s := range all {
		if s.Duration.Time() > time.Minute {
			continue
		}
		for seed := uint64(1); seed <= 2; seed++ {
			found(t, string(s.Name), seed, judge(t, s, seed))
		}
	}
	for seed := uint64(1); seed <= 30 && whole; seed++ {
		found(t, "random", seed, quietly(judge(t, sim.Random(seed), seed)))
	}
}

func rank(s *scenario.Scenario, first string) int {
	if first != "" && string(s.Name) == first {
		return 0
	}
	return 1
}

func found(t *testing.T, name string, seed uint64, problems []string) {
	t.Helper()
	if len(problems) > 0 {
		t.Fatalf("found by %s, seed %d: %s", name, seed, problems[0])
	}
}
