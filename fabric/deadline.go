package fabric

import (
	"context"
	"os"
	"sync"
	"time"
)

// A deadline is a net.Conn's deadline for one direction, as a context that can
// be moved. The zero deadline is not usable; see newDeadline.
type deadline struct {
	mu    sync.Mutex  // guards the fields below
	timer *time.Timer // nil when no time is set; expires limit
	limit *limit      // never nil
}

// A limit is a context that is done once it has expired, with net.Conn's error. Its deadline is
// unknown: it may move.
type limit struct {
	context.Context
	expire context.CancelFunc
}

func newDeadline() deadline { return deadline{limit: newLimit()} }

func newLimit() *limit {
	l := new(limit)
	l.Context, l.expire = context.WithCancel(context.Background())
	return l
}

// current returns the limit of calls that begin now. A call that is blocked
// when the deadline moves has the same limit, until that has expired.
func (d *deadline) current() *limit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limit
}

// set moves the deadline to t; the zero t is no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.limit.Done() // its function runs: let it end, so that it cannot expire a later deadline
	}
	d.timer = nil
	wait := time.Until(t)
	if !t.IsZero() && wait <= 0 {
		d.limit.expire()
		return
	}
	if d.limit.Err() != nil {
		d.limit = newLimit()
	}
	if !t.IsZero() {
		d.timer = time.AfterFunc(wait, d.limit.expire)
	}
}

// Err is the error of the contexts made from the limit, too: Value hides the embedded one.
func (l *limit) Err() error {
	if l.Context.Err() != nil {
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (l *limit) Value(any) any { return nil }

// AfterFunc is the method by which package context watches a foreign context;
// without it, the package would start a goroutine for every call with a limit.
func (l *limit) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(l.Context, f) }
