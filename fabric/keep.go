package fabric

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// A keeper keeps a Node: it attaches when it is asked for one, and again when that has
// ended with its fabricd.
type keeper struct {
	mu     sync.Mutex // guards the fields below
	node   *Node
	under  chan struct{} // closed when the attach in progress has ended; nil: none is in progress
	end    func()        // ends that attach, or does nothing; nil before the first one
	closed bool
}

// get returns a Node that has not ended, of attach; nil: Attach. Concurrent callers share one
// attaching.
func (k *keeper) get(ctx context.Context, attach func(context.Context) (*Node, error)) (*Node, error) {
	for {
		k.mu.Lock()
		switch {
		case k.closed:
			k.mu.Unlock()
			return nil, &OpError{Op: "attach", Local: Addr{Node: NoNode}, Err: status.BadFD}
		case k.node != nil && !ended(k.node):
			defer k.mu.Unlock()
			return k.node, nil
		case k.under == nil:
			k.under = make(chan struct{})
			ctx, end := context.WithCancel(ctx)
			defer end()
			k.end = end
			k.mu.Unlock()
			return k.attachAnew(ctx, attach)
		}
		under := k.under
		k.mu.Unlock()
		select {
		case <-under: // look again: its caller's context may have ended it
		case <-ctx.Done():
			return nil, &OpError{Op: "attach", Local: Addr{Node: NoNode}, Err: contextEnd{ctx.Err()}}
		}
	}
}

func (k *keeper) attachAnew(ctx context.Context, attach func(context.Context) (*Node, error)) (*Node, error) {
	if attach == nil {
		attach = func(ctx context.Context) (*Node, error) { return Attach(ctx, "") }
	}
	node, err := attach(ctx)
	k.mu.Lock()
	old, closed := k.node, k.closed
	if err == nil && !closed {
		k.node = node
	}
	close(k.under)
	k.under = nil
	k.mu.Unlock()
	switch {
	case closed:
		if err == nil {
			node.Close()
		}
		return nil, &OpError{Op: "attach", Local: Addr{Node: NoNode}, Err: status.BadFD}
	case err != nil:
		return nil, err
	case old != nil:
		old.Close() // nothing of it works any more
	}
	return node, nil
}

// close ends the Node, and every later get.
func (k *keeper) close() error {
	k.mu.Lock()
	node, first := k.node, !k.closed
	k.closed, k.node = true, nil
	if k.end != nil {
		k.end()
	}
	k.mu.Unlock()
	if node == nil || !first {
		return nil
	}
	return node.Close()
}

// ended reports whether n has ended, with its fabricd or by Close.
func ended(n *Node) bool { return wait.Over(n.Done()) }

// The pauses between attempts to reach a fabricd or a node that is away.
const (
	leastPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

// again calls try until it reports that its error is final, or ctx ends, and returns its
// last error. The pauses double from least to most and are random, so that applications
// that have lost the same fabricd, or found the same backlog full, do not retry at once.
func again(ctx context.Context, least, most time.Duration, try func() (err error, final bool)) error {
	for pause := least; ; pause = min(2*pause, most) {
		err, final := try()
		if err == nil || final {
			return err
		}
		if !wait.For(ctx.Done(), pause/2+rand.N(pause)) {
			return err
		}
	}
}

// mayComeBack reports whether err means the absence of a fabricd, a node, or its
// listener, which may come back.
func mayComeBack(err error) bool {
	switch status.Of(err) {
	case status.NoDevice, status.Refused, status.Busy, status.Reset, status.Again:
		return true
	}
	return false
}
