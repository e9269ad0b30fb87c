package client

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/status"
)

// orderSizes are those of sends that lie in a slot, in the data area, in both, and
// in more pieces than a ring holds.
var orderSizes = []int{1, ring.Inline - 1, ring.Inline, ring.Inline + 1, 64, 300, ring.MinData / 4, ring.MinData/4 + 1, ring.MinData + ring.Inline, 3 * ring.MinData}

// TestPendingSendsKeepTheirOrder queues sends of all sizes after one for which there is no room: in
// the ring of a shared-memory path, or at the data socket while the shared-memory path is set up.
// The bytes arrive in the order of the calls, none overtakes another, not even a TrySend that finds
// room, and a canceled send has sent nothing.
func TestPendingSendsKeepTheirOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for name, upgrade := range map[string]bool{"in a ring": false, "across the upgrade": true} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			s := serve(t, func(o *server.Options) { o.Rings = ring.Params{Slots: 8, Data: ring.MinData, Release: 25} })
			for range 3 {
				a, b := connect(t, s.dial(t), s.dial(t))
				if !upgrade {
					talk(t, a, b)
				}
				q := &pendingSends{t: t, ep: a.(*endpoint)}
				q.send(1<<20, nil) // no reader: it waits, whatever the buffers hold
				q.sendAll(rng)
				if upgrade {
					a.(*endpoint).upgrade(false)
					eventually(t, "the peer reads at the shared-memory path", func() bool {
						sp := a.(*endpoint).shmPath.Load()
						return sp != nil && sp.out.ReaderReady()
					})
					q.sendAll(rng)
				}
				q.drain(b, rng)
				if !through(a) && !a.(*endpoint).shmPath.Load().switched.Load() || !b.(*endpoint).shmPath.Load().reading.Load() {
					t.Error("the stream does not go through the shared-memory path")
				}
				check(t, "Close", a.Close(), status.OK)
				check(t, "Close", b.Close(), status.OK)
			}
		})
	}
}

// pendingSends are calls that wait for the mutex, in a known order.
type pendingSends struct {
	t     *testing.T
	ep    *endpoint
	calls int32 // that have the mutex, or wait for it
	total int   // bytes of them
	wg    sync.WaitGroup
}

// streamByte returns the stream's byte at a position.
func streamByte(at int) byte { return byte(uint32(at+1) * 2654435761 >> 24) }

func streamBytes(at, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = streamByte(at + i)
	}
	return p
}

// send begins a Send of the next n bytes of the stream, and returns when it waits after those
// before it. A send with a context will be canceled, and its bytes do not belong to the stream.
func (q *pendingSends) send(n int, withdraw context.Context) {
	q.t.Helper()
	p, want, ctx := streamBytes(q.total, n), n, context.Background()
	if withdraw != nil {
		clear(p)
		want, ctx = 0, withdraw
	} else {
		q.total += n
	}
	q.wg.Go(func() {
		if got, err := q.ep.Send(ctx, p); got != want || (err != nil) != (withdraw != nil) {
			q.t.Errorf("Send of %d bytes: %d, %v, want %d", n, got, err, want)
		}
	})
	q.calls++
	q.waiting(q.calls)
}

// waiting returns when all calls but the first are in the queue for the mutex. A call
// is counted before it is in the queue, and the next one could come between.
func (q *pendingSends) waiting(calls int32) {
	q.t.Helper()
	eventually(q.t, "the call waits for the mutex", func() bool {
		return q.ep.sending.state.Load() == 2*calls-1 && queued() == calls-1
	})
}

// queued returns how many goroutines of this process sleep until they have the mutex.
func queued() (n int32) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if state, calls, _ := bytes.Cut(stack, []byte("\n")); bytes.Contains(state, []byte("[select")) && bytes.Contains(calls, []byte("(*Mutex).lockSlow(")) {
			n++
		}
	}
	return n
}

// sendAll begins sends of all sizes, one of which is canceled.
func (q *pendingSends) sendAll(rng *rand.Rand) {
	q.t.Helper()
	for _, i := range rng.Perm(3 * len(orderSizes)) {
		q.send(orderSizes[i/3], nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.send(1000, ctx)
	q.send(10, nil)
	cancel()
	q.calls--
	q.waiting(q.calls)
}

// drain reads all of the stream, and tries to send between the reads.
func (q *pendingSends) drain(b attach.Endpoint, rng *rand.Rand) {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	end := q.total // of the calls' bytes; TrySend's follow
	buf := make([]byte, 20_000)
	for at := 0; at < q.total || at < end+1000; {
		n, err := q.ep.TrySend(streamBytes(q.total, 1+rng.IntN(100)))
		q.total += n
		if err != nil {
			q.t.Fatal("TrySend: ", err)
		}
		if at == q.total {
			continue
		}
		n, err = b.Recv(ctx, buf[:1+rng.IntN(len(buf))])
		if err != nil {
			q.t.Fatalf("Recv at %d of %d: %v", at, q.total, err)
		}
		for i, c := range buf[:n] {
			if c != streamByte(at+i) {
				q.t.Fatalf("byte %d of %d is %d, want %d", at+i, q.total, c, streamByte(at+i))
			}
		}
		at += n
	}
	q.wg.Wait()
}
