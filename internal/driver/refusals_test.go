package driver

import (
	"testing"
	"time"
)

func TestRefusalsAreLoggedAFewAMinute(t *testing.T) {
	var r refusals
	logged := 0
	for range 100 {
		if _, report := r.add(time.Second); report {
			logged++
		}
	}
	if logged != reportsPerMinute || r.total != 100 {
		t.Errorf("%d of %d logged, want %d of 100", logged, r.total, reportsPerMinute)
	}
	if unreported, report := r.add(time.Second + time.Minute); !report || unreported != 100-reportsPerMinute {
		t.Errorf("a minute later: %v, %d not reported before, want %d", report, unreported, 100-reportsPerMinute)
	}
	if unreported, report := r.add(2 * time.Minute); !report || unreported != 0 {
		t.Errorf("the next: %v, %d not reported before, want none", report, unreported)
	}
}
