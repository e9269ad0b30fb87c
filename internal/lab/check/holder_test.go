package check_test

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// TestAnIDChangesHandsAfterItsQuarantine gives the ID of a lost node to another node,
// ten minutes later and just before that.
func TestAnIDChangesHandsAfterItsQuarantine(t *testing.T) {
	for after, want := range map[time.Duration]check.Verdict{
		10*time.Minute - time.Second: check.Violated,
		10 * time.Minute:             check.Held,
	} {
		m := newModel(1, 4)
		m.die(m.nodes[3])
		m.now += int64(after)
		m.put(history.App(4, 1), &history.Event{What: history.EventSelf, Subject: addr.Incarnation{Node: 3, Generation: 2}, UUID: addr.UUID{77}})
		if j, _ := check.Run(m.records, nil).Invariant("one-holder"); j.Verdict != want {
			t.Errorf("after %v: %s, want %s: %v", after, j.Verdict, want, j.Violations)
		}
	}
}
