package client

// places is a bound on calls of one kind, each of which holds an element. Calls get a place in FIFO
// order, as senders on a channel do.
type places chan struct{}

// take takes a place and reports true, or waits for one until one of the channels is closed; a nil
// channel never is.
func (p places) take(ctx, quit, done <-chan struct{}) bool {
	select {
	case p <- struct{}{}:
		return true
	default:
	}
	select {
	case p <- struct{}{}:
		return true
	case <-ctx:
	case <-quit:
	case <-done:
	}
	return false
}

// give passes the place to the call that has waited longest.
func (p places) give() { <-p }
