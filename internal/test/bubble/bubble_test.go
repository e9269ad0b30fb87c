package bubble

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// With synctest.Test in place of Test this ended the process in each of five
// runs with the race detector, on two processors.
func TestTimersThatAreDue(t *testing.T) {
	for range 30 {
		Test(t, func(t *testing.T) {
			var all sync.WaitGroup
			for range 8 {
				all.Go(receiveFromTimersThatAreDue)
			}
			all.Wait()
		})
	}
}

func receiveFromTimersThatAreDue() {
	for range 20 {
		var timers []*time.Timer
		for range 100 {
			timers = append(timers, time.NewTimer(time.Millisecond))
		}
		time.Sleep(2 * time.Millisecond)
		for _, timer := range timers {
			<-timer.C
		}
	}
}

func TestProcessorsComeBack(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("bubbles", func(t *testing.T) {
		for range 4 {
			t.Run("parallel", func(t *testing.T) {
				t.Parallel()
				Test(t, func(t *testing.T) {
					time.Sleep(time.Hour)
					if n := runtime.GOMAXPROCS(0); raceEnabled && n != 1 {
						t.Errorf("%d processors in a bubble with the race detector, want 1", n)
					}
				})
			})
		}
	})
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("%d processors after the bubbles, %d before", after, before)
	}
}
