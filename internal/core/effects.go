package core

import "github.com/fabricd/fabricd/rma"

// Effects are the actions that the methods of a Conn leave to its caller, beside the
// segments queued for the peer. They are done in the order of the fields, before another
// goroutine uses the Conn, and before a queued segment is written.
type Effects[M any] struct {
	// Stores are signals to be stored in the memory of this end. An error means that its
	// owner took the memory away: no other process could have polled it.
	Stores []Store[M]
	Woken  []*Waiter // the waits that have ended
	Freed  []M       // the memory of windows that are gone
	Refund int64     // the charges of operations that have ended ([Local].Charge), in bytes
}

// A Store is a word to be stored.
type Store[M any] struct {
	At    rma.Span[M]
	Value uint64
}

// Effects returns the pending actions, nil if there are none. The caller performs them,
// and then calls Clear.
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

// emptied returns s with length 0 and its elements zeroed.
func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}
