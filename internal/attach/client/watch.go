package client

import (
	"fmt"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// maxQueuedEvents bounds the events queued for slow watchers. Events must not be lost: one more ends the
// session.
const maxQueuedEvents = 1 << 14

// watchers passes events to the watching functions, from one goroutine.
type watchers struct {
	mu      sync.Mutex // guards the fields below
	moved   sync.Cond  // broadcast when one of the fields below has changed
	list    []*watcher
	queue   []attach.Event
	stopped bool
	running bool // a function is running
	ended   bool // the goroutine is about to end
}

type watcher struct{ fn func(attach.Event) }

func (w *watchers) init() {
	w.moved.L = &w.mu
}

// start starts the goroutine that passes events.
func (w *watchers) start() { go w.run() } // wait waits for it

// put queues an event for all current watchers.
func (w *watchers) put(ev attach.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxQueuedEvents {
		return fmt.Errorf("%d events wait for a function that watches: %w", maxQueuedEvents, status.NoBufs)
	}
	w.queue = append(w.queue, ev)
	w.moved.Broadcast()
	return nil
}

// add makes fn see the events from now on. cancel is that of Session.Watch.
func (w *watchers) add(fn func(attach.Event)) (cancel func()) {
	me := &watcher{fn}
	w.mu.Lock()
	w.list = append(slices.Clip(w.list), me) // run holds an older list
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list = slices.DeleteFunc(slices.Clone(w.list), func(x *watcher) bool { return x == me })
	}
}

// run passes events until stop. It still passes the events queued at stop.
func (w *watchers) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.moved.Broadcast()
	for {
		for len(w.queue) == 0 {
			if w.stopped {
				w.ended = true
				return
			}
			w.moved.Wait()
		}
		ev := w.queue[0]
		w.queue = w.queue[1:]
		for _, x := range w.list {
			if slices.Contains(w.list, x) { // not cancelled meanwhile
				w.call(x, ev)
			}
		}
	}
}

// call runs one function, without the lock.
func (w *watchers) call(x *watcher, ev attach.Event) {
	w.running = true
	w.moved.Broadcast()
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running = false
		w.moved.Broadcast()
	}()
	x.fn(ev)
}

func (w *watchers) stop() {
	w.mu.Lock()
	w.stopped = true
	w.moved.Broadcast()
	w.mu.Unlock()
}

// wait returns when the goroutine has ended, or runs a function of the application: that function
// may be the caller, and its duration is unbounded.
func (w *watchers) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended && !w.running {
		w.moved.Wait()
	}
}
