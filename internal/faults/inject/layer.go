package inject

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Layer lies between one node and its carriers. Its methods may be called from any goroutine.
type Layer struct {
	plane  *faults.Plane
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	lingering atomic.Int32 // streams that linger

	mu     sync.Mutex // guards the fields below
	closed bool
	open   map[stream]struct{}
}

// A stream is something that a change of the rules may stop, release or end.
type stream interface {
	poke()  // the rules have changed
	abort() // the Layer ends: free everything
}

// New returns a Layer that enforces the rules of p. Close ends it.
func New(p *faults.Plane) *Layer {
	l := &Layer{plane: p, open: make(map[stream]struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(l.watch)
	return l
}

// Plane returns the Plane whose rules the Layer enforces.
func (l *Layer) Plane() *faults.Plane { return l.plane }

// Close ends all open streams and waits for the Layer's goroutines. Wrapped connections are to be
// closed before, unless they may be cut off. A second Close does nothing.
func (l *Layer) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	for _, s := range l.streams() {
		s.abort()
	}
	l.wg.Wait()
}

// watch pokes the streams whenever a rule is added or removed, begins, rests or
// ends.
func (l *Layer) watch() {
	for {
		changed, next := l.plane.Watch()
		for _, s := range l.streams() {
			s.poke()
		}
		if !sleep(changed, l.ctx.Done(), in(next)) {
			return
		}
	}
}

func (l *Layer) streams() []stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// add registers s; it reports false if the Layer has ended.
func (l *Layer) add(s stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.open[s] = struct{}{}
	}
	return !l.closed
}

func (l *Layer) remove(s stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, s)
}

// spawn runs f on a goroutine that Close waits for; it reports false if the
// Layer has ended.
func (l *Layer) spawn(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.wg.Go(f)
	return true
}

// awaitOpen waits until w may send again. It reports false if stop is closed, or
// the Layer, before.
func (l *Layer) awaitOpen(w *peer, stop <-chan struct{}) bool {
	n := &waiter{}
	if !l.add(n) {
		return false
	}
	defer l.remove(n)
	for {
		wake := n.wake.Next()
		if !w.gate(true, false).Stopped {
			return true
		}
		select {
		case <-wake:
		case <-stop:
			return false
		case <-l.ctx.Done():
			return false
		}
	}
}

// A waiter is a stream of no bytes.
type waiter struct{ wake wait.Broadcast }

func (n *waiter) poke()  { n.wake.Fire() }
func (n *waiter) abort() { n.wake.Fire() }

// maxLinger bounds the streams that were closed while the rules still hold the end back from the
// peer. lingerTime bounds how long.
const (
	maxLinger  = 1024
	lingerTime = 2 * time.Minute
)

// linger runs f, as spawn does, if not too many run already.
func (l *Layer) linger(f func()) bool {
	if l.lingering.Add(1) <= maxLinger && l.spawn(func() { defer l.lingering.Add(-1); f() }) {
		return true
	}
	l.lingering.Add(-1)
	return false
}
