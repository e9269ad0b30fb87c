package membership

import (
	"context"
	"sync"

	"github.com/fabricd/fabricd/internal/wait"
)

// A loop is the goroutine that owns an agent's state, and the others that the agent waits for.
type loop struct {
	ctx      context.Context // ends with the loop
	cancel   context.CancelFunc
	wg       sync.WaitGroup // every goroutine of the agent but the loop
	inbox    chan func()    // runs on the loop
	ending   error          // owned by the loop: why it ends
	done     chan struct{}  // closed when everything has ended
	departed chan struct{}  // closed when a Leave is confirmed
}

func newLoop() loop {
	ctx, cancel := context.WithCancel(context.Background())
	return loop{ctx: ctx, cancel: cancel, inbox: make(chan func(), MaxInbox), done: make(chan struct{}), departed: make(chan struct{})}
}

// post has the loop run f. It waits while the inbox is full, and reports false
// if the agent has ended. The loop itself must not post.
func (l *loop) post(f func()) bool {
	if l.ctx.Err() != nil {
		return false
	}
	select {
	case l.inbox <- f:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// hasDeparted reports whether a Leave is confirmed.
func (l *loop) hasDeparted() bool { return wait.Over(l.departed) }
