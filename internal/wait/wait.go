// Package wait has the two waits that many packages need: for a time, and for a token.
package wait

import "time"

// For waits for d. It reports false if done is closed before.
func For(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-done:
		return false
	}
}

// Notify puts a token into ch, whose capacity is one, unless there is one already.
func Notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
