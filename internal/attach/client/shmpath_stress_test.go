package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// Bytes sent before Close arrive completely and once, followed by the orderly end: for connections
// of any length, with any mix of waiting and canceled calls, and with the switch to the
// shared-memory path at any time.
func TestWhatIsSentBeforeCloseArrives(t *testing.T) {
	s := serve(t, nil)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	sa, sb := s.dial(t), s.dial(t)
	var wg sync.WaitGroup
	for i := range 4 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for range stressRounds {
				a, b := connect(t, sa, sb)
				if rng.IntN(2) == 0 {
					a, b = b, a
				}
				oneWay(t, a, b, rng)
			}
		})
	}
	wg.Wait()
}

const stressRounds = 10

// oneWay sends from a to b and closes a. b sends, too: its bytes in flight then are lost.
func oneWay(t *testing.T, a, b attach.Endpoint, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	total := 1 + rng.IntN(1+rng.IntN(400_000))
	piece := 1 + rng.IntN(1+rng.IntN(30_000))
	if total/piece > 2000 {
		total = 2000 * piece
	}
	seeds := [4]uint64{rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64()}
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(seeds[0], 0))
		sendAll(t, ctx, a, total, piece, r)
		check(t, "Close", a.Close(), status.OK)
	})
	wg.Go(func() { recvAll(t, ctx, b, total, rand.New(rand.NewPCG(seeds[1], 0))) })
	wg.Go(func() { // until the end
		r := rand.New(rand.NewPCG(seeds[2], 0))
		for {
			if _, err := b.Send(ctx, make([]byte, 1+r.IntN(2000))); err != nil {
				if status.Of(err) != status.Reset {
					t.Errorf("Send against the stream = %v", err)
				}
				return
			}
			pause(r)
		}
	})
	wg.Go(func() {
		r := rand.New(rand.NewPCG(seeds[3], 0))
		for {
			if _, err := a.Recv(ctx, make([]byte, 1+r.IntN(4000))); err != nil {
				if c := status.Of(err); c != status.Reset && c != status.BadFD {
					t.Errorf("Recv against the stream = %v", err)
				}
				return
			}
		}
	})
	wg.Wait()
	check(t, "Close of the other side", b.Close(), status.OK)
}

func pause(r *rand.Rand) {
	if r.IntN(4) == 0 {
		runtime.Gosched()
	}
}

// withdrawnSoon returns a context that ends by itself, or has already.
func withdrawnSoon(ctx context.Context, r *rand.Rand) (context.Context, context.CancelFunc) {
	c, cancel := context.WithCancel(ctx)
	switch r.IntN(3) {
	case 0:
		cancel()
	case 1:
		go func() { runtime.Gosched(); cancel() }()
	default:
		t := time.AfterFunc(time.Duration(r.IntN(300))*time.Microsecond, cancel)
		return c, func() { t.Stop(); cancel() }
	}
	return c, cancel
}

func sendAll(t *testing.T, ctx context.Context, ep attach.Endpoint, total, piece int, r *rand.Rand) {
	for at := 0; at < total; pause(r) {
		p := make([]byte, min(1+r.IntN(piece), total-at))
		for i := range p {
			p[i] = byte((at + i) * 31 >> 3)
		}
		var n int
		var err error
		switch r.IntN(4) {
		case 0:
			n, err = ep.TrySend(p)
		case 1:
			c, cancel := withdrawnSoon(ctx, r)
			if n, err = ep.Send(c, p); errors.Is(err, status.Canceled) && ctx.Err() == nil {
				err = nil
			}
			cancel()
		default:
			n, err = ep.Send(ctx, p)
		}
		if at += n; err != nil {
			t.Errorf("Send at %d of %d: %v", at, total, err)
			return
		}
	}
}

func recvAll(t *testing.T, ctx context.Context, ep attach.Endpoint, total int, r *rand.Rand) {
	changed := make(chan struct{}, 1)
	if r.IntN(2) == 0 {
		defer ep.Notify(changed)()
	}
	buf := make([]byte, 40_000)
	for at := 0; ; pause(r) {
		p := buf[:1+r.IntN(len(buf))]
		var n int
		var err error
		switch r.IntN(4) {
		case 0:
			ep.Ready()
			n, err = ep.TryRecv(p)
		case 1:
			c, cancel := withdrawnSoon(ctx, r)
			if n, err = ep.Recv(c, p); errors.Is(err, status.Canceled) && ctx.Err() == nil {
				err = nil
			}
			cancel()
		default:
			n, err = ep.Recv(ctx, p)
		}
		for i, c := range p[:n] {
			if want := byte((at + i) * 31 >> 3); c != want {
				t.Errorf("byte %d is %d, want %d", at+i, c, want)
				return
			}
		}
		if at += n; err == attach.ErrPeerClosed && at == total {
			return
		}
		if err != nil {
			t.Errorf("Recv at %d of %d: %v", at, total, err)
			return
		}
	}
}
