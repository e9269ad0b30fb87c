// Package wait has the waits that many packages need: for a time, for a token, and for a change.
package wait

import (
	"sync"
	"time"
)

// For waits for d. It reports false if done is closed before.
func For(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-done:
		return false
	}
}

// Over reports whether done is closed. No value is ever sent on it.
func Over(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// At returns a channel that receives a value at t; the zero time is never.
func At(t time.Time) <-chan time.Time {
	if t.IsZero() {
		return nil
	}
	return time.After(time.Until(t))
}

// Earlier returns the earlier of two times; a zero one is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Passed reports whether the deadline t has been reached; a zero one is never.
func Passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// Notify puts a token into ch, whose capacity is one, unless there is one already.
func Notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// A Broadcast wakes all goroutines that wait for a change. The zero Broadcast is ready for use.
type Broadcast struct {
	mu sync.Mutex
	ch chan struct{} // closed by the next Fire; nil without a waiter
}

// Next returns a channel that the next Fire closes.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// Fire wakes all waiting goroutines.
func (b *Broadcast) Fire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
