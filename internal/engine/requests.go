package engine

import (
	"context"
	"sync"
)

// A requestTable is the pending requests of this end to the peer of a link, by number.
type requestTable[T any] struct {
	mu      sync.Mutex // guards the fields below; innermost
	waiting map[uint64]chan<- T
	last    uint64
}

// next returns the number of a request without a waiter.
func (q *requestTable[T]) next() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	return q.last
}

// ask returns the number of a request and the channel of its answer. The caller calls forget.
func (q *requestTable[T]) ask() (number uint64, answer <-chan T) {
	c := make(chan T, 1) // for the only one
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = make(map[uint64]chan<- T)
	}
	q.last++
	q.waiting[q.last] = c
	return q.last, c
}

// exchange sends a request by its number and waits for the peer's answer. The error is errLinkDown
// if the link ends first.
func exchange[T any](ctx context.Context, l *link, q *requestTable[T], send func(number uint64)) (answer T, err error) {
	l.use()
	number, answers := q.ask()
	defer q.forget(number)
	send(number)
	select {
	case answer = <-answers:
		return answer, nil
	case <-l.end.down:
		return answer, errLinkDown
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

func (q *requestTable[T]) forget(number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, number)
}

// answer delivers an answer of the peer, if the request still waits for it. The error is nil.
func (q *requestTable[T]) answer(number uint64, v T) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if to := q.waiting[number]; to != nil {
		delete(q.waiting, number)
		to <- v
	}
	return nil
}
