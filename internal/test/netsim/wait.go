package netsim

import "time"

// A signal wakes all goroutines that wait for a change. The network's lock guards
// it; its zero value is ready.
type signal struct{ ch chan struct{} }

// wait returns a channel that the next fire closes.
func (s *signal) wait() <-chan struct{} {
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// fire wakes all waiting goroutines.
func (s *signal) fire() {
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// A wakeup holds the events that end a wait. Nil channels and a zero time are never.
type wakeup struct {
	changed, rules <-chan struct{}
	at             time.Time
}

// sleep returns at the first of the events.
func (w wakeup) sleep() {
	var due <-chan time.Time
	if !w.at.IsZero() {
		t := time.NewTimer(time.Until(w.at))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-w.changed:
	case <-w.rules:
	case <-due:
	}
}

// earlier returns the earlier of two times; a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// passed reports whether the deadline t, if set, has been reached.
func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }
