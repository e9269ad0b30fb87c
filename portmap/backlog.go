package portmap

// MaxBacklog is the largest number of requests queued at one listening port.
const MaxBacklog = 1024

// A Backlog is the bounded FIFO queue of connection requests that wait to be accepted. The zero
// Backlog has room for one. It is not safe for concurrent use.
type Backlog[T comparable] struct {
	limit int
	queue []T // oldest first
}

// NewBacklog returns an empty queue with room for limit requests, clamped to
// 1 … MaxBacklog.
func NewBacklog[T comparable](limit int) *Backlog[T] {
	return &Backlog[T]{limit: min(max(limit, 1), MaxBacklog)}
}

// Push appends v. It reports false, and does nothing, if the queue is full: the request is refused.
func (b *Backlog[T]) Push(v T) bool {
	if len(b.queue) >= b.Limit() {
		return false
	}
	b.queue = append(b.queue, v)
	return true
}

// Pop takes the oldest request, or reports false when there is none.
func (b *Backlog[T]) Pop() (v T, ok bool) {
	if len(b.queue) == 0 {
		return v, false
	}
	v = b.queue[0]
	b.remove(0)
	return v, true
}

// Remove removes v at any position: its requester gave up. It reports whether v was there.
func (b *Backlog[T]) Remove(v T) bool {
	for i := range b.queue {
		if b.queue[i] == v {
			b.remove(i)
			return true
		}
	}
	return false
}

// Drain empties the queue and returns its requests, oldest first. The caller owns the slice.
func (b *Backlog[T]) Drain() []T {
	q := b.queue
	b.queue = nil
	return q
}

// Len returns the number of queued requests.
func (b *Backlog[T]) Len() int { return len(b.queue) }

// Limit returns the largest number of queued requests.
func (b *Backlog[T]) Limit() int { return max(b.limit, 1) }

// remove moves the younger requests up: at most MaxBacklog. The queue keeps its memory, and no
// reference to the removed request.
func (b *Backlog[T]) remove(i int) {
	last := len(b.queue) - 1
	copy(b.queue[i:], b.queue[i+1:])
	var zero T
	b.queue[last] = zero
	b.queue = b.queue[:last]
}
