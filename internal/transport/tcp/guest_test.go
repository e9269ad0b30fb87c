package tcp

import (
	"io"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// asking returns a session whose bytes come back from the other end, and what sends
// one and waits for it in Help. Those below 128 are taken by who reads for the
// session, the others by the lane's reader.
func asking(t *testing.T) (s *session, ask func(b byte)) {
	network := netsim.New(1)
	t.Cleanup(func() { network.Close() })
	pa, pb := simulated(t, network, func(*Config) {})
	sa, sb := transporttest.Connect(t, pa, pb)
	out, in := transporttest.Lane(t, sa, sb)
	back, answers := transporttest.Lane(t, sb, sa)
	go io.Copy(back, in) // ends with the session, as does the reader
	s, done := sa.(*session), make(chan struct{}, 1)
	take := func(p []byte) int {
		if p[0] < 128 {
			done <- struct{}{}
			return 1
		}
		return 0
	}
	go func() {
		for p := make([]byte, 1); ; {
			if _, err := answers.(*recvLane).ReadOr(p, take); err != nil {
				return
			}
			done <- struct{}{}
			s.Rouse()
		}
	}()
	return s, func(b byte) {
		if _, err := out.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
		s.Help(done)
		<-done
	}
}

// TestGuestsReadForThemselves is in time that passes only when everybody waits: who
// is not woken is found out by the millisecond of the watch.
func TestGuestsReadForThemselves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, ask := asking(t)
		begin := time.Now()
		for range 100 {
			ask(1)
		}
		s.helm.mu.Lock()
		if s.helm.held || s.helm.visits != fewVisits {
			t.Errorf("after 100 visits somebody has the helm: %v, %d visits", s.helm.held, s.helm.visits)
		}
		s.helm.mu.Unlock()
		for range 100 {
			ask(200)
		}
		for i := range 400 {
			ask(byte(i * 9))
		}
		if took := time.Since(begin); took > 2*watchEvery {
			t.Errorf("600 round trips without latency took %v", took)
		}
	})
}

// When guests stop coming, who else waits is served within two turns of the watch.
func TestGuestsThatStopComing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, ask := asking(t)
		for range 20 {
			ask(1)
		}
		begin := time.Now()
		done := make(chan struct{}, 1)
		s.Help(done) // in vain: the watch calls it away
		if took := time.Since(begin); took > 3*watchEvery {
			t.Errorf("a guest for whom nothing comes has the helm for %v", took)
		}
		ask(1)
	})
}
