package sim_test

import (
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/sim"
)

// TestHoursOfComingAndGoingLeaveNothing is P21 with SIM_HOURS=24: a node that stays for
// a day keeps no more than after an hour.
func TestHoursOfComingAndGoingLeaveNothing(t *testing.T) {
	span := hours
	if s := os.Getenv("SIM_HOURS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 2 {
			t.Fatalf("SIM_HOURS: %q: want 2 or more", s)
		}
		span = n
	}
	out, err := sim.Stay(1, 6, span)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d incarnations in %d hours; the host and a member keep %v", out.Incarnations, span, out.Sizes)
	if out.Incarnations < uint64(20*span) {
		t.Errorf("only %d incarnations began: the run shows nothing", out.Incarnations)
	}
	for hour, size := range out.Sizes {
		if most := out.Sizes[0] + out.Sizes[0]/10; size > most || size == 0 {
			t.Errorf("after %d hours they keep %d elements, %d after the first", hour+1, size, out.Sizes[0])
		}
	}
}

// TestChurn is B5 with SIM_CHANGES=1000000: a million membership changes without
// a broken promise. Otherwise it is a short cut of it.
func TestChurn(t *testing.T) {
	want := uint64(changes)
	if s := os.Getenv("SIM_CHANGES"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("SIM_CHANGES: %v", err)
		}
		want = n
	}
	var mu sync.Mutex // guards the fields below
	var total sim.Churned
	next := uint64(1)
	one := func() bool {
		mu.Lock()
		seed := next
		next++
		over := total.Events >= want || t.Failed()
		mu.Unlock()
		if over {
			return false
		}
		c, err := sim.Churn(seed, 3+int(seed%6), 500)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		for _, b := range c.Bugs {
			t.Errorf("seed %d: %s", seed, b)
		}
		mu.Lock()
		defer mu.Unlock()
		total.Incarnations += c.Incarnations
		total.Events += c.Events
		total.Virtual += c.Virtual
		return true
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for one() {
			}
		})
	}
	wg.Wait()
	t.Logf("%d changes of %d incarnations reported in %v of virtual time", total.Events, total.Incarnations, total.Virtual)
}
