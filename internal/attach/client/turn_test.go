package client

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

func newTurn() *Turn {
	t := new(Turn)
	t.Init()
	return t
}

// One call at a time has the turn, whichever waiters give up.
func TestTurnIsOfOne(t *testing.T) {
	turn := newTurn()
	inside, got := 0, 0 // guarded by turn
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				var done chan struct{}
				switch {
				case k == 7:
					if !turn.Try() {
						continue
					}
				case k%2 == 1 && i%3 == 0:
					done = make(chan struct{})
					go func() { close(done) }()
					fallthrough
				default:
					if !turn.Take(done, nil) {
						continue
					}
				}
				if inside++; inside != 1 {
					t.Errorf("%d calls have the turn", inside)
				}
				got++
				inside--
				turn.Give()
			}
		})
	}
	wg.Wait()
	if turn.taken() || len(turn.handed) != 0 {
		t.Errorf("state %d, %d tokens are left", turn.state.Load(), len(turn.handed))
	}
	if got < 4*2000 {
		t.Errorf("the turn was had %d times", got)
	}
}

// Waiting calls get the turn in order, also if one call takes it repeatedly.
func TestTurnsAreInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		turn := newTurn()
		turn.Take(nil, nil)
		var order []int // guarded by turn
		for i := range 5 {
			go func() {
				turn.Take(nil, nil)
				order = append(order, i)
				turn.Give()
			}()
			synctest.Wait()
		}
		turn.Give()
		turn.Take(nil, nil) // after the others
		for i, k := range order {
			if i != k {
				t.Fatalf("the order is %v", order)
			}
		}
		if len(order) != 5 {
			t.Errorf("%d had the turn before, want 5", len(order))
		}
		turn.Give()
	})
}

func TestWaitForATurnEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		turn := newTurn()
		turn.Take(nil, nil)
		if turn.Try() {
			t.Error("Try takes what is taken")
		}
		ended := make(chan bool)
		for _, quit := range []bool{false, true} {
			c := make(chan struct{})
			go func() {
				if quit {
					ended <- turn.Take(nil, c)
				} else {
					ended <- turn.Take(c, nil)
				}
			}()
			time.Sleep(time.Second)
			close(c)
			if <-ended {
				t.Error("Take has what another one has")
			}
		}
		turn.Give()
		over := make(chan struct{})
		close(over)
		if !turn.Take(over, over) {
			t.Error("a free turn is not taken when the caller's time is over")
		}
	})
}

func BenchmarkTurn(b *testing.B) {
	turn := newTurn()
	for b.Loop() {
		turn.Take(nil, nil)
		turn.Give()
	}
}

// taken reports whether a call has the turn.
func (t *Turn) taken() bool { return t.state.Load() != 0 }
