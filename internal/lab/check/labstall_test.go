package check_test

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// TestARunWhoseLabStoodStillIsInDoubt removes a healthy node while the lab stood still, for as long
// as could explain it and not, and breaks invariants that no standstill can.
func TestARunWhoseLabStoodStillIsInDoubt(t *testing.T) {
	result := func(still time.Duration, fault string, names ...string) *check.Result {
		records := []history.Record{{Source: history.Lab, Seq: 1, Body: &history.Begin{Version: history.Version, Detection: "fast", Lab: "local"}}}
		if fault != "" {
			records = append(records, history.Record{Source: history.Lab, Seq: 2, Body: &history.Fault{ID: 1, What: fault}})
		}
		if still > 0 {
			records = append(records, history.Record{Source: history.Lab, Seq: 3, Body: &history.Stall{For: int64(still)}})
		}
		r := check.Run(records, nil)
		r.Invariants = nil
		for _, name := range names {
			r.Invariants = append(r.Invariants, check.Judgement{Name: name, Verdict: check.Violated, Count: 1})
		}
		return r
	}
	const long = 1100 * time.Millisecond // a node of profile fast may stand still for a second
	for _, tt := range []struct {
		name  string
		r     *check.Result
		doubt bool
	}{
		{"removed while nobody ran", result(long, "", "cause"), true},
		{"removed in a run that went on", result(0, "", "cause"), false},
		{"removed after a short standstill", result(900*time.Millisecond, "", "cause"), false},
		{"removed where the scenario takes the processors", result(long, "cpu share 10% hogs 10", "cause"), false},
		{"a node was killed too", result(long, "node kill", "cause", "isolation"), true},
		{"bytes were lost as well", result(long, "", "cause", "prefix"), false},
		{"nothing was wrong", result(long, ""), false},
	} {
		if err := tt.r.Doubt(); (err != nil) != tt.doubt {
			t.Errorf("%s: doubt %v, want one: %v", tt.name, err, tt.doubt)
		}
	}
}
