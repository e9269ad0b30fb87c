package tcp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// A goroutine that keeps the only processor busy lets the reader of the first
// connection have what has come, where giving way to others alone does not: the
// scheduler asks the kernel for nothing while it has somebody to run.
func TestAGlanceLetsTheReaderGoOn(t *testing.T) {
	pa, pb := onSockets(t, func(*Config) {})
	from, to := transporttest.Connect(t, pa, pb)
	out, in := transporttest.Lane(t, from, to)
	sb := to.(*session)
	if sb.socket.raw == nil {
		t.Fatal("a socket that cannot be asked")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 50
	came := make(chan struct{}, rounds)
	ended := make(chan struct{})
	go func() { // ends with the lane
		defer close(ended)
		for p := make([]byte, 1); ; came <- struct{}{} {
			if _, err := in.Read(p); err != nil {
				return
			}
		}
	}()
	here := 0
	for range rounds {
		for !sb.socket.waits.Load() {
			runtime.Gosched()
		}
		if _, err := out.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		sb.glance(new(lookout), false)
		select {
		case <-came:
			here++
		default:
			<-came
		}
	}
	if here < rounds*4/5 { // now and then another thread polls, or is first
		t.Errorf("a glance was enough %d times of %d", here, rounds)
	}
	out.Close()
	<-ended
}

// TestWhoTalksLetsOthersRun: whoever moves much lets go of the processor now and then
// if this end waits for something short, and keeps it otherwise.
func TestWhoTalksLetsOthersRun(t *testing.T) {
	pa, pb := onSockets(t, func(*Config) {})
	sa, _ := transporttest.Connect(t, pa, pb)
	s := sa.(*session)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 50
	for _, talks := range []bool{true, false} {
		others := 0
		for range rounds {
			var ran atomic.Bool
			var other sync.WaitGroup
			other.Go(func() { ran.Store(true) })
			if s.glance(new(lookout), talks); ran.Load() {
				others++
			}
			other.Wait()
		}
		if talks && others < rounds*4/5 || !talks && others > rounds/5 {
			t.Errorf("talks: %v: others ran %d times of %d", talks, others, rounds)
		}
	}
}

// TestWhoComputesDoesNotKeepWhoMoves: after others have had the processor for long, who
// moves much has it for longer; after a moment it looks again as ever.
func TestWhoComputesDoesNotKeepWhoMoves(t *testing.T) {
	begun := time.Unix(1000, 0)
	for took, keeps := range map[time.Duration]time.Duration{50 * time.Microsecond: 0, longRun: 4 * longRun, 10 * time.Millisecond: 40 * time.Millisecond} {
		var o lookout
		now := begun.Add(took)
		o.yielded(begun, now)
		if got := max(0, o.keeps.Sub(now)); got != keeps {
			t.Errorf("others ran for %v, and it keeps the processor for %v, want %v", took, got, keeps)
		}
	}
}
