package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/membership/verdict"
)

// twoEnds returns both ends of a session between two machines with a measured round
// trip, and a function that cuts the path between them.
func twoEnds(t *testing.T) (w *world, a, b *quicEnd, cut func() (open func())) {
	t.Helper()
	w = newWorld(1, 2, verdict.Timing{}, Options{})
	for _, m := range w.machines {
		m.proc = newProc(w, m, "daemon")
	}
	s := &quic{w: w}
	for i, m := range w.machines {
		s.ends[i] = newQUICEnd(s, i, m.proc)
	}
	a, b = s.ends[0], s.ends[1]
	for range 20 {
		a.control(func() {})
		b.control(func() {})
		w.until(w.now + 10*time.Millisecond)
	}
	both := []int{0, 1}
	cut = func() func() {
		r := w.net.add(faults.Rule{On: faults.Link, Cut: true}, both, both)
		return func() { w.net.remove(r) }
	}
	return w, a, b, cut
}

// crowd gives an end more than its window takes, and none of it is acknowledged.
func crowd(e *quicEnd) {
	for e.bytes < e.window {
		e.enqueue(&frame{size: packetLen, arrived: func() {}})
	}
}

// TestProbesWaitTwiceAsLong holds the model to quic-go's probes behind a full
// congestion window: packets 27, 81, 190, 408, 844, 1715 and 3457 ms after the last
// one, on a path with a short round trip.
func TestProbesWaitTwiceAsLong(t *testing.T) {
	w, a, _, cut := twoEnds(t)
	cut()
	crowd(a)
	began := w.now
	var got []time.Duration
	for tries := 0; w.now < began+4*time.Second; w.until(w.now + time.Millisecond) {
		if a.tries > tries {
			tries = a.tries
			got = append(got, w.now-began)
		}
	}
	want := []time.Duration{27, 81, 190, 408, 844, 1715, 3457}
	if !slices.EqualFunc(got, want, func(got, ms time.Duration) bool {
		want := ms * time.Millisecond
		return (got - want).Abs() <= want/20
	}) {
		t.Errorf("probes after %v, want about %v ms", got, want)
	}
}

// TestTailFindsAPathThatIsOpenAgain cuts a session with full windows for longer
// and longer. Its heartbeats arrive within the patience once that is over. With
// QUIC's own probes alone they would not.
func TestTailFindsAPathThatIsOpenAgain(t *testing.T) {
	const beat = 50 * time.Millisecond
	for _, lasts := range []time.Duration{200 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		for _, tail := range []bool{true, false} {
			w, a, b, cut := twoEnds(t)
			arrived := time.Duration(-1)
			b.datagram = func([]byte) {
				if arrived < 0 {
					arrived = w.now
				}
			}
			a.asking = !tail // one that seems to be asked already asks no more
			open := cut()
			crowd(a)
			for end := w.now + lasts; w.now < end; w.until(w.now + beat) {
				a.send([]byte("beat"))
			}
			open()
			began := w.now
			for w.now < began+5*time.Second && arrived < 0 {
				a.send([]byte("beat"))
				w.until(w.now + beat)
			}
			switch silent := arrived - began; {
			case tail && (arrived < 0 || silent > maxPatience+5*time.Millisecond):
				t.Errorf("cut for %v: a heartbeat arrives %v after the end, want at most %v", lasts, silent, maxPatience)
			case !tail && lasts > time.Second && arrived >= 0 && silent < 2*maxPatience:
				t.Errorf("cut for %v: probes alone find the end of it after %v", lasts, silent)
			}
		}
	}
}

// TestEndIsRepeated loses the packet that reports a session's end.
func TestEndIsRepeated(t *testing.T) {
	w, a, b, cut := twoEnds(t)
	var ends []transport.CloseError
	b.ended = func(how transport.CloseError) { ends = append(ends, how) }
	open := cut()
	a.close(transport.CodeFenced, "over")
	w.until(w.now + 200*time.Millisecond)
	open()
	if len(ends) > 0 {
		t.Fatalf("the peer is notified of %v through a cut", ends)
	}
	w.until(w.now + time.Second)
	if len(ends) != 1 || !ends[0].Remote || ends[0].Code != transport.CodeFenced {
		t.Errorf("the peer is notified of %v, want once that it was fenced", ends)
	}
}
