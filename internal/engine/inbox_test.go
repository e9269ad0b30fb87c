package engine

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A chunked is a stream that delivers its bytes in chunks.
type chunked struct {
	chunks chan []byte
	rest   []byte
}

func (l *chunked) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		c, ok := <-l.chunks
		if !ok {
			return 0, io.EOF
		}
		l.rest = c
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// A tube is an inbox with a sender that keeps to its credit.
type tube struct {
	in     *inbox
	stream *chunked
	limit  atomic.Uint64
	more   gate // limit has grown
}

func newTube(window int) *tube {
	u := &tube{stream: &chunked{chunks: make(chan []byte, 4)}, more: newGate()}
	u.limit.Store(uint64(window))
	u.in = newInbox(window, u.raise, func() {})
	return u
}

// raise ignores a lower limit than before, as an outbox does: two readers may send theirs in
// any order.
func (u *tube) raise(limit uint64) {
	for old := u.limit.Load(); limit > old && !u.limit.CompareAndSwap(old, limit); old = u.limit.Load() {
	}
	u.more.signal()
}

// send sends total bytes, each its position modulo 251, in chunks of up to most,
// and then says that these were all.
func (u *tube) send(t *testing.T, random *rand.Rand, total, most int) {
	for sent := 0; sent < total; {
		room := int(u.limit.Load()) - sent
		if room == 0 {
			<-u.more
			continue
		}
		c := make([]byte, min(room, total-sent, 1+random.IntN(most)))
		for i := range c {
			c[i] = byte((sent + i) % 251)
		}
		if sent += len(c); random.IntN(8) == 0 {
			time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
		}
		u.stream.chunks <- c
	}
	close(u.stream.chunks)
	if !u.in.end(uint64(total), nil) {
		t.Error("the end does not fit")
	}
}

// TestAStreamIsReadInItsOrder with reads that wait, do not wait, and give up.
func TestAStreamIsReadInItsOrder(t *testing.T) {
	for seed := range uint64(20) {
		for _, window := range []int{256, 16 << 10} {
			bubble.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, uint64(window)))
				u, total := newTube(window), 20*window
				var both sync.WaitGroup
				both.Go(func() { u.send(t, rand.New(rand.NewPCG(seed, 2)), total, window/4) })
				both.Go(func() {
					if err := u.in.fill(u.stream); err != nil {
						t.Error(err)
					}
				})
				got, wrong := 0, -1 // the place of the first byte that is another one
				for {
					p := make([]byte, 1+random.IntN(window/2))
					n, err := readFor(u.in, p, time.Duration(random.IntN(3))*time.Millisecond)
					for i, v := range p[:n] {
						if v != byte((got+i)%251) && wrong < 0 {
							wrong = got + i
						}
					}
					got += n
					if errors.Is(err, attach.ErrPeerClosed) {
						break
					} else if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Fatalf("seed %d, window %d: %v", seed, window, err)
					}
				}
				if both.Wait(); got != total || wrong >= 0 {
					t.Errorf("seed %d, window %d: %d bytes, want %d; the first wrong one: %d", seed, window, got, total, wrong)
				}
			})
		}
	}
}

// readFor reads for at most d; 0 is for ever, and some do not wait at all.
func readFor(in *inbox, p []byte, d time.Duration) (int, error) {
	switch d {
	case 0:
		return in.read(context.Background(), p)
	case time.Millisecond:
		if n, err := in.tryRead(p); n > 0 || err != nil {
			return n, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return in.read(ctx, p)
}

// TestReadersShareAStream: none of several waits while bytes are at hand, and all get
// the end.
func TestReadersShareAStream(t *testing.T) {
	for seed := range uint64(20) {
		bubble.Test(t, func(t *testing.T) {
			const window, total = 256, 5000
			u := newTube(window)
			var all sync.WaitGroup
			var got, sum atomic.Int64
			for i := range 5 {
				all.Go(func() {
					for p := make([]byte, 1+i*20); ; {
						n, err := u.in.read(context.Background(), p)
						got.Add(int64(n))
						for _, v := range p[:n] {
							sum.Add(int64(v))
						}
						if err != nil {
							if !errors.Is(err, attach.ErrPeerClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
			}
			all.Go(func() { u.send(t, rand.New(rand.NewPCG(seed, 2)), total, 60) })
			all.Go(func() {
				if err := u.in.fill(u.stream); err != nil {
					t.Error(err)
				}
			})
			all.Wait()
			want := int64(0)
			for i := range total {
				want += int64(i % 251)
			}
			if got.Load() != total || sum.Load() != want {
				t.Errorf("seed %d: %d bytes that sum up to %d, want %d and %d", seed, got.Load(), sum.Load(), total, want)
			}
		})
	}
}

// TestReadsEndWithTheirInbox however many wait.
func TestReadsEndWithTheirInbox(t *testing.T) {
	for name, end := range map[string]func(in *inbox){"lost": func(in *inbox) { in.lose(status.Reset) }, "closed here": (*inbox).mute} {
		bubble.Test(t, func(t *testing.T) {
			in := newInbox(256, func(uint64) {}, func() {})
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					if _, err := in.read(context.Background(), make([]byte, 8)); !errors.Is(err, status.Reset) {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			synctest.Wait()
			end(in)
			all.Wait()
		})
	}
}
