package workload

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
)

// calls are the calls that are under way in one process.
type calls struct {
	mu  sync.Mutex // guards all
	all *load.Calls[struct{}]
}

// An openCall is one call that has not returned.
type openCall = load.Open[struct{}]

func newCalls(log *Log) *calls { return &calls{all: load.NewCalls[struct{}](log.Now, log.Put)} }

// begin registers a call that is about to be made.
func (c *calls) begin(call history.Call, atOnce bool) *openCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Begin(call, atOnce, struct{}{})
}

// end registers that the call has returned.
func (c *calls) end(o *openCall, bytes int, status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.End(o, int64(bytes), status)
}

// write writes the calls that are under way and chosen.
func (c *calls) write(choose func(history.Call) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.Write(choose)
}

// writeSlow writes the calls that have been under way for too long.
func (c *calls) writeSlow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.WriteSlow()
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
