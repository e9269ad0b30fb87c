package tcp

import (
	"sync"
	"sync/atomic"
	"time"
)

// A company is sessions whose first connections one look can see: those of this process
// that are sockets. While every processor is busy, nobody asks the kernel what has come,
// whichever peer it is from; so who moves much on one of them looks for all.
type company struct {
	begun time.Time    // what spoke counts from
	spoke atomic.Int64 // when one of them said something short, to an eighth of lately

	mu    sync.RWMutex // guards the fields below
	set   *pollSet     // of the sockets; nil: nobody has come yet, or the kernel has refused
	last  uint64       // the last seat that was given
	seats map[uint64]*session
}

// everyone is the company of all sessions over sockets. It holds one descriptor from the
// first of them on.
var everyone = company{begun: time.Now()}

// companyOf returns everyone if the first connection of s is a socket, else a company of
// its own, which sees nothing.
func companyOf(s *session) *company {
	if s.socket.raw == nil {
		return &company{begun: time.Now()}
	}
	return &everyone
}

// seatOf gives s a seat, 0 if it can have none: where descriptors have run out it is the
// scheduler alone that sees what comes.
func (c *company) seatOf(s *session) (seat uint64) {
	if s.socket.raw == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil {
		if c.set = newPollSet(); c.set == nil {
			return 0
		}
	}
	c.last++
	added := false
	if err := sightOf(s.socket.raw).Control(func(fd uintptr) { added = c.set.add(fd, c.last) }); err != nil || !added {
		return 0
	}
	if c.seats == nil {
		c.seats = make(map[uint64]*session)
	}
	c.seats[c.last] = s
	return c.last
}

// leave gives a seat back. The kernel forgets a socket when it is closed.
func (c *company) leave(seat uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seats, seat)
}

// said notes that something short was said, at a time since begun. Many say so at once:
// who finds that one of them has just done so leaves the memory alone.
func (c *company) said(at time.Duration) {
	if at-time.Duration(c.spoke.Load()) > lately/8 {
		c.spoke.Store(int64(at))
	}
}

// talks reports whether one of them has said something short lately, and the next one
// whether s has.
func (c *company) talks() bool { return c.isLately(&c.spoke) }

func (s *session) talks() bool { return s.company.isLately(&s.spoke) }

func (c *company) isLately(spoke *atomic.Int64) bool {
	return time.Since(c.begun)-time.Duration(spoke.Load()) < lately
}

// overdue reports whether a look that found something here has found it before.
func (s *session) overdue() bool {
	now := s.frames.Load() + 1
	return s.found.Swap(now) == now
}

// mostRoused bounds how many are roused by one look. Others are by the next one.
const mostRoused = 8

// rouse has those go on who wait for something that is there, and reports whether there
// was one: in the caller's own session at once, if eager; else when two looks have found
// that they wait, and if their end talks. Most of the time a processor that has nothing to do finds
// it before, and goes on with it beside the caller instead of in turns with it; and what
// comes to those who do not talk, such as the word that bytes have come, can wait until
// there is much of it.
func (c *company) rouse(own *session, eager bool) (any bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.set == nil {
		return false
	}
	var ready [mostRoused]uint64
	for _, seat := range ready[:c.set.readable(&ready)] {
		// Those who do not wait are reading, or have somebody who is about to.
		if s := c.seats[seat]; s != nil && s.socket.waits.Load() && (s == own && eager || s.overdue() && s.talks()) {
			s.helm.nudge()
			any = true
		}
	}
	return any
}
