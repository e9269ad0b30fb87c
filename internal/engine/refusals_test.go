package engine

import (
	"testing"
	"time"
)

func TestRefusalsAreLoggedAFewAMinute(t *testing.T) {
	var r refusals
	logged := 0
	for range 100 {
		if _, log := r.add(time.Second); log {
			logged++
		}
	}
	if logged != reportsPerMinute || r.total != 100 {
		t.Errorf("%d of %d logged, want %d of 100", logged, r.total, reportsPerMinute)
	}
	if suppressed, log := r.add(time.Second + time.Minute); !log || suppressed != 100-reportsPerMinute {
		t.Errorf("a minute later: %v, %d suppressed before, want %d", log, suppressed, 100-reportsPerMinute)
	}
	if suppressed, log := r.add(2 * time.Minute); !log || suppressed != 0 {
		t.Errorf("the next: %v, %d suppressed before, want none", log, suppressed)
	}
}
