package tcp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A bulk connection that is cut costs the session nothing. Each end says, on the
// first connection, how much it has got of what the other one wrote, and each
// writes again what the other one has not got: there, for it has to arrive.

// cutGrace is how long a session outlives a bulk connection whose other end does
// not say what it has got. A CLOSE that is under way comes first.
const cutGrace = time.Second

// cutOff ends the use of the connection, and with anything but a cut the
// session.
func (b *bulk) cutOff(err error) {
	end := closeError(err)
	if errors.Is(err, net.ErrClosed) {
		end = &transport.CloseError{Reset: true}
	}
	if !end.Reset && !end.Timeout {
		b.s.spawn(func() { b.s.finish(end) })
		return
	}
	_ = b.conn.Close()
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.s.endBulk(b) {
		b.s.spawn(func() { b.awaitLost(end) })
	}
}

// awaitLost waits until the other end has said what it has got.
func (b *bulk) awaitLost(end *transport.CloseError) {
	t := time.NewTimer(cutGrace)
	defer t.Stop()
	select {
	case <-b.lost:
	case <-b.s.done:
	case <-t.C:
		b.s.finish(end)
	}
}

// endBulk takes a connection out of use. It reports false if it was out of use
// already. mu is held.
func (s *session) endBulk(b *bulk) bool {
	st := &s.bulk
	for i, c := range st.conns {
		if c != b {
			continue
		}
		st.conns = append(st.conns[:i:i], st.conns[i+1:]...)
		if st.ending == nil {
			st.ending = make(map[uint64]*bulk)
		}
		st.ending[b.number] = b
		return true
	}
	return false
}

// readOver tells the other end what has come. It is the reader's last act.
func (b *bulk) readOver() {
	b.s.sayLost(b.number, b.position)
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.readEnded = true
	b.s.forgetBulk(b)
}

// forgetBulk forgets a connection of which both ends know what has come. mu is
// held.
func (s *session) forgetBulk(b *bulk) {
	select {
	case <-b.lost:
		if b.readEnded {
			delete(s.bulk.ending, b.number)
		}
	default:
	}
}

// sayLost says that nothing will be read from a connection from position on. Each
// end says it once for every connection that the other one may have begun to use.
func (s *session) sayLost(number, position uint64) {
	if s.ended() {
		return
	}
	s.say(header{kind: typeLost, lane: number, value: position})
}

// onAck handles how much of a connection's bytes the peer has.
func (s *session) onAck(number, position uint64) error {
	s.mu.Lock()
	b, err := s.bulk.find(number), s.knows(number)
	s.mu.Unlock()
	if b == nil || err != nil {
		return err
	}
	err = b.kept.ack(position)
	s.wakeWriters() // tryBulk may have found no room a moment ago
	return err
}

// knows returns an error for the number of a connection that there never was.
// mu is held.
func (s *session) knows(number uint64) error {
	if number > s.bulk.last {
		return fmt.Errorf("%w: bulk connection %d, the last one is %d", errMalformed, number, s.bulk.last)
	}
	return nil
}

// onLost handles the peer's last word on a connection, or on one that will not
// be made.
func (s *session) onLost(number, position uint64) error {
	s.mu.Lock()
	st := &s.bulk
	b, err := st.find(number), s.knows(number)
	if b == nil || err != nil {
		if _, ok := st.dialing[number]; ok {
			st.dialing[number] = true
		}
		for i, t := range st.tokens {
			if t.number == number {
				st.tokens = append(st.tokens[:i:i], st.tokens[i+1:]...)
				break
			}
		}
		s.mu.Unlock()
		return err
	}
	select {
	case <-b.lost:
		s.mu.Unlock()
		return fmt.Errorf("%w: bulk connection %d is lost twice", errMalformed, number)
	default:
		close(b.lost)
	}
	s.endBulk(b)
	s.forgetBulk(b)
	s.mu.Unlock()
	_ = b.conn.Close()
	again, err := b.kept.lost(position)
	if err != nil {
		freeAll(b.kept.close()) // the session ends and may not know b any more
	}
	if len(again) > 0 {
		s.spawn(func() { _ = s.sendAgain(again) }) // its error is the end of the session
	}
	s.wakeWriters()
	return err
}

// sendAgain sends frames of which the peer has not got the bytes, and frees them.
func (s *session) sendAgain(frames []keptFrame) error {
	defer freeAll(frames)
	l := &sendLane{s: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	s.unnamed[l] = struct{}{} // finish wakes it
	s.mu.Unlock()
	defer s.forgetOut(l)
	for i := range frames {
		f := &frames[i]
		for done := 0; done < f.length; {
			p := f.piece(done)
			p = p[:min(len(p), maxSmall)]
			sent, err := s.sendPiece(l, f.lane, f.at+uint64(done), p)
			if err != nil {
				return err
			}
			if sent {
				done += len(p)
			} else {
				<-l.wake
			}
		}
		f.free()
	}
	return nil
}

// detach makes copies of what l's frames hold and returns those frames, which the
// caller frees.
func (s *session) detach(l *sendLane) (held []keptFrame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := range s.bulk.all() {
		held = append(held, b.kept.detach(l.id)...)
	}
	return held
}

// letGo forgets what is kept: the session is over. mu is held, but not when
// release is called, which releases what was held.
func (s *session) letGo() (release func()) {
	var frames []keptFrame
	for b := range s.bulk.all() {
		frames = append(frames, b.kept.close()...)
	}
	return func() { freeAll(frames) }
}

// sendPiece sends p on the first connection, unless that has no room for more data:
// then l.wake has a token when it may have.
func (s *session) sendPiece(l *sendLane, lane, at uint64, p []byte) (sent bool, err error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if ok, err := s.hasOutlet(l); !ok || err != nil {
		return false, err
	}
	return true, s.sendPieces(lane, at, vector{b: p}, false)
}

// hasOutlet reports whether the first connection takes more data; if not, l is woken
// when it may. writeMu is held.
func (s *session) hasOutlet(l *sendLane) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.failure(); err != nil {
		return false, err
	}
	ok := s.out.backlog.Load() <= maxBacklog
	if ok {
		delete(s.waiting, l)
	} else {
		s.waiting[l] = struct{}{}
	}
	return ok, nil
}
