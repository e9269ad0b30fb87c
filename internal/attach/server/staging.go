package server

import (
	"context"
	"sync"
)

// A stagingQuota is the node's limit on buffers for transfers from and to plain memory. A buffer is held
// until its transfer has ended, which may take seconds on a bad link: small pieces always find
// room, and a session gets three quarters of the amount that the others leave.
type stagingQuota struct {
	limit func() int64 // bytes; nil: no bound

	mu    sync.Mutex    // guards the fields below, and the staging bytes of every session
	used  int64         // bytes
	freed chan struct{} // closed, and replaced, when some were released
}

// smallPiece is the largest piece that never waits. A session has four at a time.
const smallPiece = 16 << 10

// acquire waits for room for n bytes of a session that has *of.
func (g *stagingQuota) acquire(ctx context.Context, of *int64, n int64) error {
	if g.limit == nil {
		return nil
	}
	for {
		limit := g.limit()
		g.mu.Lock()
		if n <= smallPiece || *of+n <= (limit-g.used+*of)/4*3 {
			g.used += n
			*of += n
			g.mu.Unlock()
			return nil
		}
		freed := g.freed
		g.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *stagingQuota) release(of *int64, n int64) {
	if g.limit == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used -= n
	*of -= n
	close(g.freed)
	g.freed = make(chan struct{})
}
