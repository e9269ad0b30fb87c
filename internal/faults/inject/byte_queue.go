package inject

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A chunk is some bytes of a stream that are on their way until due.
type chunk struct {
	data []byte
	due  time.Time
}

// byteQueueLimit bounds the bytes that wait in a byteQueue. A writer of more waits.
const byteQueueLimit = 1 << 20

// pushes counts the pushes of all byteQueues. A few nanoseconds of it go into each due time, so that
// pieces sent at one instant of virtual time on several streams arrive in order.
var pushes atomic.Uint64

// tieSpan bounds the time that pushes adds, in nanoseconds.
const tieSpan = 1 << 14

// A byteQueue is the bytes of one direction of a stream that a rule keeps waiting, in
// order. The zero byteQueue is empty.
type byteQueue struct {
	changed wait.Broadcast // fires at every change, and when the rules change

	mu       sync.Mutex // guards the fields below
	chunks   []chunk
	size     int
	end      error     // the result after the chunks; nil: more of them
	broken   error     // instead of everything
	deadline time.Time // of the user's side
}

// push adds a copy of p, due after wait and not before the chunks that are there. It waits for
// room, until the deadline if bound, or until stop.
func (l *byteQueue) push(p []byte, wait time.Duration, bound bool, stop <-chan struct{}) error {
	for {
		changed := l.changed.Next()
		l.mu.Lock()
		until, err := l.tryPush(p, wait, bound, time.Now())
		l.mu.Unlock()
		if err != errFull {
			return err
		}
		if !sleep(changed, stop, until) {
			return errStopped
		}
	}
}

// tryPush is push without waiting; errFull means that it would wait, until the
// time returned. mu is held.
func (l *byteQueue) tryPush(p []byte, delay time.Duration, bound bool, now time.Time) (time.Time, error) {
	switch {
	case l.broken != nil:
		return time.Time{}, l.broken
	case l.end != nil:
		return time.Time{}, errFinished
	case bound && wait.Passed(l.deadline, now):
		return time.Time{}, os.ErrDeadlineExceeded
	case l.size > 0 && l.size+len(p) > byteQueueLimit:
		if bound {
			return l.deadline, errFull
		}
		return time.Time{}, errFull
	}
	due := now.Add(delay + time.Duration(pushes.Add(1)%tieSpan))
	if k := len(l.chunks); k > 0 && due.Before(l.chunks[k-1].due) {
		due = l.chunks[k-1].due
	}
	l.chunks = append(l.chunks, chunk{append([]byte(nil), p...), due})
	l.size += len(p)
	l.changed.Fire()
	return time.Time{}, nil
}

// pop returns at most limit bytes that are due, when open reports that they may pass. Afterwards it
// returns the error of finish. It waits until the deadline if bound, or until stop.
func (l *byteQueue) pop(limit int, open func() bool, bound bool, stop <-chan struct{}) ([]byte, error) {
	for {
		changed := l.changed.Next()
		l.mu.Lock()
		p, until, err := l.tryPop(limit, open, bound, time.Now())
		l.mu.Unlock()
		if err != errFull {
			return p, err
		}
		if !sleep(changed, stop, until) {
			return nil, errStopped
		}
	}
}

// tryPop is pop without waiting. mu is held.
func (l *byteQueue) tryPop(limit int, open func() bool, bound bool, now time.Time) (p []byte, until time.Time, err error) {
	if bound {
		until = l.deadline
	}
	switch {
	case l.broken != nil:
		return nil, until, l.broken
	case bound && wait.Passed(l.deadline, now):
		return nil, until, os.ErrDeadlineExceeded
	case len(l.chunks) > 0 && now.Before(l.chunks[0].due):
		return nil, wait.Earlier(until, l.chunks[0].due), errFull
	case len(l.chunks) == 0 && l.end == nil, !open():
		return nil, until, errFull
	case len(l.chunks) == 0:
		return nil, until, l.end
	}
	c := &l.chunks[0]
	p = c.data[:min(limit, len(c.data))]
	c.data = c.data[len(p):]
	if len(c.data) == 0 {
		l.chunks = l.chunks[1:]
	}
	l.size -= len(p)
	l.changed.Fire()
	return p, until, nil
}

// finish sets the error behind the waiting bytes. The first call counts.
func (l *byteQueue) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end == nil {
		l.end = err
	}
	l.changed.Fire()
}

// fail drops the waiting bytes: every call returns err from now on. The first call counts.
func (l *byteQueue) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken, l.chunks, l.size = err, nil, 0
	}
	l.changed.Fire()
}

// finished reports whether finish was called.
func (l *byteQueue) finished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end != nil
}

// refusal returns why nothing can be added any more.
func (l *byteQueue) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil && l.end != nil {
		return errFinished
	}
	return l.broken
}

// failure returns the error of fail.
func (l *byteQueue) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

func (l *byteQueue) setDeadline(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	l.changed.Fire()
}

// A sentinel never leaves the package.
type sentinel string

func (s sentinel) Error() string { return string(s) }

const (
	errFull    sentinel = "wait"
	errStopped sentinel = "stopped"
	// errFinished answers a push to a byteQueue that was finished.
	errFinished sentinel = "finished"
)

// sleep waits for changed or until; it reports false if stop is closed.
func sleep(changed, stop <-chan struct{}, until time.Time) bool {
	select {
	case <-changed:
	case <-wait.At(until):
	case <-stop:
		return false
	}
	return true
}

// in returns the time after d; of 0, which is never, the zero time.
func in(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}
