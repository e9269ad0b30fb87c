package workload

import (
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
)

// endedWindows are windows whose connection has ended. They are scanned when that happened
// and again later: no peer may write to them any more.
type endedWindows struct {
	log *Log

	mu      sync.Mutex    // guards the fields below
	pending []endedWindow // that may still be written for a while
	list    []endedWindow
}

type endedWindow struct {
	e   *end
	w   *load.Window
	due time.Time
}

// scan writes down the content of the window.
func (g endedWindow) scan() { g.e.scan(g.w) }

// free gives the memory back.
func (g endedWindow) free() {
	g.e.mu.Lock()
	defer g.e.mu.Unlock()
	if !g.e.freed {
		g.e.freed = true
		g.w.Free()
	}
}

// add keeps a window. Operations under way into it have grace to arrive; then, at once
// if that is 0, it is written to be gone.
func (g *endedWindows) add(one endedWindow, grace time.Duration) {
	one.due = time.Now().Add(grace)
	g.mu.Lock()
	g.pending = append(g.pending, one)
	g.mu.Unlock()
	g.expire()
}

// expire writes the windows with an expired grace to be gone. The oldest of too many is
// scanned a last time and given up.
func (g *endedWindows) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.pending = slices.DeleteFunc(g.pending, func(p endedWindow) bool {
		if p.due.After(now) {
			return false
		}
		g.log.Put(&history.WindowGone{ID: p.w.ID})
		p.scan()
		g.list = append(g.list, p)
		return true
	})
	for len(g.list) > load.MaxGraves {
		g.list[0].scan()
		g.list[0].free()
		g.list = g.list[1:]
	}
}

// scan scans the newest of the windows that are kept.
func (g *endedWindows) scan() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.list[max(0, len(g.list)-4):] {
		w.scan()
	}
}

// empty scans all a last time and gives them up.
func (g *endedWindows) empty() {
	g.expire()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.list {
		w.scan()
		w.free()
	}
	for _, p := range g.pending {
		p.free()
	}
	g.list, g.pending = nil, nil
}
