package netsim

import (
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A socket is the part that packets and streams share: an end that can be closed, with deadlines.
type socket struct {
	net  *Network
	fail func(op string, err error) error // adds the addresses

	// The network's lock guards the fields below.
	closed        bool // by its owner, or by a crash of its host
	readDeadline  time.Time
	writeDeadline time.Time
	changed       wait.Broadcast // fires at everything that may end a wait here
}

// SetDeadline sets both deadlines.
func (s *socket) SetDeadline(t time.Time) error {
	return s.setDeadlines(&s.readDeadline, &s.writeDeadline, t)
}

// SetReadDeadline wakes a blocked read at t.
func (s *socket) SetReadDeadline(t time.Time) error {
	return s.setDeadlines(&s.readDeadline, &s.readDeadline, t)
}

// SetWriteDeadline makes writes fail from t on; part of the data of one that waits then
// may be sent.
func (s *socket) SetWriteDeadline(t time.Time) error {
	return s.setDeadlines(&s.writeDeadline, &s.writeDeadline, t)
}

func (s *socket) setDeadlines(a, b *time.Time, t time.Time) error {
	return s.whileOpen("set", func() {
		*a, *b = t, t
		s.changed.Fire()
	})
}

// whileOpen calls f with the network's lock held, or fails the call op.
func (s *socket) whileOpen(op string, f func()) error {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.closed {
		return s.fail(op, net.ErrClosed)
	}
	f()
	return nil
}
