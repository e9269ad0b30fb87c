package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
)

// TestTheNearestNodeIsTriedFirst: this node's own service, then by round trip; one whose round
// trip is not known comes last, and equal ones come in any order.
func TestTheNearestNodeIsTriedFirst(t *testing.T) {
	want := []time.Duration{0, 2 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, -1, -1}
	orders := make(map[string]bool)
	for range 100 {
		var all []attach.Service
		for i, trip := range want {
			all = append(all, attach.Service{Name: string(rune('a' + i)), RoundTrip: trip})
		}
		slices.Reverse(all)
		nearestFirst(all)
		var got []time.Duration
		order := ""
		for _, s := range all {
			got, order = append(got, s.RoundTrip), order+s.Name
		}
		if !slices.Equal(got, want) {
			t.Fatalf("round trips %v, want %v", got, want)
		}
		orders[order] = true
	}
	if len(orders) != 4 {
		t.Errorf("%d orders of equal ones in 100 tries, want all 4: %v", len(orders), orders)
	}
}
