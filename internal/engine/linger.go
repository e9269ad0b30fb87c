package engine

import (
	"context"
	"errors"
	"time"
)

// closeLinger is how long a close waits for a peer that takes and sends nothing (SCIF's
// 10 s): whatever it still has to move goes on as long as some of it moves.
const closeLinger = 10 * time.Second

// lingerLooks is how often a close looks whether something has moved, in that time.
const lingerLooks = 10

// errStalled is why a close gives up.
var errStalled = errors.New("nothing has moved on the connection for too long")

// whileMoving returns a context that ends when nothing of the connection has moved for closeLinger.
func (c *conn) whileMoving() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	const pause = closeLinger / lingerLooks
	last, still := c.progress(), 0
	var look *time.Timer
	ready := make(chan struct{})
	look = time.AfterFunc(pause, func() {
		<-ready
		now := c.progress()
		if still++; now != last {
			last, still = now, 0
		}
		if still == lingerLooks {
			cancel(errStalled)
			return
		}
		look.Reset(pause)
	})
	close(ready)
	return ctx, func() { look.Stop(); cancel(context.Canceled) }
}

// progress returns a count of the connection's progress: any progress changes it.
func (c *conn) progress() uint64 {
	c.mu.Lock()
	ended := c.core.Ended()
	c.mu.Unlock()
	return ended + c.moved.Load()
}
