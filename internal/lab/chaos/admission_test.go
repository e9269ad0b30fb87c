package chaos

import (
	"testing"
	"time"
)

func TestRunsBeginWhileTheMachineHasRoom(t *testing.T) {
	for name, c := range map[string]struct {
		others int
		since  time.Duration
		idle   float64
		want   bool
	}{
		"nothing runs":             {0, 0, 0, true},
		"the last one just began":  {1, time.Second, 0.9, false},
		"half of it is idle":       {3, settleRun, 0.5, true},
		"it has too much to do":    {1, time.Minute, 0.2, false},
		"the last one has settled": {1, settleRun, idleLeast, true},
	} {
		if got := hasRoom(c.others, c.since, c.idle); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestIdleProcessors(t *testing.T) {
	before, ok := parseUsage("cpu  100 1 50 800 20 0 5 24 0 0\ncpu0 1 2 3\n")
	if want := (usage{1000, 820}); !ok || before != want {
		t.Fatalf("%+v, %v, want %+v", before, ok, want)
	}
	after, _ := parseUsage("cpu  140 1 80 890 30 0 5 54 0 0\n") // 200 more, 100 of them idle
	if got := after.idleSince(before); got != 0.5 {
		t.Errorf("idle for %v of the time, want half", got)
	}
	if got := before.idleSince(after) + after.idleSince(after); got != 0 {
		t.Errorf("time that went back was idle for %v of it", got)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h"} {
		if u, ok := parseUsage(bad); ok {
			t.Errorf("%q says %+v", bad, u)
		}
	}
	if u, ok := processors(); !ok || u.all == 0 || u.idle > u.all {
		t.Errorf("this machine says %+v, %v", u, ok)
	}
}
