package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// A stopped node answers nothing, and its socket stays open. Calls with a context nevertheless end
// with it, and calls that need no answer end after patience.

const (
	// patience bounds how long a call that needs no answer, such as Close, waits for a node that
	// does not answer.
	patience = 2 * time.Second
	// withdrawal bounds how long a call waits for the result of its request after its context has
	// ended.
	withdrawal = time.Second
)

// errUnresponsive is the cause of the end of a patient context.
var errUnresponsive = fmt.Errorf("the node does not answer: %w", status.TimedOut)

// ended is the error of a call that the end of ctx has ended.
func ended(ctx context.Context) error { return fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err()) }

// patient returns a context for a call that the node should answer at once. It ends after patience;
// while the node is known not to respond it has ended already.
func (c *session) patient() (context.Context, context.CancelFunc) {
	d := patience
	if c.unresponsive.Load() {
		d = 0
	}
	return context.WithTimeoutCause(context.Background(), d, errUnresponsive)
}

// cancelRequest asks the node to cancel a request and waits for its answer, but not long: a stopped node
// gives none.
func (c *session) cancelRequest(id uint64, w *call) (answer, bool) {
	c.out.Put(proto.Packet{Header: proto.Header{Op: proto.OpCancel}, Body: &proto.Cancel{Request: id}})
	if !c.unresponsive.Load() {
		select {
		case a := <-w.answer:
			return a, true
		case <-time.After(withdrawal):
			c.unresponsive.Store(true)
		}
	}
	if c.leave(w) {
		return answer{}, false
	}
	return <-w.answer, true
}

// responded records that the node has sent something. Endpoints whose request for events went
// unanswered have to poll again.
func (c *session) responded() {
	if !c.unresponsive.Load() || !c.unresponsive.CompareAndSwap(true, false) {
		return
	}
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.endpoints))
	c.mu.Unlock()
	for _, e := range all {
		e.notify()
	}
}
