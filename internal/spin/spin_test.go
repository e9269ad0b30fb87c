package spin

import (
	"testing"

	"pgregory.net/rapid"
)

func TestBudgetGrowsWhereLookingPays(t *testing.T) {
	b := New(64)
	for _, want := range []int{8, 16, 32, 64, 64} {
		if got := b.Polls(); got != want {
			t.Fatalf("%d looks, want %d", got, want)
		}
		b.Ended(true)
	}
	for _, want := range []int{64, 32, 16, 8, 4, 2, 1, 0} {
		if got := b.Polls(); got != want {
			t.Fatalf("%d looks, want %d", got, want)
		}
		b.Ended(false)
	}
}

// A waiter that never sees an event polls less than once in eight waits.
func TestBudgetStopsWhereItDoesNot(t *testing.T) {
	b := New(64)
	const waits = 10000
	looks := 0
	for range waits {
		n := b.Polls()
		looks += n
		if n > 0 {
			b.Ended(false)
		}
	}
	if looks == 0 || looks > waits/4 {
		t.Errorf("%d looks in %d waits", looks, waits)
	}
}

func TestZeroBudgetNeverLooks(t *testing.T) {
	for _, b := range []Budget{{}, New(0)} {
		for range 1000 {
			if n := b.Polls(); n != 0 {
				t.Fatalf("%d looks", n)
			}
		}
	}
}

func TestBudgetKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(0, 1<<18).Draw(t, "most")
		b := New(most)
		for _, saw := range rapid.SliceOf(rapid.Bool()).Draw(t, "waits") {
			n := b.Polls()
			if n < 0 || n > most {
				t.Fatalf("%d looks of at most %d", n, most)
			}
			if n > 0 {
				b.Ended(saw)
			}
		}
	})
}
