package tcp

import (
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A sendLane is the sending end of a lane. It has a number from its first frame
// on; until then the peer does not know it.
type sendLane struct {
	s    *session
	wake chan struct{} // holds a token when the writer should look
	pace pace          // of the writer

	whole [1]transport.Part // what Write hands to WriteVec; the writer's

	// Guarded by the session's mu; id is set with writeMu held too, and read with either.
	id       uint64 // 0: no frame was sent
	limit    uint64 // what the peer allows
	sent     uint64 // bytes in frames, sent or about to be
	closed   bool
	canceled bool // by either side
	err      error
	deadline time.Time
	timer    *time.Timer // wakes the writer at deadline; nil if none was ever needed
	writing  *bulk       // the connection that the writer may be held up by; nil: none
}

// Write implements transport.SendLane. What is short leaves nothing to do once it is
// sent: its answer may make somebody else write before Write has returned.
func (l *sendLane) Write(p []byte) (n int, err error) {
	if len(p) >= bulkMin {
		l.whole[0].Payload = p
		n, err = l.WriteVec(l.whole[:], nil)
		l.whole[0].Payload = nil
		return n, err
	}
	l.pace.follows = false
	for n < len(p) {
		k, err := l.writeFirst(vector{b: p[n:]})
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// WriteVec implements transport.SendLane.
func (l *sendLane) WriteVec(parts []transport.Part, hold transport.Hold) (int, error) {
	g := newGather(parts, hold)
	all := g.left
	if all >= bulkMin {
		lone := l.pace.begins() && all <= loneMax
		defer l.pace.ends()
		if lone {
			if ok, err := l.writeLone(&g); ok || err != nil {
				return all - g.left, err
			}
		}
	}
	l.pace.follows = false
	for g.left > 0 {
		if err := l.write(&g); err != nil {
			return all - g.left, err
		}
	}
	return all, nil
}

// bulkMin is the smallest piece that goes over a bulk connection, in bytes: what does
// not fit a frame of the first connection.
const bulkMin = maxSmall + 1

// write hands over some bytes of g, waiting for credit.
func (l *sendLane) write(g *gather) error {
	if g.left >= bulkMin {
		n, err := l.writeBulk(g)
		if n > 0 || err != nil {
			return err
		}
	}
	n, err := l.writeFirst(g.front())
	g.advance(n)
	return err
}

// writeFirst hands over some bytes of v on the first connection, waiting for credit,
// and returns how many.
func (l *sendLane) writeFirst(v vector) (int, error) {
	for {
		n, err := l.sendFirst(v, min(v.len(), maxSmall), 1)
		if n > 0 || err != nil {
			return n, err
		}
		l.s.flush()
		<-l.wake
	}
}

// sendFirst sends least to most bytes of v, at most maxSmall, on the first
// connection, and returns how many; none if it would have to wait, and l.wake then
// has a token when it may go on. What the connection has room for is looked at in
// the turn of writing: of any number of lanes that have seen room for a frame, each
// would add one.
func (l *sendLane) sendFirst(v vector, most, least int) (int, error) {
	l.s.writeMu.Lock()
	defer l.s.writeMu.Unlock()
	n, at, err := l.reserve(most, least)
	if n == 0 || err != nil {
		return 0, err
	}
	return n, l.s.sendData(l, at, v.cut(n), false)
}

// writeBulk hands over some bytes of g on a bulk connection and returns how many;
// none if there is no such connection yet.
func (l *sendLane) writeBulk(g *gather) (int, error) {
	most := g.piece()
	least := min(most, l.s.leastBulk)
	if g.hold != nil && most >= heldMin && most <= 2*l.s.leastBulk {
		least = most // a crumb would be copied; a reader leaves no less credit when it has read all
	}
	for {
		// Credit first: who waits for it must not keep a connection from others.
		if ok, err := l.hasCredit(least); err != nil {
			return 0, err
		} else if !ok {
			l.s.flush()
			<-l.wake
			continue
		}
		b, err := l.s.takeBulk(l)
		if b == nil {
			return 0, err
		}
		n, at, err := l.reserve(most, least)
		if n > 0 {
			return n, b.send(l, at, n, g)
		}
		b.give(l)
		if err != nil {
			return 0, err
		}
	}
}

// hasCredit reports whether n bytes can be reserved. If not, l.wake has a token
// when they may be.
func (l *sendLane) hasCredit(n int) (bool, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if err := l.failure(); err != nil {
		delete(l.s.waiting, l)
		return false, err
	}
	ok := min(l.limit-l.sent, l.s.sendLimit-l.s.sendTotal) >= uint64(n)
	if !ok {
		l.s.waiting[l] = struct{}{}
	}
	return ok, nil
}

// TryWrite implements transport.SendLane.
func (l *sendLane) TryWrite(p []byte) (bool, error) {
	if len(p) > maxSmall {
		return false, nil
	}
	if len(p) == 0 {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		return true, l.failure()
	}
	n, err := l.sendFirst(vector{b: p}, len(p), len(p))
	return n > 0, err
}

// reserve takes credit for least to most bytes, which are sent at offset at. It
// takes none if it would have to wait; l.wake then has a token when it may go on. For
// the first connection, on which most is at most maxSmall, writeMu is held.
func (l *sendLane) reserve(most, least int) (n int, at uint64, err error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.failure(); err != nil {
		delete(s.waiting, l)
		return 0, 0, err
	}
	if most > maxSmall || s.out.backlog.Load() <= maxBacklog {
		n = int(min(uint64(most), l.limit-l.sent, s.sendLimit-s.sendTotal))
	}
	if n < least {
		s.waiting[l] = struct{}{}
		return 0, 0, nil
	}
	delete(s.waiting, l)
	at = l.sent
	l.sent += uint64(n)
	s.sendTotal += uint64(n)
	return n, at, nil
}

// failure says why nothing can be written. The session's mu is held.
func (l *sendLane) failure() error {
	switch {
	case l.err != nil:
		return l.err
	case l.canceled:
		return transport.ErrLaneCanceled
	case l.closed:
		return transport.ErrClosed
	case !l.deadline.IsZero() && !time.Now().Before(l.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// SetWriteDeadline implements transport.SendLane.
func (l *sendLane) SetWriteDeadline(t time.Time) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.deadline = t
	setTimer(&l.timer, t, func() {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		l.look()
	})
	return nil
}

// look makes the writer look at what has changed. The session's mu is held.
func (l *sendLane) look() {
	notify(l.wake)
	if l.writing != nil && l.failure() != nil {
		l.writing.interruptWrite()
	}
}

// Close implements transport.SendLane.
func (l *sendLane) Close() error {
	l.s.mu.Lock()
	if l.err != nil || l.canceled || l.closed {
		err := l.err
		l.s.mu.Unlock()
		return err
	}
	l.closed = true
	at := l.sent
	l.s.mu.Unlock()
	l.s.writeMu.Lock()
	_ = l.s.sendData(l, at, vector{}, true) // an error is the end of the session, which others report
	l.s.writeMu.Unlock()
	l.s.forgetOut(l)
	return nil
}

// Cancel implements transport.SendLane.
func (l *sendLane) Cancel() {
	if l.drop() {
		l.s.sendReset(l)
		l.s.forgetOut(l)
	}
	if held := l.s.detach(l); len(held) > 0 {
		// Not here: see transport.Hold. The session is not over, or nothing
		// would have been held.
		l.s.spawn(func() { freeAll(held) })
	}
}

// drop marks the lane as canceled, unless it has ended already.
func (l *sendLane) drop() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.closed || l.canceled || l.err != nil {
		return false
	}
	l.canceled = true
	l.look()
	return true
}
