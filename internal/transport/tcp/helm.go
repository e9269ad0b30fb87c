package tcp

import (
	"sync"
	"time"
)

// A helm says who reads a session's first connection. It is held by one of:
//
//   - the reader of a lane, while it has no bytes of its own;
//   - the session's watch, when no reader has wanted it for a moment, or one whose
//     bytes come on bulk connections has left it;
//   - nobody, for at most a moment after a reader has left.
//
// On the way of a ping-pong, from the socket to the reader that answers and
// back, nobody else is woken.
type helm struct {
	interrupt func()        // makes the holder's read return
	resume    func()        // undoes interrupt
	alarm     chan struct{} // wakes the watch
	free      chan struct{} // closed when the helm is over and nobody has it

	mu          sync.Mutex // guards the fields below; innermost, but for interrupt and resume
	held        bool
	holder      *recvLane // nil: the watch, or nobody
	interrupted bool
	uses        uint64 // counts the times that it was taken or handed over
	asleep      bool   // the watch waits for alarm: the holder has had the helm for long
	called      bool   // the watch is to take it at once
	over        bool   // nobody gets it any more

	// Readers that wait while somebody else has the helm, the last to come first.
	first *recvLane
}

const (
	// watchEvery is how long nobody has the helm before the watch takes it.
	watchEvery = time.Millisecond
	// hotFrames is how many frames may have come since a waiting reader got its
	// last one for the helm to be handed to it, which costs a wake-up.
	hotFrames = 16
)

// take gives l the helm, if nobody has it; else l waits in line and is woken,
// with the helm or without. One whose bytes come on other connections leaves it to
// the watch: to be called away from it costs more than to be woken.
func (h *helm) take(l *recvLane) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.steers { // it was handed over
		return true
	}
	if h.held || h.over {
		h.enter(l)
		return false
	}
	if l.isFar() {
		h.enter(l)
		h.called = true
		notify(h.alarm)
		return false
	}
	h.held, h.holder, l.steers = true, l, true
	h.uses++
	return true
}

// enter puts l first in line. mu is held.
func (h *helm) enter(l *recvLane) {
	if l.inLine {
		return
	}
	l.inLine, l.lineNext, l.linePrev = true, h.first, nil
	if h.first != nil {
		h.first.linePrev = l
	}
	h.first = l
}

// leaveLine takes l out of line. mu is held.
func (h *helm) leaveLine(l *recvLane) {
	if !l.inLine {
		return
	}
	if l.linePrev != nil {
		l.linePrev.lineNext = l.lineNext
	} else {
		h.first = l.lineNext
	}
	if l.lineNext != nil {
		l.lineNext.linePrev = l.linePrev
	}
	l.inLine, l.lineNext, l.linePrev = false, nil, nil
}

// leave ends l's wait. If it has the helm, or was handed it meanwhile, the next
// one gets it: a reader that is likely to need it soon, or nobody. frames is how
// many have come so far.
func (h *helm) leave(l *recvLane, frames uint64) {
	h.mu.Lock()
	h.leaveLine(l)
	if !l.steers {
		h.mu.Unlock()
		return
	}
	l.steers = false
	h.release(frames)
	h.mu.Unlock()
}

// release gives the helm on. mu is held.
func (h *helm) release(frames uint64) {
	if h.over {
		h.held, h.holder = false, nil
		close(h.free)
		return
	}
	if h.interrupted {
		h.interrupted = false
		h.resume()
	}
	next := h.first
	if next != nil && !next.isFar() && frames-next.lastFrame.Load() <= hotFrames {
		h.leaveLine(next)
		h.holder, next.steers = next, true
		h.uses++
		notify(next.wake)
		return
	}
	h.held, h.holder = false, nil
	if h.asleep {
		h.asleep = false
		notify(h.alarm)
	}
}

// stop makes l leave the helm, if it has it: there is something for it to see.
func (h *helm) stop(l *recvLane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held && h.holder == l && !h.interrupted {
		h.interrupted = true
		h.interrupt()
	}
}

// watch gives the watch the helm if nobody has had it since uses, which it got
// before. Otherwise it says whether to look again soon, or to wait for alarm.
func (h *helm) watch(uses uint64) (taken, soon bool, now uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	called := h.called
	h.called = false
	switch {
	case h.over:
		return false, false, h.uses
	case h.uses != uses && !(called && !h.held):
		return false, true, h.uses
	case h.held:
		h.asleep = true
		return false, false, h.uses
	}
	h.held, h.holder = true, nil
	return true, false, h.uses
}

// unwatch ends the watch's turn.
func (h *helm) unwatch(frames uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release(frames)
}

// close ends the helm: who has it leaves, and nobody gets it any more.
func (h *helm) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.held {
		h.interrupt()
		return
	}
	close(h.free)
}

// notify puts a token into ch, which holds one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
