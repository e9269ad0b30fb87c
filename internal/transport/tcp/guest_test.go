package tcp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// A board is both ends of a session, of which one asks.
type board struct {
	s, peer *session
}

// newBoard returns a board in the bubble of the test.
func newBoard(t *testing.T) *board {
	network := netsim.New(1)
	t.Cleanup(func() { network.Close() })
	pa, pb := simulated(t, network, func(*Config) {})
	sa, sb := transporttest.Connect(t, pa, pb)
	return &board{s: sa.(*session), peer: sb.(*session)}
}

// answers returns what makes the peer send a byte, and what has a token when it has
// come. Bytes below 128 are taken by who reads for the session, the others by the
// lane's reader.
func (b *board) answers(t *testing.T) (send func(byte), done chan struct{}) {
	back, in := transporttest.Lane(t, b.peer, b.s)
	done = make(chan struct{}, 1)
	take := func(p []byte) (n int) {
		for ; n < len(p) && p[n] < 128; n++ {
			done <- struct{}{}
		}
		return n
	}
	go func() { // ends with the session
		for p := make([]byte, 1); ; {
			if _, err := in.(*recvLane).ReadOr(p, take); err != nil {
				return
			}
			done <- struct{}{}
			b.s.Rouse()
		}
	}()
	send = func(x byte) {
		if _, err := back.Write([]byte{x}); err != nil {
			t.Fatal(err)
		}
	}
	return send, done
}

// asking returns a session and what asks its peer for a byte, and waits for it in
// Help.
func asking(t *testing.T) (s *session, ask func(x byte)) {
	b := newBoard(t)
	send, done := b.answers(t)
	return b.s, func(x byte) {
		send(x)
		b.s.Help(done)
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

// A reader that has had the helm for so long that the watch sleeps hands it to a
// guest: the watch calls that one away too.
func TestGuestsOfASleepingWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, ask := asking(t)
		for range 3 {
			ask(200) // its reader has the helm
		}
		time.Sleep(10 * watchEvery)
		for called := false; !called; {
			s.helm.mu.Lock()
			if !s.helm.asleep {
				t.Fatal("the watch does not sleep")
			}
			called = s.helm.visits >= fewVisits
			s.helm.mu.Unlock()
			if !called {
				ask(1)
			}
		}
		begin := time.Now()
		s.Help(make(chan struct{}, 1))
		if took := time.Since(begin); took > 3*watchEvery || took == 0 {
			t.Errorf("a guest for whom nothing comes has the helm for %v", took)
		}
	})
}

// Who finds a guest at the helm is served as soon as its answer comes.
func TestASecondGuest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBoard(t)
		send1, done1 := b.answers(t)
		send2, done2 := b.answers(t)
		for range 20 {
			send1(1)
			b.s.Help(done1)
			<-done1
		}
		served := make(chan struct{}, 2)
		for _, done := range []chan struct{}{done1, done2} {
			go func() { b.s.Help(done); <-done; served <- struct{}{} }()
			time.Sleep(atOnce / 3)
		}
		for _, send := range []func(byte){send1, send2} {
			begin := time.Now()
			send(1)
			<-served
			if took := time.Since(begin); took > 0 {
				t.Errorf("an answer without latency took %v", took)
			}
		}
	})
}

// Whoever has done what a guest waits for, without the session, calls it away at
// once, and the next byte for a reader comes without delay.
func TestRouse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBoard(t)
		send, done := b.answers(t)
		for range 20 {
			send(1)
			b.s.Help(done)
			<-done
		}
		for range 5 { // a hand that is used again has no token left
			time.AfterFunc(atOnce, func() { done <- struct{}{}; b.s.Rouse() })
			begin := time.Now()
			b.s.Help(done)
			<-done
			if took := time.Since(begin); took > atOnce {
				t.Errorf("a guest is called away after %v", took)
			}
			begin = time.Now()
			send(200)
			<-done
			if took := time.Since(begin); took > 0 {
				t.Errorf("a byte behind a guest's visit took %v", took)
			}
		}
	})
}

// Guests who come now and then, or seldom, do not hold up what the peer asks.
func TestGuestsNowAndThen(t *testing.T) {
	for _, think := range []time.Duration{2 * atOnce, 100 * time.Microsecond, 900 * time.Microsecond, 3 * time.Millisecond} {
		t.Run(think.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newBoard(t)
				send1, done1 := b.answers(t)
				send2, done2 := b.answers(t)
				const whole, pause = 100 * time.Millisecond, 10 * time.Microsecond
				begin, n := time.Now(), 0
				other := make(chan struct{})
				go func() {
					defer close(other)
					for ; time.Since(begin) < whole; n++ {
						time.Sleep(pause)
						send2(1)
						<-done2
					}
				}()
				for ; time.Since(begin) < whole; time.Sleep(think) {
					send1(1)
					b.s.Help(done1)
					<-done1
				}
				<-other
				if most := int(whole / pause); n < most*3/4 {
					t.Errorf("%d answers in %v, one takes %v: %d are possible", n, whole, pause, most)
				}
			})
		})
	}
}

// The reader of a lane that has ended does not come back for the helm: another one that
// waits has it at once, and what comes next does not wait until the watch looks.
func TestAReaderWhoseLaneEndsHandsTheHelmOn(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *netsim.Network, a, b *session) {
		read := func(r transport.RecvLane, got chan string) {
			p := make([]byte, 8)
			for {
				n, err := r.Read(p)
				if got <- string(p[:n]); err != nil {
					return
				}
			}
		}
		stays, staying := transporttest.Lane(t, a, b)
		ends, ending := transporttest.Lane(t, a, b)
		first, second := make(chan string, 8), make(chan string, 8)
		go read(ending, second) // ends with its lane
		say := func(s transport.SendLane, got chan string, p string) {
			t.Helper()
			if _, err := s.Write([]byte(p)); err != nil {
				t.Fatal(err)
			}
			if g := <-got; g != p {
				t.Fatalf("read %q, want %q", g, p)
			}
		}
		for range hotFrames + 2 { // who has waited for so many is not likely to need the helm
			say(ends, second, "a")
		}
		synctest.Wait()         // until it has the helm
		go read(staying, first) // likewise; it waits in line
		synctest.Wait()
		if err := ends.Close(); err != nil {
			t.Fatal(err)
		}
		<-second
		synctest.Wait()
		b.helm.mu.Lock()
		if b.helm.holder == nil || b.helm.holder.lane != staying.(*recvLane) {
			t.Error("the reader that waits does not have the helm")
		}
		b.helm.mu.Unlock()
		began := time.Now()
		say(stays, first, "b")
		if took := time.Since(began); took >= watchEvery {
			t.Errorf("what comes next takes %v", took)
		}
		stays.Close()
		<-first
	})
}
