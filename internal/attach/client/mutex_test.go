package client

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

func newMutex() *Mutex {
	t := new(Mutex)
	t.Init()
	return t
}

// One call at a time has the mutex, whichever waiters give up.
func TestMutexIsOfOne(t *testing.T) {
	mutex := newMutex()
	inside, got := 0, 0 // guarded by mutex
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				var done chan struct{}
				switch {
				case k == 7:
					if !mutex.TryLock() {
						continue
					}
				case k%2 == 1 && i%3 == 0:
					done = make(chan struct{})
					go func() { close(done) }()
					fallthrough
				default:
					if !mutex.Lock(done, nil) {
						continue
					}
				}
				if inside++; inside != 1 {
					t.Errorf("%d calls have the mutex", inside)
				}
				got++
				inside--
				mutex.Unlock()
			}
		})
	}
	wg.Wait()
	if mutex.taken() || len(mutex.handed) != 0 {
		t.Errorf("state %d, %d tokens are left", mutex.state.Load(), len(mutex.handed))
	}
	if got < 4*2000 {
		t.Errorf("the mutex was had %d times", got)
	}
}

// Waiting calls get the mutex in order, also if one call takes it repeatedly.
func TestMutexIsInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		mutex := newMutex()
		mutex.Lock(nil, nil)
		var order []int // guarded by mutex
		for i := range 5 {
			go func() {
				mutex.Lock(nil, nil)
				order = append(order, i)
				mutex.Unlock()
			}()
			synctest.Wait()
		}
		mutex.Unlock()
		mutex.Lock(nil, nil) // after the others
		for i, k := range order {
			if i != k {
				t.Fatalf("the order is %v", order)
			}
		}
		if len(order) != 5 {
			t.Errorf("%d had the mutex before, want 5", len(order))
		}
		mutex.Unlock()
	})
}

func TestWaitForAMutexEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		mutex := newMutex()
		mutex.Lock(nil, nil)
		if mutex.TryLock() {
			t.Error("Try takes what is taken")
		}
		ended := make(chan bool)
		for _, quit := range []bool{false, true} {
			c := make(chan struct{})
			go func() {
				if quit {
					ended <- mutex.Lock(nil, c)
				} else {
					ended <- mutex.Lock(c, nil)
				}
			}()
			time.Sleep(time.Second)
			close(c)
			if <-ended {
				t.Error("Take has what another one has")
			}
		}
		mutex.Unlock()
		over := make(chan struct{})
		close(over)
		if !mutex.Lock(over, over) {
			t.Error("a free mutex is not taken when the caller's time is over")
		}
	})
}

func BenchmarkMutex(b *testing.B) {
	mutex := newMutex()
	for b.Loop() {
		mutex.Lock(nil, nil)
		mutex.Unlock()
	}
}

// taken reports whether a call has the mutex.
func (t *Mutex) taken() bool { return t.state.Load() != 0 }
