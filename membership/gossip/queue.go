package gossip

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// A queue holds the rumours that nobody has taken yet, at most one per member:
// a newer one replaces the older, so that its size is bounded by the number of
// members and putting never blocks. That matters because memberlist calls with
// its own lock held, and stops gossiping while it waits.
type queue struct {
	wake chan struct{} // capacity 1: there is something to take

	mu      sync.Mutex // guards the fields below
	pending map[Key]Rumour
	order   []Key            // of pending, oldest first
	deaf    map[Key]struct{} // who does not hear us; members only
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), pending: make(map[Key]Rumour), deaf: make(map[Key]struct{})}
}

// put adds r. Of several rumours about one member the last one's opinion
// stays; an update of a member whose Seen was not taken yet stays a Seen.
func (q *queue) put(r Rumour) {
	k := r.Member.Key()
	q.mu.Lock()
	old, ok := q.pending[k]
	switch {
	case !ok:
		q.order = append(q.order, k)
	case r.Kind == Updated && old.Kind == Seen:
		r.Kind = Seen
	}
	q.pending[k] = r
	q.mu.Unlock()
	q.rouse()
}

func (q *queue) rouse() {
	select {
	case q.wake <- struct{}{}:
	default: // the reader has been woken already and will see what is new
	}
}

// putDeaf adds a member that does not hear us.
func (q *queue) putDeaf(k Key) {
	q.mu.Lock()
	q.deaf[k] = struct{}{}
	q.mu.Unlock()
	q.rouse()
}

// takeDeaf returns all that do not hear us, by their names.
func (q *queue) takeDeaf() []Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := slices.SortedFunc(maps.Keys(q.deaf), func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	clear(q.deaf)
	return out
}

// take returns all rumours, in the order in which their members first had one.
func (q *queue) take() []Rumour {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]Rumour, 0, len(q.order))
	for _, k := range q.order {
		out = append(out, q.pending[k])
	}
	clear(q.pending)
	q.order = q.order[:0]
	return out
}
