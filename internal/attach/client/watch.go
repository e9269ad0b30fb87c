package client

import (
	"fmt"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// maxTold bounds the events that wait for slow watchers. Events must not be
// missed: one more ends the session.
const maxTold = 1 << 14

// watchers hands events to the functions that watch, from one goroutine.
type watchers struct {
	mu      sync.Mutex // guards the fields below
	moved   sync.Cond  // broadcast when one of them has changed
	list    []*watcher
	queue   []attach.Event
	stopped bool
	running bool // a function is
	ended   bool // the goroutine is about to
}

type watcher struct{ fn func(attach.Event) }

func (w *watchers) init() {
	w.moved.L = &w.mu
}

// start begins to hand out events.
func (w *watchers) start() { go w.run() } // wait waits for it

// put queues an event for all who watch now.
func (w *watchers) put(ev attach.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxTold {
		return fmt.Errorf("%d events wait for a function that watches: %w", maxTold, status.NoBufs)
	}
	w.queue = append(w.queue, ev)
	w.moved.Broadcast()
	return nil
}

// add makes fn see the events from now on. After cancel no call begins.
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

// run hands out events until stop. What is queued then is still handed out.
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

// wait returns when the goroutine has ended, or is in a function of the
// application: that may be the one that asks, and ends when it likes.
func (w *watchers) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended && !w.running {
		w.moved.Wait()
	}
}
