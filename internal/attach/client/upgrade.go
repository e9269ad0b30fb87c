package client

// shmPathAfter lists after how many calls with sent bytes an endpoint asks for a shared-memory
// path, so that a connection of a few messages costs nothing. An endpoint that gets none tries
// again at the next count; after the last one it stops.
var shmPathAfter = [...]uint64{4, 256, 4096}

// sent counts a call that has sent n bytes through the data socket, and asks for a shared-memory
// path when a limit is reached. The caller holds sending.
func (e *endpoint) sent(n int) {
	if n <= 0 {
		return
	}
	e.moved.sent += uint64(n)
	e.moved.calls++
	if e.upgrades.tries == len(shmPathAfter) || e.shmPath.Load() != nil {
		return
	}
	due := e.moved.calls >= shmPathAfter[e.upgrades.tries] || e.upgrades.tries == 0 && e.moved.sent >= upgradeBytes
	if due && e.upgrade(false) && !e.far.is.Load() { // a path has pauses instead
		e.upgrades.tries++
	}
}

// upgradeBytes sent bytes make an endpoint ask before it has reached the number of calls.
const upgradeBytes = 64 << 10

// upgrade asks for a shared-memory path or a path between nodes in the background; false if a
// request is running or impossible. A peer that gives up its side repeatedly gets no further
// shared-memory path: abandoned ones stay mapped until the endpoint is closed. offered: the peer
// has asked.
func (e *endpoint) upgrade(offered bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.data == nil || e.upgrades.upgrading || e.shmPath.Load() != nil || len(e.upgrades.spent) >= len(shmPathAfter) {
		return false
	}
	if e.far.is.Load() {
		e.upgradePathLocked(offered)
		return true
	}
	e.upgrades.upgrading = true
	e.wg.Go(func() {
		e.join()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.upgrades.upgrading = false
	})
	return true
}
