package core

import (
	"slices"
	"time"

	"github.com/fabricd/fabricd/portmap"
)

// A Listener is the state of a listening endpoint: the requests that wait, and the grants
// under way. R is a request, E the endpoint that it becomes. The zero Listener has neither.
type Listener[R, E comparable] struct {
	portmap.Backlog[R]
	granting  []grant[E] // oldest first
	confirmed []E        // for the next calls that accept, oldest first
}

type grant[E comparable] struct {
	to    E
	begun time.Duration
}

const (
	// AcceptTimeout bounds the wait for a requester to confirm a grant (SCIF's 3 s).
	AcceptTimeout = 3 * time.Second
	// GrantPatience is how long a grant under way holds up the next one: a requester that
	// never confirms must not hold up the others.
	GrantPatience = 250 * time.Millisecond
)

// Due takes the oldest request, if it is to be granted: there is one grant under way for
// each call that accepts, and for each GrantPatience that it has waited.
func (l *Listener[R, E]) Due(accepting int, now time.Duration) (r R, ok bool) {
	for _, g := range l.granting {
		if now-g.begun < GrantPatience {
			accepting--
		}
	}
	if accepting <= 0 {
		return r, false
	}
	return l.Pop()
}

// Begin records that the grant of a request to e has begun.
func (l *Listener[R, E]) Begin(e E, now time.Duration) {
	l.granting = append(l.granting, grant[E]{e, now})
}

// End records that the grant to e has ended. If e is kept, its requester has confirmed it.
func (l *Listener[R, E]) End(e E, keep bool) {
	l.granting = slices.DeleteFunc(l.granting, func(g grant[E]) bool { return g.to == e })
	if keep {
		l.confirmed = append(l.confirmed, e)
	}
}

// Take returns the oldest endpoint that is confirmed.
func (l *Listener[R, E]) Take() (e E, ok bool) {
	if len(l.confirmed) == 0 {
		return e, false
	}
	e, l.confirmed = l.confirmed[0], l.confirmed[1:]
	return e, true
}

// Waiting returns how many requests and confirmed endpoints wait for a call that accepts.
func (l *Listener[R, E]) Waiting() int { return len(l.confirmed) + l.Len() }

// Patience returns how long to wait for the grants under way before Due is to be asked
// again; 0: there is none.
func (l *Listener[R, E]) Patience(now time.Duration) time.Duration {
	for _, g := range l.granting {
		if left := g.begun + GrantPatience - now; left > 0 {
			return left
		}
	}
	return GrantPatience * time.Duration(min(len(l.granting), 1))
}

// Close empties the listener. The requests that waited are to be refused, the endpoints
// being granted give back their port, and the confirmed ones are to be reset.
func (l *Listener[R, E]) Close() (waiting []R, granting, confirmed []E) {
	for _, g := range l.granting {
		granting = append(granting, g.to)
	}
	confirmed, l.confirmed = l.confirmed, nil
	return l.Drain(), granting, confirmed
}
