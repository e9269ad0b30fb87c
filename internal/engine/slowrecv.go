package engine

import (
	"context"
	"time"
)

// recvSlowly is Recv of an application that a fault makes slow: it lets some time pass between two
// receives. The loss of the peer and a close of the endpoint end the delay.
func (e *endpoint) recvSlowly(ctx context.Context, c *conn, p []byte) (int, error) {
	if wait, over := e.slowness(); wait > 0 {
		select {
		case <-time.After(wait):
		case <-over:
		case <-ctx.Done():
		case <-e.gone:
		case <-c.link.end.down:
		}
	}
	n, err := c.in.read(ctx, p)
	e.received(n)
	return n, err
}

// tryRecvSlowly is TryRecv of such an application: nothing is there until its time has come.
func (e *endpoint) tryRecvSlowly(c *conn, p []byte) (int, error) {
	if e.receivesLater() {
		return 0, nil
	}
	n, err := c.in.tryRead(p)
	e.received(n)
	return n, err
}

// slowness returns how long the application still waits before it reads, and
// a channel that ends the wait early.
func (e *endpoint) slowness() (wait time.Duration, over <-chan struct{}) {
	e.mu.Lock()
	port, at := e.port, e.recvAt
	e.mu.Unlock()
	if at -= e.n.now(); at <= 0 {
		return 0, nil
	}
	delay, over := e.n.cfg.Faults.SlowReceiver(uint16(port))
	return min(at, delay), over
}

// receivesLater reports whether the application would not read now.
func (e *endpoint) receivesLater() bool {
	if !e.n.cfg.Faults.SlowReceivers() {
		return false
	}
	wait, _ := e.slowness()
	return wait > 0 && !isClosed(e.hungUp)
}

// received begins the time that a slow application takes for n bytes, and notifies when it is over.
func (e *endpoint) received(n int) {
	if n == 0 {
		return
	}
	e.mu.Lock()
	port := e.port
	e.mu.Unlock()
	delay, over := e.n.cfg.Faults.SlowReceiver(uint16(port))
	if delay == 0 {
		return
	}
	e.mu.Lock()
	e.recvAt = e.n.now() + delay
	e.mu.Unlock()
	if e.linked.Load() == nil {
		return // it has ended, and holds up nothing
	}
	e.n.work.run(func() {
		select {
		case <-time.After(delay):
		case <-over:
		case <-e.gone:
		case <-e.hungUp:
		case <-e.n.done:
		}
		e.changed()
	})
}
