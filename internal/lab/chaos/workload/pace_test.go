package workload

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestStepsAreTakenOnBeats: as many as their rate says, none of them before it is due,
// and none later than one beat.
func TestStepsAreTakenOnBeats(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		every := time.Duration(rapid.IntRange(1, 200).Draw(r, "every")) * time.Millisecond
		beat := time.Duration(rapid.IntRange(0, 200).Draw(r, "beat")) * time.Millisecond
		begun := time.Duration(rapid.IntRange(0, 500).Draw(r, "begun")) * time.Millisecond
		bubble.Test(t, func(t *testing.T) {
			clock := &Clock{began: time.Now(), at: int64(begun)}
			p := newPacer(clock, beat, every)
			defer p.stop()
			for i := range 50 {
				if !p.wait(nil, nil) {
					t.Fatalf("step %d: not taken", i)
				}
				now, due := clock.Now(), begun+time.Duration(i)*every
				if now < due || now > due && (now >= due+beat || now%beat != 0) {
					t.Fatalf("step %d of one each %v, due at %v, is taken at %v; the beat is %v", i, every, due, now, beat)
				}
			}
		})
	})
}

// TestLostTimeIsLost: who could not step for a while does not hurry afterwards, but
// for what a beat brings along.
func TestLostTimeIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const beat, every = 50 * time.Millisecond, 10 * time.Millisecond
		clock := &Clock{began: time.Now()}
		p := newPacer(clock, beat, every)
		defer p.stop()
		p.wait(nil, nil)
		time.Sleep(time.Second)
		from := clock.Now()
		steps := 0
		for p.wait(nil, nil) && clock.Now() == from {
			steps++
		}
		if want := int((beat+maxLag)/every) + 1; steps > want {
			t.Errorf("%d steps at once after a second without, want at most %d", steps, want)
		}
		over := make(chan struct{})
		close(over)
		if p.wait(nil, over) {
			t.Error("a step is taken although it is over")
		}
	})
}
