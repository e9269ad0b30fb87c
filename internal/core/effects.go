package core

import "github.com/fabricd/fabricd/rma"

// Effects are what the methods of a Conn leave to be done, beside what they queue for
// the peer. They are done in the order of the fields, before another goroutine uses the
// Conn, and before anything that is queued is written.
type Effects[M any] struct {
	// Stores are signals to be stored in the memory of this end. An error means that its
	// owner took the memory away: nobody else could have polled it.
	Stores []Store[M]
	Woken  []*Waiter // the waits that have ended
	Freed  []M       // the memory of windows that are gone
	Refund int64     // of what was charged for operations that have ended ([Local].Charge), in bytes
}

// A Store is a word to be stored.
type Store[M any] struct {
	At    rma.Span[M]
	Value uint64
}

// Effects returns what is to be done, nil if that is nothing. The caller does it, and
// then calls Clear.
func (c *Conn[M]) Effects() *Effects[M] {
	e := &c.effects
	if len(e.Woken) == 0 && len(e.Freed) == 0 && len(e.Stores) == 0 && e.Refund == 0 {
		return nil
	}
	return e
}

// Clear empties the effects. Their memory is used again.
func (e *Effects[M]) Clear() {
	e.Stores, e.Woken, e.Freed, e.Refund = emptied(e.Stores), emptied(e.Woken), emptied(e.Freed), 0
}

// emptied returns s without elements, whose memory refers to nothing.
func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}
