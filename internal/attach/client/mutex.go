package client

import "sync/atomic"

// A Mutex is a FIFO lock whose waiters can give up. Without contention it costs two atomic
// operations. Init must be called first.
type Mutex struct {
	// state is 0 if the mutex is free, 1 while a call has it, plus 2 for each waiter that is not
	// about to get it.
	//
	// Invariant: the number of waiters is the number in state, plus one while a token is in handed.
	// So a call that finds no waiter in state gets that token.
	state  atomic.Int32
	handed chan struct{} // the token: passes the mutex to the next waiter
}

// Init makes t a free mutex.
func (t *Mutex) Init() { t.handed = make(chan struct{}, 1) }

// TryLock takes the mutex if it is free.
func (t *Mutex) TryLock() bool { return t.state.CompareAndSwap(0, 1) }

// Lock takes the mutex and reports true, or waits for it until done or quit is closed; a nil channel
// never is.
func (t *Mutex) Lock(done, quit <-chan struct{}) bool { return t.TryLock() || t.lockSlow(done, quit) }

func (t *Mutex) lockSlow(done, quit <-chan struct{}) bool {
	for {
		s := t.state.Load()
		if s == 0 && t.TryLock() {
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

// leave ends a wait. If the mutex was passed to this waiter meanwhile, it takes it.
func (t *Mutex) leave() (taken bool) {
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

// Unlock releases the mutex, to the call that has waited longest if there is one.
func (t *Mutex) Unlock() {
	if !t.state.CompareAndSwap(1, 0) {
		t.unlockSlow()
	}
}

func (t *Mutex) unlockSlow() {
	for {
		s := t.state.Load()
		switch {
		case s == 1 && t.state.CompareAndSwap(1, 0):
			return
		case s > 1 && t.state.CompareAndSwap(s, s-2):
			t.handed <- struct{}{} // has room: the call that takes this token sends the next one
			return
		case s < 1:
			panic("BUG: attach: unlock of a mutex that no call has")
		}
	}
}
