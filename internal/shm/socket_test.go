package shm

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A blocked call on a socket never waits in the kernel, where no deadline ends it,
// while others get their own connections on it.
func TestWatcherLeavesTheSocketNonBlocking(t *testing.T) {
	near, far, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	defer near.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	done := make(chan struct{})
	watching.Go(func() {
		defer close(done)
		for range 2000 {
			w, err := Watcher(near)
			if err != nil {
				t.Error(err)
				return
			}
			w.Close()
		}
	})
	for looks := 0; ; looks++ {
		flags, err := once(near, func(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0) })
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Fatalf("look %d: flags %#x, %v", looks, flags, err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}
