package tcp

import (
	"sync"
	"sync/atomic"
	"time"
)

// A helm says who reads a session's first connection. It is held by one of:
//
//   - the reader of a lane, while it has no bytes of its own;
//   - a guest, who waits for something that a reader would wake it for (Help);
//   - the session's watch, when no reader has wanted it for a moment, or one whose
//     bytes come on bulk connections has left it;
//   - nobody, for at most a moment after a reader or a guest has left.
//
// On the way of a ping-pong, from the socket to the reader that answers and
// back, nobody else is woken.
type helm struct {
	interrupt func()        // makes the holder's read return
	resume    func()        // undoes interrupt
	alarm     chan struct{} // wakes the watch
	free      chan struct{} // closed when the helm is over and nobody has it

	visited atomic.Bool // a guest has the helm

	mu          sync.Mutex // guards the fields below; innermost, but for interrupt and resume
	held        bool
	holder      *hand // nil: the watch, or nobody
	interrupted bool
	nudged      bool   // interrupted, but to go on
	uses        uint64 // counts the times that it was taken or handed over
	asleep      bool   // the watch waits for alarm: the holder has had the helm for long
	called      bool   // the watch is to take it at once
	over        bool   // nobody gets it any more

	// Readers that wait while somebody else has the helm, the last to come first.
	first *hand

	// Guests may leave the helm to nobody once visits is fewVisits: the next one is
	// then likely to come at once.
	visits   int       // guests who were alone, and served; less where guests were wrong to leave it
	guests   int       // who are in Help
	missed   bool      // another guest has come while one had the helm, and waits without Help
	heir     *hand     // the guest for whom the holder was interrupted; nil: nobody
	leftAt   time.Time // when a guest left the helm to nobody; zero: it was taken since
	late     bool      // the guest who has the helm did not come at once
	prompt   int       // guests who came at once, up to a bound, less lateCost for each who did not
	patience int       // how many visits the next mistake costs, about
}

// A hand is who can have the helm: a lane's reader, or a guest.
type hand struct {
	wake   chan struct{} // holds a token when it should look
	lane   *recvLane     // nil: a guest
	answer chan struct{} // a guest's: holds a token when it has what it waits for

	// Guarded by the helm's mu.
	steers, inLine bool
	yields         bool // to guests: who reads applies what comes for this reader
	next, prev     *hand
}

const (
	// watchEvery is how long nobody has the helm before the watch takes it, and how
	// long a guest has it, up to twice as long.
	watchEvery = time.Millisecond
	// hotFrames is how many frames may have come since a waiting reader got its
	// last one for the helm to be handed to it, which costs a wake-up.
	hotFrames = 16
	// fewVisits is how many guests are woken by who has the helm before one has it
	// called away, which costs as much as one or two wake-ups; manyVisits is how many
	// more are when that was wrong, twice as many each time up to mostVisits.
	fewVisits, manyVisits, mostVisits = 4, 64, 1 << 16
	// atOnce is how long nobody may have the helm between two guests. Who else waits
	// meanwhile waits for the second one.
	atOnce = 60 * time.Microsecond
	// lateCost is how many guests who come at once make up for one who does not: a
	// goroutine is held up now and then.
	lateCost = 32
)

// take gives l the helm, if nobody has it; else l waits in line and is woken,
// with the helm or without. yields: it need not have it while guests come. One whose
// bytes come on other connections leaves it to the watch: to be called away from it
// costs more than to be woken.
func (h *helm) take(l *hand, yields bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.yields = yields
	if l.steers { // it was handed over
		return true
	}
	if h.held || h.over {
		h.enter(l)
		return false
	}
	if l.lane.isFar() {
		h.enter(l)
		h.called = true
		notify(h.alarm)
		return false
	}
	h.give(l)
	return true
}

// give makes l the holder. mu is held.
func (h *helm) give(l *hand) {
	h.leaveLine(l)
	h.held, h.holder, l.steers = true, l, true
	h.uses++
	if l.lane == nil {
		h.visited.Store(true)
		h.late, h.missed = !h.leftAt.IsZero() && time.Since(h.leftAt) > atOnce, false
		if h.asleep { // it calls away a guest who has had the helm for long
			h.asleep = false
			notify(h.alarm)
		}
	}
	h.leftAt = time.Time{}
}

// visit gives g, a guest, the helm if it should have it. Else somebody else wakes
// it. If answered is true, its token was taken while it was to get the helm. Whoever
// calls visit calls part. frames is how many have come so far, ended the session's end.
func (h *helm) visit(g *hand, frames uint64, ended <-chan struct{}) (taken, answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guests++
	switch {
	case h.over:
	case !h.held:
		h.give(g)
	case h.guests > 1:
		h.missed = true
	case h.interrupted || h.holder != nil && !h.holder.yields && h.isHot(h.holder, frames):
	default:
		if h.visits++; h.visits > fewVisits {
			h.heir, h.interrupted = g, true
			h.interrupt()
			h.mu.Unlock()
			select {
			case <-g.wake:
			case <-g.answer:
				answered = true
			case <-ended:
			}
			h.mu.Lock()
		}
	}
	return g.steers && !answered, answered
}

// part ends a guest's visit; served: it has what it waited for. A guest who has the
// helm leaves it to nobody if the next one is likely to come at once, and neither
// another guest nor a reader to miss it.
func (h *helm) part(g *hand, served bool, frames uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guests--
	if h.heir == g {
		h.heir = nil
	}
	if !g.steers {
		return
	}
	g.steers = false
	h.visited.Store(false)
	select {
	case <-g.wake: // of its being handed the helm
	default:
	}
	switch alone := !h.interrupted && !h.missed && h.guests == 0; {
	case h.late && h.prompt < lateCost:
		h.prompt = 0
		h.regret()
	case !alone || !served:
		h.visits = min(h.visits, -manyVisits)
	case h.visits < fewVisits:
		h.visits++
	default:
		h.visits, h.patience = fewVisits, max(h.patience-1, 0)
		if h.prompt = min(h.prompt+1, 4*lateCost); h.late {
			h.prompt -= lateCost
		}
		h.leftAt = time.Now()
	}
	h.release(frames, h.leftAt.IsZero())
}

// regret makes guests leave the helm to others for long: they have left it to nobody,
// and nobody came. mu is held.
func (h *helm) regret() {
	h.patience = min(2*h.patience+manyVisits, mostVisits)
	h.visits = -h.patience
}

// rouse makes a guest leave the helm: somebody else may have done what it waits for.
func (h *helm) rouse() {
	if !h.visited.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held && h.holder != nil && h.holder.lane == nil {
		h.call()
	}
}

// call interrupts the holder. mu is held.
func (h *helm) call() {
	if !h.interrupted {
		h.interrupted = true
		h.interrupt()
	}
}

// enter puts l first in line. mu is held.
func (h *helm) enter(l *hand) {
	if l.inLine {
		return
	}
	l.inLine, l.next, l.prev = true, h.first, nil
	if h.first != nil {
		h.first.prev = l
	}
	h.first = l
}

// leaveLine takes l out of line. mu is held.
func (h *helm) leaveLine(l *hand) {
	if !l.inLine {
		return
	}
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		h.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.inLine, l.next, l.prev = false, nil, nil
}

// leave ends l's wait. If it has the helm, or was handed it meanwhile, the next
// one gets it: a reader that is likely to need it soon, or nobody, since l will be
// back. If it will not, any reader does that waits: where connections come and go,
// nobody would have it for milliseconds each time, until the watch looks. frames is
// how many have come so far.
func (h *helm) leave(l *hand, frames uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaveLine(l)
	if !l.steers {
		return
	}
	l.steers = false
	h.release(frames, l.lane.last.Load())
}

// release gives the helm on: to the guest who has called for it, or to the next
// reader in line if that is likely to need it soon, or if it must be. mu is held.
func (h *helm) release(frames uint64, must bool) {
	if h.over {
		h.held, h.holder = false, nil
		close(h.free)
		return
	}
	if h.interrupted || h.nudged {
		h.interrupted, h.nudged = false, false
		h.resume()
	}
	next := h.heir
	if next == nil {
		next = h.next(frames, must)
	}
	if next != nil {
		h.give(next)
		notify(next.wake)
		return
	}
	if must {
		h.called = true
		notify(h.alarm)
	}
	h.held, h.holder = false, nil
	if h.asleep {
		h.asleep = false
		notify(h.alarm)
	}
}

// next returns the reader in line who is to get the helm; nil: none. mu is held.
func (h *helm) next(frames uint64, must bool) *hand {
	if !must {
		if h.first != nil && h.isHot(h.first, frames) {
			return h.first
		}
		return nil
	}
	for l := h.first; l != nil; l = l.next {
		if !l.lane.isFar() && !l.lane.ready.Load() { // else it would leave at once, or soon
			return l
		}
	}
	return nil
}

// isHot reports whether a reader that waits is likely to need the helm soon. While
// guests come, those that yield are not. mu is held.
func (h *helm) isHot(l *hand, frames uint64) bool {
	return !l.lane.isFar() && int64(frames-l.lane.lastFrame.Load()) <= hotFrames && !(l.yields && h.visits >= fewVisits)
}

// stop makes l leave the helm, if it has it: there is something for it to see.
func (h *helm) stop(l *hand) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held && h.holder == l {
		h.call()
	}
}

// watch gives the watch the helm if nobody has had it since uses, which it got
// before. Otherwise it says whether to look again soon, or to wait for alarm. A guest
// who has had the helm since then is called away: it may wait for what does not come
// on this connection.
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
	case h.held && h.holder != nil && h.holder.lane == nil:
		h.call()
		return false, true, h.uses
	case h.held:
		h.asleep = true
		return false, false, h.uses
	}
	h.held, h.holder, h.visits = true, nil, min(h.visits, 0)
	if !h.leftAt.IsZero() {
		h.leftAt = time.Time{}
		h.regret()
	}
	return true, false, h.uses
}

// unwatch ends the watch's turn.
func (h *helm) unwatch(frames uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release(frames, false)
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
