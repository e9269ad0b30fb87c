package gossip

import "sync"

// A queue holds the rumours that nobody has taken yet, at most one per member:
// a newer one replaces the older, so that its size is bounded by the number of
// members and putting never blocks. That matters because memberlist calls with
// its own lock held, and stops gossiping while it waits.
type queue struct {
	wake chan struct{} // capacity 1: there is something to take

	mu      sync.Mutex // guards the fields below
	pending map[Key]Rumour
	order   []Key  // of pending, oldest first
	words   []Word // at most maxWords
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), pending: make(map[Key]Rumour)}
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

// putWord adds a word, if there is room.
func (q *queue) putWord(w Word) {
	q.mu.Lock()
	if len(q.words) < maxWords {
		q.words = append(q.words, w)
	}
	q.mu.Unlock()
	q.rouse()
}

// takeWords returns all words, oldest first.
func (q *queue) takeWords() []Word {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.words
	q.words = nil
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
