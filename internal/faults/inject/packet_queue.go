package inject

import (
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/wait"
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
	waiting []*delayed // by time; those that are due at the same time in the order of their arrival
	size    int
	stopped bool
	running bool
	changed chan struct{} // capacity 1: look again
	done    chan struct{} // closed when the goroutine has ended
}

// A delayed is one packet that waits.
type delayed struct {
	due     time.Time
	size    int
	flush   bool // goes at once when the queue stops, instead of being lost
	release func()
}

func newPacketQueue(l *Layer, limit int) *packetQueue {
	return &packetQueue{layer: l, limit: limit, changed: make(chan struct{}, 1), done: make(chan struct{})}
}

// add calls f after delay, for a packet of size bytes, unless there is no room.
func (q *packetQueue) add(delay time.Duration, size int, flush bool, f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped || len(q.waiting) >= q.limit || q.size+size > queuedBytes {
		return
	}
	if !q.running {
		if !q.layer.spawn(q.run) {
			return
		}
		q.running = true
	}
	q.size += size
	p := &delayed{due: time.Now().Add(delay), size: size, flush: flush, release: f}
	at, _ := slices.BinarySearchFunc(q.waiting, p, func(o, p *delayed) int {
		if o.due.After(p.due) {
			return 1
		}
		return -1
	})
	q.waiting = slices.Insert(q.waiting, at, p)
	wait.Notify(q.changed)
}

// schedule queues what a decision makes of a packet later, and reports whether the packet itself goes now.
func (q *packetQueue) schedule(d faults.Decision, size int, flush bool, f func()) (now bool) {
	if d.Twice {
		q.add(d.Later, size, flush, f)
	}
	if d.Delay > 0 {
		q.add(d.Delay, size, flush, f)
	}
	return d.Delay == 0
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
	wait.Notify(q.changed)
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
	for len(q.waiting) > 0 {
		first := q.waiting[0]
		if !q.stopped && !wait.Passed(first.due, now) {
			return nil, first.due, false
		}
		q.waiting[0], q.waiting = nil, q.waiting[1:]
		q.size -= first.size
		if !q.stopped || first.flush {
			return first, time.Time{}, false
		}
	}
	return nil, time.Time{}, q.stopped
}
