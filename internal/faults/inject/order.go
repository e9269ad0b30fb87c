package inject

import (
	"slices"
	"sync"
)

// An order has the streams of a session whose first bytes wait, in the order in which these were
// written: the peer accepts streams in the order in which they begin. A nil order has none.
type order struct {
	mu      sync.Mutex // guards waiting; taken before the locks of the Plane
	waiting []*sendDirection
}

// waits reports whether d has to wait for a stream before it: not for one that a rule stops.
func (o *order) waits(d *sendDirection) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, before := range o.waiting {
		if before == d {
			return false
		}
		if before.open() {
			return true
		}
	}
	return false
}

func (o *order) enter(d *sendDirection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, d)
}

// leave lets the streams behind d begin. One that does not wait may leave, too.
func (o *order) leave(d *sendDirection) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.Index(o.waiting, d)
	if at < 0 {
		return
	}
	o.waiting = slices.Delete(o.waiting, at, at+1)
	for _, next := range o.waiting[at:] {
		next.queue.changed.Fire()
	}
}
