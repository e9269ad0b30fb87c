package tcp

import (
	"runtime"
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
		sb.glance(new(time.Time))
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
