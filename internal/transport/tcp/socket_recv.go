package tcp

import (
	"sync/atomic"
	"syscall"
)

// A socketReader reads a first connection that is a socket. It handles what has
// come before it lets the runtime wait for more, within one call of it: a read that
// did not fill its memory has emptied the socket, so that nobody needs to ask the
// kernel again, and the runtime tells of what comes afterwards, because a socket is
// registered for edges. What is not seen that way is an end of the connection that
// lay behind those bytes already: whatever is sent next, a heartbeat at the latest,
// is answered by a reset, and if that was missed too, the next one fails (failSoon).
type socketReader struct {
	s       *session
	raw     syscall.RawConn // nil: the connection is no socket
	looker  looker
	attempt func(uintptr) bool
	waits   atomic.Bool // whoever reads has found nothing

	// Of one read: fields, so that it needs no memory.
	holder *hand // of the helm; nil: the watch
	err    error
}

// begin makes r read s, if that has a socket.
func (r *socketReader) begin(s *session) {
	if r.raw = rawConn(s.rec.Conn); r.raw == nil {
		return
	}
	r.s, r.attempt = s, r.empty
	r.looker.begin(s.rec.Conn, s.p.cfg.LowLatency, &s.spoke)
	s.rec.dry = true
}

// read reads and handles frames until the holder of the helm is to look at
// something.
func (r *socketReader) read(holder *hand) error {
	if holder != nil { // the watch does not look
		n, err := r.looker.look(r.s.unread())
		r.s.came(n)
		if n > 0 || err != nil {
			return first(err, r.handle(holder))
		}
	}
	r.holder, r.err = holder, nil
	defer r.waits.Store(false)
	if err := r.raw.Read(r.attempt); err != nil {
		return err
	}
	return r.err
}

// empty reads and handles what there is. It reports false if the holder is to
// wait for more.
func (r *socketReader) empty(fd uintptr) bool {
	s := r.s
	r.waits.Store(false)
	for {
		p := s.unread()
		n, err := readNow(fd, p)
		s.came(n)
		if err = first(err, r.handle(r.holder)); err != nil || s.ended() || s.satisfied(r.holder) {
			r.err = err
			return true
		}
		if n < len(p) {
			s.flush() // what was answered
			if n > 0 && r.looker.low && r.holder != nil {
				return true // to look for more
			}
			r.waits.Store(true)
			return false
		}
	}
}

// handle is decrypt that notes for the looker whom it has probably woken.
func (r *socketReader) handle(holder *hand) error {
	s := r.s
	said, woke := s.spoke.Load(), s.woke
	s.woke = false
	err := s.decrypt(holder)
	r.looker.came, r.looker.woke = said, r.looker.woke || s.woke
	s.woke = s.woke || woke
	return err
}

// unread returns where bytes of the socket belong, and came says that n have come
// there: for TLS, or straight before the frames.
func (s *session) unread() []byte {
	if s.rec.plain {
		return s.room()
	}
	return s.rec.room()
}

func (s *session) came(n int) {
	if s.rec.plain {
		s.end += n
	} else {
		s.rec.end += n
	}
	s.rec.received.Add(uint64(n))
}

// decrypt handles the whole records that are there, and the frames in them.
func (s *session) decrypt(holder *hand) error {
	for !s.rec.plain && s.rec.hasMore() {
		n, err := s.conn.Read(s.room())
		s.end += n
		if n == 0 && err != nil && !isInterrupt(err) {
			return err
		}
		if err := s.handleFrames(holder); err != nil || s.ended() {
			return err
		}
	}
	return s.handleFrames(holder)
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
