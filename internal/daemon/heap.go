package daemon

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/shm"
)

const (
	// heapPart is what Go may take of the memory limit, in per cent, before its
	// collector works harder: without that it lets garbage grow to as much as is in
	// use, and a container of 64 MiB ends with 35 MiB in use.
	heapPart = 80
	// limitEvery is how often the limit is looked at, which may change.
	limitEvery = 5 * time.Second
)

// BoundHeap keeps Go's memory below the process's limit, where $GOMEMLIMIT says
// nothing, until ctx is done or stop is called, which waits for the end. It is the
// process that is bounded: fabricd does it, and no program that embeds a node.
func BoundHeap(ctx context.Context) (stop func()) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { followLimit(ctx) })
	return func() {
		cancel()
		wg.Wait()
		debug.SetMemoryLimit(math.MaxInt64)
	}
}

func followLimit(ctx context.Context) {
	every := time.NewTicker(limitEvery)
	defer every.Stop()
	for last := int64(0); ; {
		if limit, ok := shm.Limit(); ok && limit != last {
			debug.SetMemoryLimit(limit / 100 * heapPart)
			last = limit
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}
