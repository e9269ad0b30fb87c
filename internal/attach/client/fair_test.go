package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
)

// TestNoConnectionStarves lets eight connections of two sessions, each with a shared-memory path,
// carry as much as they can, until one of them has carried much: none of them is starved.
func TestNoConnectionStarves(t *testing.T) {
	const conns, share = 8, 10
	much := int64(500_000) // many times the bytes of one connection in a scheduler's time slice
	if raceEnabled {
		much = 100_000
	}
	s := serve(t, nil)
	from, to := s.dial(t), s.dial(t)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var carried [conns]atomic.Int64
	var wg sync.WaitGroup
	var pairs [conns][2]attach.Endpoint
	for i := range conns {
		a, b := connect(t, from, to)
		talk(t, a, b)
		pairs[i] = [2]attach.Endpoint{a, b}
	}
	for i, pair := range pairs {
		a, b := pair[0], pair[1]
		wg.Go(func() {
			for p := make([]byte, 64); ; {
				if _, err := a.Send(ctx, p); err != nil {
					over(t, err)
					return
				}
			}
		})
		wg.Go(func() {
			for p := make([]byte, 64); ; {
				n, err := b.Recv(ctx, p)
				if err != nil {
					over(t, err)
					return
				}
				if carried[i].Add(int64(n)) >= much*64 {
					stop()
				}
			}
		})
	}
	wg.Wait()
	var counts [conns]int64
	least := much
	for i := range conns {
		counts[i] = carried[i].Load() / 64
		least = min(least, counts[i])
	}
	if t.Logf("messages %v", counts); least < much/share {
		t.Errorf("one connection has carried %d messages while another one carried %d", least, much)
	}
}

// over is how calls end when the test does.
func over(t *testing.T, err error) {
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
