package inject

import (
	"container/heap"
	"sync"
	"time"
)

// Bounds of the packets that wait in one socket or session. Further ones are
// dropped, as a full buffer drops them.
const (
	queuedPackets = 16384
	queuedBytes   = 64 << 20
)

// A packetQueue holds packets until they are due. One goroutine, which starts with the
// first packet, lets them go in order of time.
type packetQueue struct {
	layer *Layer
	limit int // packets that wait at once

	mu      sync.Mutex // guards the fields below
	queue   waiting
	size    int
	count   uint64 // orders packets that are due at the same time
	stopped bool
	running bool
	changed chan struct{} // capacity 1: look again
	done    chan struct{} // closed when the goroutine has ended
}

// A delayed is one packet that waits.
type delayed struct {
	due     time.Time
	order   uint64
	size    int
	flush   bool // goes at once when the queue stops, instead of being lost
	release func()
}

func newPacketQueue(l *Layer, limit int) *packetQueue {
	return &packetQueue{layer: l, limit: limit, changed: make(chan struct{}, 1), done: make(chan struct{})}
}

// add calls f after wait, for a packet of size bytes, unless there is no room.
func (q *packetQueue) add(wait time.Duration, size int, flush bool, f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped || len(q.queue) >= q.limit || q.size+size > queuedBytes {
		return
	}
	if !q.running {
		if !q.layer.spawn(q.run) {
			return
		}
		q.running = true
	}
	q.count++
	q.size += size
	heap.Push(&q.queue, &delayed{due: time.Now().Add(wait), order: q.count, size: size, flush: flush, release: f})
	select {
	case q.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// stop sends the packets that are to be flushed, forgets the rest, and waits for the goroutine.
func (q *packetQueue) stop() {
	q.mu.Lock()
	q.stopped = true
	running := q.running
	q.mu.Unlock()
	if !running {
		return
	}
	select {
	case q.changed <- struct{}{}:
	default:
	}
	<-q.done
}

func (q *packetQueue) run() {
	defer close(q.done)
	for {
		p, until, ended := q.next(time.Now())
		switch {
		case p != nil:
			p.release()
			continue
		case ended:
			return
		}
		if !sleep(q.changed, q.layer.ctx.Done(), until) {
			return
		}
	}
}

// next returns the packet that is due at now, or when one is.
func (q *packetQueue) next(now time.Time) (p *delayed, until time.Time, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) > 0 {
		first := q.queue[0]
		if !q.stopped && !passed(first.due, now) {
			return nil, first.due, false
		}
		heap.Pop(&q.queue)
		q.size -= first.size
		if !q.stopped || first.flush {
			return first, time.Time{}, false
		}
	}
	return nil, time.Time{}, q.stopped
}

// waiting is a heap of packets by time.
type waiting []*delayed

func (w waiting) Len() int { return len(w) }

func (w waiting) Less(i, j int) bool {
	if !w[i].due.Equal(w[j].due) {
		return w[i].due.Before(w[j].due)
	}
	return w[i].order < w[j].order
}

func (w waiting) Swap(i, j int) { w[i], w[j] = w[j], w[i] }

// Push and Pop are those of heap.Interface.
func (w *waiting) Push(x any) { *w = append(*w, x.(*delayed)) }

func (w *waiting) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return x
}
