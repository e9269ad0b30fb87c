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

// A limit is a context that is done once it has expired.
type limit struct {
	expired chan struct{} // closed once, by expire

	mu    sync.Mutex         // guards the field below
	after map[*func()]func() // functions that expire calls; nil once called
}

func newDeadline() deadline { return deadline{limit: newLimit()} }

func newLimit() *limit {
	return &limit{expired: make(chan struct{}), after: make(map[*func()]func())}
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
		<-d.limit.expired // its function runs: let it end, so that it cannot expire a later deadline
	}
	d.timer = nil
	wait := time.Until(t)
	over := d.limit.Err() != nil
	if !t.IsZero() && wait <= 0 {
		if !over {
			d.limit.expire()
		}
		return
	}
	if over {
		d.limit = newLimit()
	}
	if !t.IsZero() {
		d.timer = time.AfterFunc(wait, d.limit.expire)
	}
}

func (l *limit) expire() {
	l.mu.Lock()
	after := l.after
	l.after = nil
	close(l.expired)
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// AfterFunc is the method by which package context watches a foreign context;
// without it, the package would start a goroutine for every call with a limit. f is the
// context package's and briefly takes a lock of its own, which AfterFunc's caller may hold.
func (l *limit) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	over := l.after == nil
	if !over {
		l.after[&f] = f
	}
	l.mu.Unlock()
	if over {
		go f() // only if the limit expires at this moment; f waits only for our caller's lock
	}
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, waits := l.after[&f]
		delete(l.after, &f)
		return waits
	}
}

// Deadline is unknown: it may move.
func (l *limit) Deadline() (time.Time, bool) { return time.Time{}, false }

func (l *limit) Done() <-chan struct{} { return l.expired }

func (l *limit) Err() error {
	select {
	case <-l.expired:
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

func (l *limit) Value(any) any { return nil }

var _ context.Context = (*limit)(nil)
