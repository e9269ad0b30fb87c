package path

import (
	"context"
	"time"
)

// A watch ends the waits at a socket in one direction when the ctx of a call is done. It
// is owned by the goroutine of the calls.
//
// A ctx that comes a second time stays watched after the call, so that more calls with it,
// as with the deadline of a fabric.Conn, cost no memory. The deadline that it may set in
// between is that of the next call with it; every other call undoes it first.
type watch struct {
	set   func(time.Time) // the deadline of the direction
	done  <-chan struct{} // of the ctx that is watched; nil: none
	last  <-chan struct{} // of the ctx of the call before
	fired chan struct{}   // closed when its end has set the deadline
	stop  func() bool
}

// begin watches ctx for a call.
func (w *watch) begin(ctx context.Context) {
	done := ctx.Done()
	if w.done == done {
		return
	}
	w.end()
	if done == nil {
		return
	}
	fired := make(chan struct{})
	w.done, w.fired = done, fired
	w.stop = context.AfterFunc(ctx, func() { w.set(past); close(fired) })
}

// finish ends the watch behind a call with ctx, unless the next call may have it, too.
func (w *watch) finish(ctx context.Context) {
	again := w.done == w.last && ctx.Err() == nil
	w.last = w.done
	if !again {
		w.end()
	}
}

// end stops the watch, and clears the deadline that it has set.
func (w *watch) end() {
	if w.done == nil {
		return
	}
	if !w.stop() {
		<-w.fired
		w.set(time.Time{})
	}
	w.done, w.fired, w.stop = nil, nil, nil
}
