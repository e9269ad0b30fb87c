package gossip

import (
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// quietWake is the time between two wakes by changes of members that are not
// proven: a member with the key can make up as many as it likes.
const quietWake = 100 * time.Millisecond

// A queue holds the changes of gossip state that were not taken yet, at most one per member: a newer one replaces
// the older, so that its size is bounded by the number of members and putting never blocks. That
// matters because memberlist calls with its own lock held, and stops gossiping while it waits.
type queue struct {
	wake chan struct{} // capacity 1: there is something to take

	mu          sync.Mutex // guards the fields below
	pending     map[Key]Change
	order       []Key        // of pending, oldest first
	lossReports []LossReport // at most maxLossReports
	doubts      []Doubt      // at most maxDoubts
	woken       time.Time    // the last time by a change of a member that is not proven
	timer       *time.Timer  // wakes for such changes; nil while there are none
	closed      bool
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), pending: make(map[Key]Change)}
}

// put adds r. Of several changes of one member the last one's opinion
// stays; an update of a member whose Seen was not taken yet stays a Seen. Those about
// a member that is not proven may be taken a little later.
func (q *queue) put(r Change, proven bool) {
	k := r.Member.Key()
	q.mu.Lock()
	defer q.mu.Unlock()
	old, ok := q.pending[k]
	switch {
	case !ok:
		q.order = append(q.order, k)
	case r.Kind == Updated && old.Kind == Seen:
		r.Kind = Seen
	}
	q.pending[k] = r
	if proven {
		q.rouse()
		return
	}
	if wait := quietWake - time.Since(q.woken); q.timer == nil && !q.closed {
		q.timer = time.AfterFunc(max(wait, 0), q.wakeLater)
	}
}

// putAll adds changes of members that are not proven.
func (q *queue) putAll(list []Change) {
	for _, r := range list {
		q.put(r, false)
	}
}

func (q *queue) wakeLater() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timer, q.woken = nil, time.Now()
	q.rouse()
}

// close lets no timer run on.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
}

func (q *queue) rouse() { wait.Notify(q.wake) }

// putNotice adds a notice to one of q's lists, if it is new and fewer than most wait to be taken.
func putNotice[T comparable](q *queue, list *[]T, most int, n T) {
	q.mu.Lock()
	if len(*list) < most && !slices.Contains(*list, n) {
		*list = append(*list, n)
	}
	q.mu.Unlock()
	q.rouse()
}

// takeNotices returns all notices in one of q's lists, oldest first.
func takeNotices[T any](q *queue, list *[]T) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := *list
	*list = nil
	return out
}

// take returns all changes, in the order in which their members first had one.
func (q *queue) take() []Change {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]Change, 0, len(q.order))
	for _, k := range q.order {
		out = append(out, q.pending[k])
	}
	clear(q.pending)
	q.order = q.order[:0]
	return out
}
