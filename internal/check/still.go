package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/history"
	"github.com/fabricd/fabricd/internal/scenario"
)

// timely are the invariants that a machine can break by standing still: whom it
// stops says nothing, is late, and is taken for lost. What arrives, lands and is
// told in which order does not depend on when.
var timely = []string{"cause", "no-hang", "isolation", "recovery"}

// longestStill returns for how long at most the lab itself stood still, and 0 if it
// was told to leave no processor to anybody.
func longestStill(records []history.Record) (longest int64) {
	for i := range records {
		switch b := records[i].Body.(type) {
		case *history.Still:
			longest = max(longest, b.For)
		case *history.Fault:
			if what, _, _ := strings.Cut(b.What, " "); what == "cpu" {
				return 0
			}
		}
	}
	return longest
}

// Doubt returns why a result that is not OK says nothing, nil if it says what it
// says: all that is wrong is of timely invariants or of expectations, and the lab
// itself, which no fault touches, stood still for longer than a node may without being
// removed. What is shorter the fabric has promised to survive.
func (r *Result) Doubt() error {
	may := scenario.Detection(r.Begin.Detection).Bound().Pause
	still := time.Duration(r.Still)
	sound := func(j Judgement) bool { return j.Verdict == Violated && !slices.Contains(timely, j.Name) }
	if r.OK() || still <= may || slices.ContainsFunc(r.Invariants, sound) {
		return nil
	}
	return fmt.Errorf("the machine had no processor for the lab for %v, and a node may stand still for %v: what is wrong may be its doing",
		still.Round(time.Millisecond), may)
}
