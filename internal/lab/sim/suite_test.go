package sim_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// suite returns the scenarios of the tree that a simulation can run: those for all
// labs, and those that showed a mistake here once.
func suite(t testing.TB) []*scenario.Scenario {
	t.Helper()
	return append(folder(t, filepath.Join("..", "..", "..", "deploy", "scenarios")), folder(t, "testdata")...)
}

func folder(t testing.TB, root string) []*scenario.Scenario {
	t.Helper()
	var all []*scenario.Scenario
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		s, err := scenario.Decode(path, text)
		if err != nil {
			return err
		}
		if slices.Contains(s.On, scenario.Sim) {
			all = append(all, s)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSuite runs every scenario that is for the simulation and not longer than a
// minute, with SIM_SEEDS seeds from SIM_SEED on; with the race detector some of
// them. SIM_ONLY names those to run, long ones too.
func TestSuite(t *testing.T) {
	first, n := number(t, "SIM_SEED", 1), number(t, "SIM_SEEDS", 1)
	only := os.Getenv("SIM_ONLY")
	for i, s := range suite(t) {
		if i%suiteEvery != 0 && only == "" {
			continue
		}
		if only != "" && !strings.Contains(string(s.Name), only) || only == "" && s.Duration.Time() > time.Minute {
			continue
		}
		t.Run(string(s.Name), func(t *testing.T) {
			var worst time.Duration
			for seed := first; seed < first+n; seed++ {
				began := time.Now()
				res, err := sim.Run(s.Resolve(seed), sim.Options{})
				if errors.Is(err, sim.ErrUnable) {
					t.Log(err)
					return
				}
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					continue
				}
				worst = max(worst, time.Since(began))
				for _, p := range check.Run(res.History, s).Problems() {
					t.Errorf("seed %d: %s", seed, p)
				}
			}
			t.Logf("%v at worst", worst)
		})
	}
}
