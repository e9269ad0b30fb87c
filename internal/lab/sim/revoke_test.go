package sim_test

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// TestRevoke holds a ban to its figure: within a second from the command no node of 200
// has a link, a lifeline or a session of the banned one, and no other node is removed.
func TestRevoke(t *testing.T) {
	sizes := []struct{ nodes, runs int }{{8, 20}, {32, 5}, {200, 3}}
	if !manyNodes || testing.Short() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		nodes, runs := size.nodes, size.runs
		took, err := sim.Revoke(nodes, scenario.Normal, 1, runs)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d nodes, %d runs: a ban has ended everything after %v, at most %v", nodes, runs, took.P50, took.Max)
		if took.Max > time.Second {
			t.Errorf("%d nodes: a ban has ended everything after %v, want 1s", nodes, took.Max)
		}
	}
}
