package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A watcher is the demo's own application: it watches the nodes from one of
// them.
type watcher struct {
	node   *fabric.Node
	events chan seen
	close  func() // ends the watch and detaches; a second time does nothing
}

// seen is one event and when it came.
type seen struct {
	event fabric.Event
	at    time.Time
}

// newWatcher attaches to the fabricd at socket. The demo causes three events; the
// queue has room for unexpected ones, and an event that does not fit is unexpected anyway.
func newWatcher(ctx context.Context, socket string) (*watcher, error) {
	n, err := fabric.Attach(ctx, socket)
	if err != nil {
		return nil, err
	}
	w := &watcher{node: n, events: make(chan seen, 64)}
	cancel := n.OnEvent(func(ev fabric.Event) {
		select {
		case w.events <- seen{ev, time.Now()}:
		default:
		}
	})
	w.close = sync.OnceFunc(func() {
		cancel()
		// The node's fabricd may have ended before; then there is nothing to close.
		_ = n.Close()
	})
	return w, nil
}

// next waits for the next event.
func (w *watcher) next(ctx context.Context) (fabric.Event, time.Time, error) {
	select {
	case s := <-w.events:
		return s.event, s.at, nil
	case <-ctx.Done():
		return fabric.Event{}, time.Time{}, fmt.Errorf("no node event: %w", context.Cause(ctx))
	}
}

// silent fails if there are unexpected events.
func (w *watcher) silent() error {
	select {
	case s := <-w.events:
		return fmt.Errorf("host: unexpected event: %v", s.event)
	default:
		return nil
	}
}

// silent fails if an application that has ended printed unexpected lines.
func (a *actor) silent() error {
	for l := range a.lines {
		a.heard = append(a.heard, l)
	}
	for _, l := range a.heard {
		if l.Say == "node-added" || l.Say == "node-removed" {
			return fmt.Errorf("%s: unexpected event: %s %s", a.name, l.Say, l.Detail)
		}
	}
	return nil
}
