package main

import "runtime"

// A keeper is a goroutine that keeps its thread, for children that are to die
// with the thread that started them. What is measured does not run there: a
// goroutine that keeps its thread is slow to wake.
type keeper struct {
	work chan func()
	done chan struct{}
}

func newKeeper() *keeper {
	k := &keeper{make(chan func()), make(chan struct{})}
	go func() { // ends with close, which waits for it
		defer close(k.done)
		runtime.LockOSThread() // and the thread ends with it
		for f := range k.work {
			f()
		}
	}()
	return k
}

// do runs f there and waits for it.
func (k *keeper) do(f func()) {
	done := make(chan struct{})
	k.work <- func() { defer close(done); f() }
	<-done
}

// close ends the goroutine, and with its thread what was started there.
func (k *keeper) close() {
	close(k.work)
	<-k.done
}
