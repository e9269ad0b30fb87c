package engine

import (
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
)

// eventsMax bounds the node events that wait for a slow watcher.
const eventsMax = 4096

// An eventQueue hands events to watchers, in order and one call at a time, on a goroutine for each.
type eventQueue struct {
	run func(func()) // starts a goroutine; the node waits for it

	mu       sync.Mutex // guards the fields below and those of the watchers
	closed   bool
	watchers map[*watcher]struct{}
}

// A watcher is one registered callback and the events that wait for it.
type watcher struct {
	fn    func(attach.Event)
	queue []attach.Event
	stop  bool
	more  gate // queue or stop has changed
}

// watch registers fn. cancel is that of attach.NodeSession's Watch.
func (q *eventQueue) watch(fn func(attach.Event)) (cancel func()) {
	w := &watcher{fn: fn, more: newGate()}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return func() {}
	}
	q.watchers[w] = struct{}{}
	q.run(func() { q.serve(w) })
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.dropLocked(w)
	}
}

// dropLocked ends a watcher. The caller holds mu.
func (q *eventQueue) dropLocked(w *watcher) {
	delete(q.watchers, w)
	w.stop = true
	w.more.signal()
}

// put queues an event for every watcher. It reports false if one's queue is full.
func (q *eventQueue) put(ev attach.Event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for w := range q.watchers {
		if len(w.queue) >= eventsMax {
			return false
		}
		w.queue = append(w.queue, ev)
		w.more.signal()
	}
	return true
}

// serve calls fn until the watcher is stopped.
func (q *eventQueue) serve(w *watcher) {
	for {
		q.mu.Lock()
		if w.stop {
			q.mu.Unlock()
			return
		}
		if len(w.queue) == 0 {
			q.mu.Unlock()
			<-w.more
			continue
		}
		ev := w.queue[0]
		w.queue = w.queue[1:]
		q.mu.Unlock()
		w.fn(ev)
	}
}

// close ends every watcher.
func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for w := range q.watchers {
		q.dropLocked(w)
	}
}
