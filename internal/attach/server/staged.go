package server

import (
	"context"
	"sync"
)

// staged is the node's limit on buffers for transfers from and to plain memory. A buffer is held
// until its transfer has ended, which may take seconds on a bad link: small pieces always find
// room, and a session gets three quarters of the amount that the others leave.
type staged struct {
	limit func() int64 // bytes; nil: no bound

	mu    sync.Mutex    // guards the fields below, and the stagedBytes of every session
	used  int64         // bytes
	freed chan struct{} // closed, and replaced, when some were released
}

// smallPiece is the largest piece that never waits. A session has four at a time.
const smallPiece = 16 << 10

// take waits for room for n bytes of a session that has *of.
func (g *staged) take(ctx context.Context, of *int64, n int64) error {
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

func (g *staged) give(of *int64, n int64) {
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
