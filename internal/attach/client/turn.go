package client

import "sync/atomic"

// A Turn is a FIFO lock whose waiters can give up. Without contention it costs two atomic
// operations. Init must be called first.
type Turn struct {
	// state is 0 if the turn is free, 1 while a call has it, plus 2 for each waiter that is not
	// about to get it.
	//
	// Invariant: the number of waiters is the number in state, plus one while a token is in handed.
	// So a call that finds no waiter in state gets that token.
	state  atomic.Int32
	handed chan struct{} // the token: passes the turn to the next waiter
}

// Init makes t a free turn.
func (t *Turn) Init() { t.handed = make(chan struct{}, 1) }

// Try takes the turn if it is free.
func (t *Turn) Try() bool { return t.state.CompareAndSwap(0, 1) }

// Take takes the turn and reports true, or waits for it until done or quit is closed; a nil channel
// never is.
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

// leave ends a wait. If the turn was passed to this waiter meanwhile, it takes the turn.
func (t *Turn) leave() (taken bool) {
	for {
		s := t.state.Load()
		if s < 2 {
			<-t.handed // the token is there, or about to be
			return true
		}
		if t.state.CompareAndSwap(s, s-2) {
			return false
		}
	}
}

// Give releases the turn, to the call that has waited longest if there is one.
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
			t.handed <- struct{}{} // has room: the call that takes this token sends the next one
			return
		case s < 1:
			panic("BUG: attach: a turn is given that nobody has")
		}
	}
}
