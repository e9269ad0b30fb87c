package membership

import (
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// MaxEvents bounds the events that wait for a handler that does not return.
// Dropping one would break the promise of order and completeness, so the agent
// ends there.
const MaxEvents = 1 << 16

// events hands events to the handler, in order, one at a time, on its own
// goroutine: a handler that blocks while it fences a lost incarnation must not stop
// the loop.
type events struct {
	handle   func(Event)
	after    func(Event) // called when the handler has returned
	serves   func(addr.Incarnation, []services.Service)
	overflow func()

	wake signal
	stop chan struct{}

	mu    sync.Mutex // guards the fields below
	queue []Event
	lists map[addr.Incarnation][]services.Service // to be delivered after the queue, the newest of each incarnation
	ended bool
}

func newEvents(handle, after func(Event), serves func(addr.Incarnation, []services.Service), overflow func()) *events {
	return &events{handle: handle, after: after, serves: serves, overflow: overflow, lists: make(map[addr.Incarnation][]services.Service),
		wake: newSignal(), stop: make(chan struct{})}
}

// put queues an event and does not wait.
func (q *events) put(e verdict.Event) {
	q.mu.Lock()
	full := len(q.queue) >= MaxEvents
	if !full {
		q.queue = append(q.queue, e)
	}
	q.mu.Unlock()
	if full {
		q.overflow()
		return
	}
	q.wake.send()
}

// putServices queues an incarnation's services, in place of its earlier list.
func (q *events) putServices(l services.List) {
	q.mu.Lock()
	q.lists[l.Incarnation] = l.Services
	q.mu.Unlock()
	q.wake.send()
}

func (q *events) run() {
	for {
		select {
		case <-q.wake:
		case <-q.stop:
			return
		}
		for {
			e, ok := q.next()
			if !ok {
				break
			}
			q.handle(e)
			q.after(e)
		}
		for incarnation, list := range q.nextLists() {
			q.serves(incarnation, list)
		}
	}
}

// waiting returns how many events the handler has not been called with.
func (q *events) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue)
}

func (q *events) next() (Event, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || len(q.queue) == 0 {
		return Event{}, false
	}
	e := q.queue[0]
	q.queue[0] = Event{}
	q.queue = q.queue[1:]
	return e, true
}

// nextLists takes the lists that are to be delivered.
func (q *events) nextLists() map[addr.Incarnation][]services.Service {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || len(q.queue) > 0 || len(q.lists) == 0 {
		return nil // behind the events: one of them may add the incarnation
	}
	lists := q.lists
	q.lists = make(map[addr.Incarnation][]services.Service)
	return lists
}

// close ends run once the handler that may be running has returned. Queued events
// are dropped.
func (q *events) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended {
		q.ended = true
		close(q.stop)
	}
}
