package ipc

import (
	"testing"
	"time"
)

// An endpoint and its session may be closed at the same time.
func TestEndpointAndSessionCloseAtOnce(t *testing.T) {
	s := serve(t, nil)
	for range 5 {
		sa := s.dial(t)
		a, b := connect(t, sa, s.dial(t))
		e := a.(*clientEndpoint)
		e.shut() // the first half of a Close that is held up here
		done := make(chan struct{}, 2)
		go func() { sa.Close(); done <- struct{}{} }()
		go func() { e.wg.Wait(); e.free(); done <- struct{}{} }()
		for range 2 {
			select {
			case <-done:
			case <-time.After(limit):
				t.Fatal("a Close has not returned")
			}
		}
		b.(*clientEndpoint).c.Close()
	}
}
