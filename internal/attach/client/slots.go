package client

// slots is a bound on calls of one kind, each of which holds an element. Calls get a slot in FIFO
// order, as senders on a channel do.
type slots chan struct{}

// acquire takes a slot and reports true, or waits for one until one of the channels is closed; a nil
// channel never is.
func (p slots) acquire(ctx, quit, done <-chan struct{}) bool {
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

// release passes the slot to the call that has waited longest.
func (p slots) release() { <-p }
