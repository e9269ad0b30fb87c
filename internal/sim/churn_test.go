package sim_test

import (
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/sim"
)

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
		total.Lives += c.Lives
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
	t.Logf("%d changes told of %d lives in %v of virtual time", total.Events, total.Lives, total.Virtual)
}
