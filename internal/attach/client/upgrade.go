package client

// When an endpoint asks for a channel: after so many calls that sent something,
// so that a connection of a few messages costs nothing. One that cannot have it
// is tried again later, and then no more.
var channelAfter = [...]uint64{4, 256, 4096}

// sent counts a call that has sent n bytes through the data socket, and asks for
// a channel when it is time. The caller holds sending.
func (e *clientEndpoint) sent(n int) {
	if n <= 0 {
		return
	}
	e.moved.sent += uint64(n)
	e.moved.calls++
	if e.asks.tries == len(channelAfter) || e.ch.Load() != nil {
		return
	}
	due := e.moved.calls >= channelAfter[e.asks.tries] || e.asks.tries == 0 && e.moved.sent >= upgradeBytes
	if due && e.upgrade(false) && !e.far.is.Load() { // a path has pauses instead
		e.asks.tries++
	}
}

// upgradeBytes is how many bytes make an endpoint ask before it has sent so many calls.
const upgradeBytes = 64 << 10

// upgrade asks for a channel, or a path, in the background; false if that is being done, or
// if it cannot be. A peer that gives its side up again and again gets no more:
// what came to nothing stays until the endpoint is closed. offered says that the peer has
// asked.
func (e *clientEndpoint) upgrade(offered bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.data == nil || e.asks.upgrading || e.ch.Load() != nil || len(e.asks.spent) >= len(channelAfter) {
		return false
	}
	if e.far.is.Load() {
		e.upgradePathLocked(offered)
		return true
	}
	e.asks.upgrading = true
	e.wg.Go(func() {
		e.join()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.asks.upgrading = false
	})
	return true
}
