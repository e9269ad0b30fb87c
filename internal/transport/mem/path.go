package mem

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A path carries messages between the two ends of a session: after a delay, and not while it
// is cut.
type path struct {
	hub           *Hub
	delay, jitter time.Duration
	a, b          *session
	direct        atomic.Bool // messages arrive at once; written with mu held

	mu         sync.Mutex // guards the fields below, and the times that send gets
	rng        *rand.Rand
	queue      []message // in flight, the earliest first
	datagrams  int       // in queue
	delivering bool      // a goroutine is in deliver
	cut        bool
	idle       *time.Timer // ends both sessions while the path is cut
}

// A message arrives when run is called, on a goroutine that holds no lock.
type message struct {
	due      time.Time
	datagram bool
	run      func()
}

// slow reports whether messages take time even if the path is not cut.
func (w *path) slow() bool { return w.delay > 0 || w.jitter > 0 }

// send lets run be called when the message has arrived. The caller holds no lock. order is
// when the message sent before, with the same order, arrives: this one does not overtake
// it. Nil: it is a datagram, which a cut loses.
func (w *path) send(order *time.Time, run func()) {
	w.mu.Lock()
	if w.direct.Load() {
		w.mu.Unlock()
		run()
		return
	}
	defer w.mu.Unlock()
	if order == nil {
		if w.cut || w.datagrams == datagramQueue {
			return
		}
		w.datagrams++
	}
	due := time.Now().Add(w.delay)
	if w.jitter > 0 {
		due = due.Add(time.Duration(w.rng.Int64N(int64(w.jitter))))
	}
	if order != nil {
		if due.Before(*order) {
			due = *order
		}
		*order = due
	}
	i, _ := slices.BinarySearchFunc(w.queue, due, func(m message, due time.Time) int {
		if m.due.After(due) {
			return 1
		}
		return -1 // equal times keep their order
	})
	w.queue = slices.Insert(w.queue, i, message{due, order == nil, run})
	time.AfterFunc(time.Until(due), w.deliver)
}

// deliver lets the messages that are due arrive, one after the other.
func (w *path) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.delivering {
		return
	}
	w.delivering = true
	for !w.cut && len(w.queue) > 0 && !time.Now().Before(w.queue[0].due) {
		m := w.queue[0]
		w.queue = slices.Delete(w.queue, 0, 1)
		if m.datagram {
			w.datagrams--
		}
		w.mu.Unlock()
		m.run()
		w.mu.Lock()
	}
	w.delivering = false
	w.direct.Store(!w.cut && !w.slow() && len(w.queue) == 0)
}

// setCut stops all messages and loses the datagrams; after the idle timeout both ends notice.
func (w *path) setCut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return
	}
	w.cut = true
	w.direct.Store(false)
	w.queue = slices.DeleteFunc(w.queue, func(m message) bool { return m.datagram })
	w.datagrams = 0
	w.idle = time.AfterFunc(idleTimeout, func() {
		w.a.end(&transport.CloseError{Timeout: true})
		w.b.end(&transport.CloseError{Timeout: true})
	})
}

// heal undoes setCut; the messages that the cut has held arrive.
func (w *path) heal() {
	w.mu.Lock()
	if w.cut {
		w.cut = false
		w.idle.Stop()
	}
	w.mu.Unlock()
	w.deliver()
}
