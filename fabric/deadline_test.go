package fabric

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// expires reports whether l is done within wait.
func expires(l *limit, wait time.Duration) bool {
	select {
	case <-l.Done():
		return errors.Is(l.Err(), os.ErrDeadlineExceeded)
	case <-time.After(wait):
		return l.Err() != nil
	}
}

func TestDeadlineMoves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDeadline()
		blocked := d.current()
		if expires(blocked, time.Hour) {
			t.Fatal("expired without a deadline")
		}

		d.set(time.Now().Add(time.Minute))
		d.set(time.Now().Add(time.Hour))
		if expires(blocked, 59*time.Minute) {
			t.Fatal("a deadline that was moved away still expired")
		}
		if !expires(blocked, 2*time.Minute) {
			t.Fatal("a call blocked before the deadline was set did not end")
		}
		if d.current() != blocked {
			t.Fatal("a later call does not see the deadline that has passed")
		}

		d.set(time.Time{})
		if expires(d.current(), time.Hour) {
			t.Fatal("a call after the deadline was lifted expired")
		}
		if blocked.Err() == nil {
			t.Fatal("lifting the deadline revived a call that had expired")
		}

		d.set(time.Now().Add(-time.Second))
		if !expires(d.current(), 0) {
			t.Fatal("a deadline in the past did not expire at once")
		}
		d.set(time.Now().Add(-time.Second)) // again: closed only once
		d.set(time.Now().Add(time.Second))
		if expires(d.current(), 999*time.Millisecond) || !expires(d.current(), 2*time.Millisecond) {
			t.Fatal("a deadline after one in the past does not expire in time")
		}
	})
}

func TestLimitCarriesContexts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDeadline()
		child, cancel := context.WithCancel(d.current())
		defer cancel()
		called := make(chan struct{})
		context.AfterFunc(d.current(), func() { close(called) })
		stop := context.AfterFunc(d.current(), func() { t.Error("a function that was stopped ran") })
		if !stop() || stop() {
			t.Error("stop does not say once that it stopped")
		}
		if err := child.Err(); err != nil {
			t.Errorf("the child is over before the deadline: %v", err)
		}

		start := time.Now()
		d.set(start.Add(time.Minute))
		<-child.Done()
		<-called
		if got := time.Since(start); got != time.Minute {
			t.Errorf("the child ended after %v, want 1m", got)
		}
		if err := child.Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the child ended with %v", err)
		}
		late := make(chan struct{})
		if stop := context.AfterFunc(d.current(), func() { close(late) }); stop() {
			t.Error("a function was stopped that the past deadline had called")
		}
		<-late
	})
}

// TestLimitExpiresWhileAContextLooks races the two, whose locks cross.
func TestLimitExpiresWhileAContextLooks(t *testing.T) {
	for range 2000 {
		d := newDeadline()
		go d.set(time.Now().Add(-time.Second))
		child, cancel := context.WithCancel(d.current())
		<-child.Done()
		cancel()
	}
}
