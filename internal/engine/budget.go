package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/status"
)

// A budget bounds the memory of a node's connections: above all received bytes that the application
// has not read. Each connection has promised its peer to keep as many as its window, and may hold
// as many outgoing ones. A promise cannot be taken back, so the budget counts the promises, from
// the making of a connection until its endpoint is closed: received bytes can be read until then.
// Beside them it bounds the bytes of writes whose caller does not wait.
type budget struct {
	limit func() int64 // bytes; may change, and be less than the sum promised; nil: no bound

	copied atomic.Int64 // bytes of writes under way whose caller does not wait

	mu     sync.Mutex       // guards the fields below, and the held of every session
	used   int64            // sum of costOf of all connections
	users  map[uint32]int64 // the same by user
	logged perMinute        // lines about want of memory
}

// Of the limit connections have three quarters, and writes without a waiting caller
// an eighth. The rest is for writes with one (server.Options.Staged).
func ofConns(limit int64) int64  { return limit / 4 * 3 }
func ofCopies(limit int64) int64 { return limit / 8 }

const (
	// connCost is the cost of a connection besides its window, in bytes, about:
	// stacks of its readers and of an attached application's relay, and tables.
	connCost = 32 << 10
	// relayMost is the largest buffer of a relay, of which there is one for each direction;
	// it is no larger than the window (attach.NodeEndpoint.Window).
	relayMost = 256 << 10
	// socketMost bounds the kernel's memory for an application's data socket, overhead
	// included; for small windows it is no more than twice the window.
	socketMost = 240 << 10
	// leastWindow is the smallest window of a connection, in bytes, unless
	// Config.MessageWindow is smaller.
	leastWindow = 16 << 10
)

// costOf returns the most bytes that a connection takes: a window of received bytes, a
// window of bytes that wait for the link, the buffers of an application's relay in both
// directions, and its socket.
func costOf(window int) int64 {
	return 2*int64(window) + 2*int64(min(window, relayMost)) + int64(min(2*window, socketMost)) + connCost
}

// A promised is the bytes promised to one session, to all sessions of its user
// including that one, and to all users.
type promised struct{ session, user, all int64 }

// own returns the session's limit and its user's. A user may have three quarters of the bytes that
// the other users leave, and a session three quarters of those that the user's other sessions leave
// of that: a greedy one leaves room to others, however often it attaches.
func (h promised) own(limit int64) (session, user int64) {
	user = (limit - h.all + h.user) / 4 * 3
	return (user - h.user + h.session) / 4 * 3, user
}

// refusal returns the error of a connection that wants bytes and finds no room. It names the
// widest bound that refuses: where the node's does, none of a user or an application would help.
func (h promised) refusal(want, limit int64) error {
	own, user := h.own(limit)
	bound, of, has := "this application", own, h.session
	switch {
	case h.all+want > limit:
		bound, of, has = "this node", limit, h.all
	case h.user+want > user:
		bound, of, has = "this user", user, h.user
	}
	return fmt.Errorf("a connection takes %d bytes of memory at least, and %s has %d of the %d that it may take (conn-memory, of which all connections may take %d bytes): %w",
		want, bound, has, of, limit, status.NoMemory)
}

// windowFor returns the window of a new connection, in bytes, where h of limit are promised. While
// half is free, of all, of the user's and of the session's own, it gets most, an eighth of that
// while a quarter is, and then the least, so that many small connections find room where few large
// ones would. It reports false if there is no room. All windows are powers of two.
func windowFor(most int, h promised, limit int64) (int, bool) {
	least := min(most, leastWindow)
	own, user := h.own(limit)
	window := min(scarce(most, least, limit-h.all, limit), scarce(most, least, user-h.user, user), scarce(most, least, own-h.session, own))
	for ; h.session+costOf(window) > own; window /= 2 {
		if window == least {
			return 0, false
		}
	}
	return window, true
}

// scarce returns the window where free of so many bytes are.
func scarce(most, least int, free, of int64) int {
	switch {
	case free < of/4:
		return least
	case free < of/2:
		return max(least, most/8)
	}
	return most
}

// take promises a window of at most most bytes to a new connection of s. The error is
// status.NoMemory; report is that it was not lately. now is the node's clock.
func (b *budget) take(s *session, most int, now time.Duration) (window int, report bool, err error) {
	if b.limit == nil {
		return most, false, nil
	}
	limit := ofConns(b.limit())
	b.mu.Lock()
	defer b.mu.Unlock()
	h := promised{s.held, b.users[s.cred.UID], b.used}
	window, ok := windowFor(most, h, limit)
	if !ok {
		return 0, b.logged.shown(now, 1), h.refusal(costOf(min(most, leastWindow)), limit)
	}
	b.add(s, costOf(window))
	return window, false, nil
}

// give gives back the bytes that take has promised to one connection of s.
func (b *budget) give(s *session, window int) {
	if b.limit == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(s, -costOf(window))
}

// add counts n bytes more. The caller holds mu.
func (b *budget) add(s *session, n int64) {
	b.used += n
	s.held += n
	if b.users[s.cred.UID] += n; b.users[s.cred.UID] == 0 {
		delete(b.users, s.cred.UID)
	}
}

// charge counts n bytes that a write holds while its caller goes on, and returns the
// bytes that refund has to give back. It reports false if there is no room: then the caller waits.
func (b *budget) charge(n int64) (charged int64, ok bool) {
	if b.limit == nil {
		return 0, true
	}
	if b.copied.Add(n) > ofCopies(b.limit()) {
		b.copied.Add(-n)
		return 0, false
	}
	return n, true
}

func (b *budget) refund(charged int64) {
	if charged > 0 {
		b.copied.Add(-charged)
	}
}

// state returns the bytes promised and their limit; 0, 0 without a bound.
func (b *budget) state() (used, limit int64) {
	if b.limit == nil {
		return 0, 0
	}
	limit = ofConns(b.limit())
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, limit
}

// Fits returns how many connections one application may have, alone, where those of the
// node may take limit bytes (Config.ConnMemory).
func Fits(limit int64) (n int) {
	for h := int64(0); ; n++ {
		window, ok := windowFor(MessageWindow, promised{h, h, h}, ofConns(limit))
		if !ok {
			return n
		}
		h += costOf(window)
	}
}
