package client

import "sync/atomic"

// A Turn is a lock for one call at a time that a caller can stop waiting for.
// Taken without contention it costs two atomic operations; callers that wait get it
// in turn. It is to be made by Init.
type Turn struct {
	// state is 0, or 1 while a call has the turn, and 2 more for each one that
	// waits and is not about to get it.
	//
	// Invariant: as many calls wait as state counts, and one more while a token
	// is on its way. So a call that finds none counted gets that token.
	state  atomic.Int32
	handed chan struct{} // the turn itself, from the one who has had it
}

// Init makes a turn that nobody has.
func (t *Turn) Init() { t.handed = make(chan struct{}, 1) }

// Try takes the turn if nobody has it.
func (t *Turn) Try() bool { return t.state.CompareAndSwap(0, 1) }

// Take takes the turn and reports true, or waits for it until done or quit is
// closed; nil never is.
func (t *Turn) Take(done, quit <-chan struct{}) bool { return t.Try() || t.wait(done, quit) }

func (t *Turn) wait(done, quit <-chan struct{}) bool {
	for {
		s := t.state.Load()
		if s == 0 && t.Try() {
			return true
		}
		if s != 0 && t.state.CompareAndSwap(s, s+2) {
			break
		}
	}
	select {
	case <-t.handed:
		return true
	case <-done:
	case <-quit:
	}
	return t.leave()
}

// leave ends a wait, which may have come too late: then the turn has to be taken.
func (t *Turn) leave() (taken bool) {
	for {
		s := t.state.Load()
		if s < 2 {
			<-t.handed // it is there, or about to be
			return true
		}
		if t.state.CompareAndSwap(s, s-2) {
			return false
		}
	}
}

// Give ends the turn. The call that has waited longest gets it.
func (t *Turn) Give() {
	if !t.state.CompareAndSwap(1, 0) {
		t.hand()
	}
}

func (t *Turn) hand() {
	for {
		s := t.state.Load()
		switch {
		case s == 1 && t.state.CompareAndSwap(1, 0):
			return
		case s > 1 && t.state.CompareAndSwap(s, s-2):
			t.handed <- struct{}{} // has room: the next one is sent by the call that takes this one
			return
		case s < 1:
			panic("BUG: attach: a turn is given that nobody has")
		}
	}
}
