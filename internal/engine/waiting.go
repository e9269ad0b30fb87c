package engine

import (
	"context"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
)

// newWaiter returns a waiter; its C is empty while no goroutine waits.
func (c *conn) newWaiter() *core.Waiter {
	w, ok := c.link.n.waiters.Get().(*core.Waiter)
	if !ok {
		return &core.Waiter{C: make(chan struct{}, 1)}
	}
	w.Code, w.Value = status.OK, 0
	return w
}

func (c *conn) freeWaiter(w *core.Waiter) { c.link.n.waiters.Put(w) }

// await waits for w, which the core was given, gives it back and returns its
// result. It gives up when ctx is done or quit is closed.
func (c *conn) await(ctx context.Context, w *core.Waiter, quit <-chan struct{}) (uint64, error) {
	select {
	case <-w.C:
	default:
		if err := c.awaitOr(ctx, w, quit); err != nil {
			return 0, err
		}
	}
	code, value := w.Code, w.Value
	c.freeWaiter(w)
	return value, c.asError(code)
}

// awaitOr waits for w, or for a reason to give up.
func (c *conn) awaitOr(ctx context.Context, w *core.Waiter, quit <-chan struct{}) (err error) {
	select {
	case <-w.C:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-quit:
		err = status.Reset
	}
	c.mu.Lock()
	c.core.Forget(w)
	c.mu.Unlock()
	select {
	case <-w.C: // it came meanwhile
		return nil
	default:
		return err
	}
}

// call runs begin, which makes w wait for something, with mu held, and waits for it. begin reports
// whether there is something to wait for; otherwise the result is w.Code.
func (c *conn) call(ctx context.Context, begin func(w *core.Waiter) (wait bool, err error)) error {
	_, err := c.ask(ctx, begin)
	return err
}

// ask is call for an operation with a value.
func (c *conn) ask(ctx context.Context, begin func(w *core.Waiter) (wait bool, err error)) (uint64, error) {
	w := c.newWaiter()
	c.mu.Lock()
	if err := c.overLocked(); err != nil {
		c.mu.Unlock()
		c.freeWaiter(w)
		return 0, err
	}
	wait, err := begin(w)
	left := nothing
	if err == nil && wait {
		left = c.start(false)
	}
	c.mu.Unlock()
	if err != nil {
		c.freeWaiter(w)
		return 0, err
	}
	if !wait {
		code := w.Code
		c.freeWaiter(w)
		return 0, c.asError(code)
	}
	c.do(left)
	return c.await(ctx, w, c.bye.closing)
}
