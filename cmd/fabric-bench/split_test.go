package main

import (
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

func TestSplitsAreMeasuredOnBothSides(t *testing.T) {
	temporaries(t)
	d := document(t, "run", healTest, "--fabricd", buildFabricd(t), "--nodes", "3", "--splits", "2", "--detection", "fast", "--providers", "tcp")
	carriedAll(t, d, "tcp")
	if len(d.Splits) != 2 || len(d.Results) != 2 || len(d.Checks) != 2 {
		t.Fatalf("%d splits, %d rows, %d checks; want 2 of each", len(d.Splits), len(d.Results), len(d.Checks))
	}
	for _, s := range d.Splits {
		if s.Nodes != 3 || s.Apart != 1 || len(s.Removed) != 2 || !s.Healed.measured() || s.Healed <= 0 {
			t.Errorf("the split is %+v", s)
		}
		for _, us := range s.Removed {
			if us < 1e6 { // a cut is noticed by silence
				t.Errorf("NODE_REMOVED %v µs after the cut", us)
			}
		}
	}
	if r := d.Results[0]; r.Test != eventTest || r.Iters != 4 || r.Reps != 2 {
		t.Errorf("the row of the cut is %+v", r.Row)
	}
	if r := d.Results[1]; r.Test != healTest || r.Iters != 2 || r.Reps != 2 {
		t.Errorf("the row of the healing is %+v", r.Row)
	}
}

func TestCutsAreBothWays(t *testing.T) {
	life := func(n fabric.NodeID) fabric.Life { return fabric.Life{Node: n, Generation: 1} }
	rules := cutBetween([]fabric.Life{life(0), life(1)}, []fabric.Life{life(2)})
	if len(rules) != 2 || len(rules[0].From) != 2 || len(rules[0].To) != 1 || len(rules[1].From) != 1 || len(rules[1].To) != 2 || !rules[0].Cut || !rules[1].Cut {
		t.Errorf("%+v", rules)
	}
}
