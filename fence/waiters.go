package fence

import "sort"

// MaxWaiters is the bound of a Waiters whose Max is zero.
const MaxWaiters = 1024

// Waiters holds the actions to perform when marks are reached: calls to wake, signals to store. The
// zero Waiters is ready to use. It is not safe for concurrent use.
type Waiters[T any] struct {
	Max int // largest number of waiters; 0 means MaxWaiters. Set it before the first Add

	queue []waiter[T] // by seq; those of one seq in the order they were added
	one   [1]T        // the result of pop if it is a single waiter
}

type waiter[T any] struct {
	seq uint64
	v   T
}

// Add makes v wait until every operation up to seq is done. It reports false, and does nothing, if
// Max waiters are queued: the caller answers status.NoBufs.
func (w *Waiters[T]) Add(seq uint64, v T) bool {
	limit := w.Max
	if limit == 0 {
		limit = MaxWaiters
	}
	if len(w.queue) >= limit {
		return false
	}
	// Marks mostly grow, so v mostly goes last.
	i := len(w.queue)
	if i > 0 && w.queue[i-1].seq > seq {
		i = w.upTo(seq)
	}
	w.queue = append(w.queue, waiter[T]{})
	copy(w.queue[i+1:], w.queue[i:])
	w.queue[i] = waiter[T]{seq, v}
	return true
}

// Reached removes and returns the waiters for marks up to done, in the order of the marks. The
// slice is valid until the next call of Reached or Drain; it is nil if there are none.
func (w *Waiters[T]) Reached(done uint64) []T {
	if len(w.queue) == 0 || w.queue[0].seq > done {
		return nil
	}
	return w.pop(w.upTo(done))
}

// Drain removes and returns all waiters, in the order of the marks: the peer is lost. The slice is
// valid as that of Reached.
func (w *Waiters[T]) Drain() []T {
	if len(w.queue) == 0 {
		return nil
	}
	return w.pop(len(w.queue))
}

// Remove removes the waiters that match selects, such as a wait whose caller gave up, and returns
// their number.
func (w *Waiters[T]) Remove(match func(T) bool) int {
	kept := w.queue[:0]
	for _, x := range w.queue {
		if !match(x.v) {
			kept = append(kept, x)
		}
	}
	n := len(w.queue) - len(kept)
	clear(w.queue[len(kept):])
	w.queue = kept
	return n
}

// Len returns the number of waiters.
func (w *Waiters[T]) Len() int { return len(w.queue) }

// upTo returns the number of waiters for marks up to seq.
func (w *Waiters[T]) upTo(seq uint64) int {
	return sort.Search(len(w.queue), func(i int) bool { return w.queue[i].seq > seq })
}

// pop removes and returns the first n waiters.
func (w *Waiters[T]) pop(n int) []T {
	out := w.one[:] // the usual case, without an allocation
	if n > 1 {
		out = make([]T, n)
	}
	for i := range out {
		out[i] = w.queue[i].v
	}
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
	return out
}
