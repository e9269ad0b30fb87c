package load

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// slowCall is how long a call may take before it is written down as under way. Calls that
// are written when they begin do not wait for it.
const slowCall = 100 * time.Millisecond

// Calls are the calls of an application that have not returned, with its driver's record of
// each. They write those that block for long or fail: of all others nothing is recorded.
type Calls[T any] struct {
	now  func() time.Duration
	put  func(history.Body)
	last uint64
	open []*Open[T] // in the order in which they began
}

// An Open is one call that has not returned.
type Open[T any] struct {
	history.Call
	Of      T
	written bool // its Call record is in the log
}

// NewCalls returns an empty table. put writes that something has happened now.
func NewCalls[T any](now func() time.Duration, put func(history.Body)) *Calls[T] {
	return &Calls[T]{now: now, put: put}
}

// Begin registers a call that is about to be made. With atOnce it is written now: the call
// may block for long.
func (c *Calls[T]) Begin(call history.Call, atOnce bool, of T) *Open[T] {
	c.last++
	call.ID, call.Began = c.last, int64(c.now())
	o := &Open[T]{Call: call, Of: of}
	c.open = append(c.open, o)
	if atOnce {
		c.write(o)
	}
	return o
}

func (c *Calls[T]) write(o *Open[T]) {
	o.written = true
	call := o.Call
	c.put(&call)
}

// End registers that a call has returned, with a [Result]'s status. Failures, and successes
// of calls that were written, are written. It reports false if the call had returned before.
func (c *Calls[T]) End(o *Open[T], bytes int64, status string) bool {
	i := slices.Index(c.open, o)
	if i < 0 {
		return false
	}
	c.open = slices.Delete(c.open, i, i+1)
	if status != "" || o.written {
		c.put(&history.Return{Call: o.Call, Status: returned(status), Bytes: bytes})
	}
	return true
}

// returned is the status of the record of a call that has ended with a [Result]'s status. A
// receive behind the last byte of a peer that has closed in order has [history.HowEOF], and
// its record the errno.
func returned(status string) string {
	if status == history.HowEOF {
		return "ECONNRESET"
	}
	return status
}

// Open returns the calls that have not returned.
func (c *Calls[T]) Open() []*Open[T] { return slices.Clone(c.open) }

// WriteSlow writes the calls that have been under way for too long.
func (c *Calls[T]) WriteSlow() {
	limit := int64(c.now() - slowCall)
	c.Write(func(o history.Call) bool { return o.Began <= limit })
}

// Write writes the calls that are under way, not written yet, and chosen.
func (c *Calls[T]) Write(choose func(history.Call) bool) {
	for _, o := range c.open {
		if !o.written && choose(o.Call) {
			c.write(o)
		}
	}
}
