package workload

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
)

// slowCall is how long a call may take before it is written down as under way.
// Calls that are written when they begin do not wait for it.
const slowCall = 100 * time.Millisecond

// calls are the calls that are under way in one process.
type calls struct {
	log *Log

	mu   sync.Mutex // guards the fields below
	next uint64
	open map[uint64]*openCall
}

// An openCall is one call that has not returned.
type openCall struct {
	history.Call
	written bool // its Call record is in the log
}

func newCalls(log *Log) *calls { return &calls{log: log, open: make(map[uint64]*openCall)} }

// begin registers a call that is about to be made. With atOnce it is written now: the
// call may block for long.
func (c *calls) begin(call history.Call, atOnce bool) *openCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	call.ID = c.next
	call.Began = int64(c.log.Now())
	o := &openCall{Call: call, written: atOnce}
	c.open[o.ID] = o
	if atOnce {
		c.log.Put(&o.Call)
	}
	return o
}

// end registers that the call has returned. Failures, and successes of calls that were
// written, are written.
func (c *calls) end(o *openCall, bytes int, status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, o.ID)
	if status != "" || o.written {
		c.log.Put(&history.Return{Call: o.Call, Status: load.Returned(status), Bytes: int64(bytes)})
	}
}

// writeOpen writes the calls that are under way, not written yet, and chosen.
func (c *calls) writeOpen(choose func(*openCall) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.open {
		if !o.written && choose(o) {
			o.written = true
			c.log.Put(&o.Call)
		}
	}
}

// writeSlow writes the calls that have been under way for too long.
func (c *calls) writeSlow() {
	limit := int64(c.log.Now() - slowCall)
	c.writeOpen(func(o *openCall) bool { return o.Began <= limit })
}

// writeTo writes the calls that are under way towards an incarnation whose removal is about to
// be reported: they should have failed.
func (c *calls) writeTo(peer fabric.Incarnation) {
	c.writeOpen(func(o *openCall) bool { return o.Peer == peer })
}

// statusOf returns the status of a [load.Result] for err.
func statusOf(err error) string {
	var op *fabric.OpError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, net.ErrClosed):
		return "EBADF"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "ETIMEDOUT"
	case errors.Is(err, context.Canceled):
		return "ECANCELED"
	case errors.Is(err, io.EOF):
		return history.HowEOF
	case errors.As(err, &op):
		return history.Errno(op.Errno())
	}
	return "EIO"
}
