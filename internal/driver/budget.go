package driver

import (
	"fmt"
	"sync"

	"github.com/fabricd/fabricd/internal/status"
)

// A budget bounds what the connections of a node may take of its memory: bytes
// that came and that nobody reads, above all, of which each connection has
// promised its peer to keep as many as its window, and as many that nobody takes. A promise cannot be taken back,
// so it is the promises that are counted, from the making of a connection until
// its endpoint is closed: what has arrived can be read until then.
type budget struct {
	limit func() int64 // bytes; may change, and be less than what is promised; nil: no bound

	mu   sync.Mutex // guards used
	used int64      // sum of costOf of the connections that are there
}

const (
	// connCost is what a connection takes whatever its window is, in bytes, about:
	// stacks of its readers and of an attached application's pump, and tables.
	connCost = 32 << 10
	// pumpMost is the buffer of a pump, of which there is one for each direction; it is
	// no larger than the window (ipc.WindowedEndpoint).
	pumpMost = 64 << 10
	// socketMost is what the kernel keeps for an application in its data socket, by
	// default; for windows up to pumpMost it is no more than the window.
	socketMost = 208 << 10
	// leastWindow is the smallest window of a connection, in bytes, unless
	// Config.MessageWindow is smaller.
	leastWindow = 16 << 10
)

// costOf returns what a connection takes at most: what came, as much of what goes out
// and waits for the link, what an application's pump moves both ways, and what waits in
// its socket.
func costOf(window int) int64 {
	return 2*int64(window) + 2*int64(min(window, pumpMost)) + int64(min(window, socketMost)) + connCost
}

// windowFor returns the window of a new connection, in bytes, where used of limit
// are promised: most, while half of the limit is free, an eighth of that while a
// quarter is, and then the least, so that many small ones find room where few large
// ones would. It reports false if there is none. All are powers of two.
func windowFor(most int, used, limit int64) (int, bool) {
	least := min(most, leastWindow)
	window := most
	switch free := limit - used; {
	case free < limit/4:
		window = least
	case free < limit/2:
		window = max(least, most/8)
	}
	for ; costOf(window) > limit-used; window /= 2 {
		if window == least {
			return 0, false
		}
	}
	return window, true
}

// take promises a window of at most most bytes to a new connection. The error is
// status.NoMemory.
func (b *budget) take(most int) (window int, err error) {
	if b.limit == nil {
		return most, nil
	}
	limit := b.limit()
	b.mu.Lock()
	defer b.mu.Unlock()
	window, ok := windowFor(most, b.used, limit)
	if !ok {
		return 0, fmt.Errorf("connections of this node may take %d bytes of memory, and have %d: %w", limit, b.used, status.NoMemory)
	}
	b.used += costOf(window)
	return window, nil
}

// give gives back what take has promised to one connection.
func (b *budget) give(window int) {
	if b.limit == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= costOf(window)
}

// state returns what is promised and of how much, in bytes; 0, 0 without a bound.
func (b *budget) state() (used, limit int64) {
	if b.limit == nil {
		return 0, 0
	}
	limit = b.limit()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, limit
}
