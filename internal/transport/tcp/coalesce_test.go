package tcp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// What a writer in a hurry sends goes out together, as one frame for each lane and
// record; what comes after a while goes out at once, and so do the first ones.
func TestHurriedWritesGoTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *netsim.Network, a, b *session) {
		s, r := transporttest.Lane(t, a, b)
		first := received(t, r, 2)
		for n := range uint64(100) { // each by itself, whoever else runs
			time.Sleep(2 * hurry)
			before := a.rec.sent.Load()
			write(t, s, 'a', 'b')
			if grown := a.rec.sent.Load() - before; grown < headerLen+2 {
				t.Fatalf("write %d: %d bytes were sent", n, grown)
			}
		}
		if got := <-first; string(got) != "ab" {
			t.Fatalf("%q came", got)
		}

		time.Sleep(time.Second)
		withoutFlusher(a) // which may run as often as it likes
		before, frames := a.rec.sent.Load(), b.frames.Load()
		for n := range 4000 { // time stands still
			write(t, s, byte(n>>8), byte(n))
			if n == eager-1 && a.rec.sent.Load()-before < eager*(headerLen+2) {
				t.Error("the first ones were not written at once")
			}
		}
		a.flush()
		want := make([]byte, 0, 8000+198)
		for range 99 {
			want = append(want, 'a', 'b')
		}
		for n := range 4000 {
			want = append(want, byte(n>>8), byte(n))
		}
		if got := <-received(t, r, len(want)); !bytes.Equal(got, want) {
			t.Error("other bytes came")
		}
		if sent := a.rec.sent.Load() - before; sent > 8000+2000 {
			t.Errorf("%d bytes were sent for 8000", sent)
		}
		if n := b.frames.Load() - frames; n != eager+1 {
			t.Errorf("%d frames came, want %d and one", n, eager)
		}
	})
}

// withoutFlusher keeps the flusher of s from being woken.
func withoutFlusher(s *session) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.collected.flusher, s.flushes = true, make(chan struct{}, 1) // nobody looks there
}

func write(t *testing.T, s transport.SendLane, p ...byte) {
	t.Helper()
	if ok, err := s.TryWrite(p); !ok || err != nil {
		t.Fatalf("TryWrite: %v, %v", ok, err)
	}
}

// received reads n bytes of r.
func received(t *testing.T, r io.Reader, n int) <-chan []byte {
	got := make(chan []byte, 1)
	go func() {
		p := make([]byte, n)
		if k, err := io.ReadFull(r, p); err != nil {
			t.Errorf("%d bytes, %v", k, err)
		}
		got <- p
	}()
	return got
}

// Who begins to wait sends what it has left behind, and does not leave that to the
// flusher, which may get to run late: here, never.
func TestWhoWaitsFlushes(t *testing.T) {
	for name, wait := range map[string]func(a *session, back transport.RecvLane, full *sendLane){
		"Read": func(_ *session, back transport.RecvLane, _ *sendLane) { _, _ = back.Read(make([]byte, 1)) },
		"Help": func(a *session, _ transport.RecvLane, _ *sendLane) { a.Help(make(chan struct{}, 1)) },
		"Write": func(_ *session, _ transport.RecvLane, full *sendLane) {
			_, _ = full.Write(make([]byte, maxSmall))
		},
		"large Write": func(_ *session, _ transport.RecvLane, full *sendLane) { _, _ = full.Write(make([]byte, bulkMin)) },
		"Close":       func(_ *session, _ transport.RecvLane, full *sendLane) { full.Close() },
		"Cancel":      func(_ *session, _ transport.RecvLane, full *sendLane) { full.Cancel() },
		"datagram":    func(a *session, _ transport.RecvLane, _ *sendLane) { _ = a.SendDatagram([]byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *netsim.Network, a, b *session) {
				s, r := transporttest.Lane(t, a, b)
				full, _ := transporttest.Lane(t, a, b)
				_, back := transporttest.Lane(t, b, a)
				if _, err := full.Write(make([]byte, a.peerLane-1)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				withoutFlusher(a)
				got := received(t, r, 100)
				for n := range 100 {
					write(t, s, byte(n))
				}
				synctest.Wait()
				if len(got) > 0 {
					t.Fatal("the bytes came without a flush")
				}
				go wait(a, back, full.(*sendLane))
				<-got
				a.Close(0, "") // whoever waits
			})
		})
	}
}

// Lanes of writers in a hurry and of others, with pieces of all lengths, arrive whole
// and in order, whatever goes out between them.
func TestCollectedFramesKeepTheirOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *netsim.Network, a, b *session) {
		var all sync.WaitGroup
		for lane := range uint64(6) {
			s, r := transporttest.Lane(t, a, b)
			want := random(lane, 300<<10)
			rng := rand.New(rand.NewPCG(lane, 5))
			all.Go(func() {
				for left := want; len(left) > 0; {
					left = left[someBytes(t, s, left, rng):]
					if rng.IntN(40) == 0 {
						time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond)
					}
					if rng.IntN(100) == 0 {
						a.putOff(header{kind: typeWant})
						a.settle()
						_ = a.SendDatagram([]byte("between"))
					}
				}
				s.Close()
			})
			all.Go(func() {
				if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
					t.Errorf("lane %d: %d of %d bytes, or others, %v", lane, len(got), len(want), err)
				}
			})
		}
		all.Wait()
	})
}

// someBytes writes some of p in one of the ways there are.
func someBytes(t *testing.T, s transport.SendLane, p []byte, rng *rand.Rand) int {
	most := 40
	switch rng.IntN(50) {
	case 0:
		most = 3 * bulkMin
	case 1, 2, 3:
		most = maxSmall
	}
	p = p[:min(1+rng.IntN(most), len(p))]
	if rng.IntN(2) == 0 {
		ok, err := s.TryWrite(p)
		if err != nil {
			t.Error(err)
		}
		if ok {
			return len(p)
		}
	}
	head := rng.IntN(len(p))
	n, err := s.WriteVec([]transport.Part{{Head: p[:head], Payload: p[head:]}}, nil)
	if err != nil {
		t.Error(err)
	}
	return n
}
