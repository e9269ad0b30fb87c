package engine

import (
	"context"
	"sync"

	"github.com/fabricd/fabricd/internal/wait"
)

// A group counts goroutines that can be waited for. Unlike a sync.WaitGroup
// it may be added to during a wait. The zero group is ready to use.
type group struct {
	mu   sync.Mutex // guards the fields below
	n    int
	idle chan struct{} // closed when n falls to 0; nil while no goroutine waits
}

func (g *group) run(f func()) {
	g.add()
	go func() {
		defer g.done()
		f()
	}()
}

func (g *group) add() {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
}

func (g *group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// wait returns when no goroutine of the group runs.
func (g *group) wait() {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	<-idle
}

// contextUntil returns a context that ends when done is closed. It needs no goroutine.
func contextUntil(done <-chan struct{}) context.Context {
	return chanContext{context.Background(), done}
}

type chanContext struct {
	context.Context
	done <-chan struct{}
}

func (c chanContext) Done() <-chan struct{} { return c.done }

func (c chanContext) Err() error {
	if isClosed(c.done) {
		return context.Canceled
	}
	return nil
}

func isClosed(c <-chan struct{}) bool { return wait.Over(c) }
