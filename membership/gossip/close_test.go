package gossip

import (
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestCallsAfterCloseAreHarmless leaves, updates and closes in every order that
// memberlist answers with a panic or a hang, also all at once.
func TestCallsAfterCloseAreHarmless(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one, two, three := b.start(1, 1), b.start(2, 1), b.start(3, 1)
		b.within(time.Second, "all see all", func() bool { return complete([]*Gossip{one, two, three}) })
		three.Close()
		if err := three.Leave(t.Context()); err != nil {
			t.Errorf("Leave after Close: %v", err)
		}
		if err := three.Update(meta(3)); err == nil {
			t.Error("Update after Close succeeded")
		}
		three.Close()

		var calls sync.WaitGroup
		calls.Go(func() { two.Leave(t.Context()) })
		calls.Go(func() { two.Update(meta(2)) })
		calls.Go(func() { two.Close() })
		calls.Go(func() { two.Leave(t.Context()) })
		calls.Wait()
		b.within(time.Minute, "both are gone", func() bool { return complete([]*Gossip{one}) })
	})
}
