package check_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// ofRealLabs is the invariant that the model does not exercise, as simulated labs do not:
// TestARunThatNeverUsedAPathIsSeen does.
const ofRealLabs = "paths"

func TestCorrectHistoriesHold(t *testing.T) {
	exercised := map[string]bool{}
	for seed := range uint64(200) {
		nodes := 2 + int(seed%7)
		r := check.Run(correct(seed, nodes, 300), modelScenario(nodes, "  - mesh: {within: 5s}\n  - connects: {within: 5s}\n"))
		if !r.OK() {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(r.Problems(), "\n"))
		}
		for _, j := range r.Invariants {
			exercised[j.Name] = exercised[j.Name] || j.Verdict == check.Held
		}
	}
	for name, ok := range exercised {
		if !ok && name != ofRealLabs {
			t.Errorf("no model exercises %s", name)
		}
	}
}

func TestRunIsPure(t *testing.T) {
	records := correct(3, 5, 300)
	a, b := check.Run(records, nil), check.Run(records, nil)
	if !reflect.DeepEqual(a, b) {
		t.Error("two runs over one history differ")
	}
}

func TestEmptyHistoryIsNoSuccess(t *testing.T) {
	r := check.Run(nil, nil)
	if r.OK() {
		t.Error("an empty history is fine")
	}
	for _, j := range r.Invariants {
		if j.Name != "whole" && j.Verdict != check.NotExercised {
			t.Errorf("%s is %s on an empty history", j.Name, j.Verdict)
		}
	}
}

// TestLargeHistory bounds the cost of a long run.
func TestLargeHistory(t *testing.T) {
	m := newModel(9, 4)
	c := m.connect(m.nodes[1], m.nodes[2])
	m.die(m.nodes[3])
	for len(m.records) < manyRecords {
		m.talk(c)
		m.now += 1000
	}
	records := m.finish()
	began := time.Now()
	r := check.Run(records, modelScenario(4, ""))
	took := time.Since(began)
	if !r.OK() {
		t.Fatalf("%s", strings.Join(r.Problems(), "\n"))
	}
	t.Logf("%d records in %s", len(records), took)
	if took > 30*time.Second {
		t.Errorf("%d records took %s", len(records), took)
	}
}

func TestViolationsShowTheirProof(t *testing.T) {
	records := correct(5, 4, 200)
	for i, r := range records {
		if b, ok := r.Body.(*history.Event); ok && b.What == history.EventRemoved {
			records = renumber(append(records[:i+1:i+1], append([]history.Record{r}, records[i+1:]...)...))
			break
		}
	}
	r := check.Run(records, nil)
	j, _ := r.Invariant("events")
	if j.Verdict != check.Violated || j.Count != 1 || len(j.Violations[0].Proof) < 2 || len(j.Violations[0].Lines) != len(j.Violations[0].Proof) {
		t.Fatalf("an event that was delivered twice: %+v", j)
	}
	if !strings.Contains(j.Violations[0].What, "notified twice") || !strings.Contains(j.Violations[0].Lines[2], `"removed"`) {
		t.Errorf("%+v", j.Violations[0])
	}
}
