package mem

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/transport"
)

// maxReason bounds the reason of a Close, in bytes.
const maxReason = 256

// A session is one end of an association.
type session struct {
	transport.Incoming

	owner *Provider
	peer  *session
	slots chan struct{} // one token per stream that this end has opened
	done  chan struct{}
	err   atomic.Pointer[transport.CloseError]
}

func newSession(owner *Provider) *session {
	s := &session{owner: owner, slots: make(chan struct{}, owner.hub.cfg.MaxStreams), done: make(chan struct{})}
	s.Init(s)
	return s
}

// OpenStream implements transport.Session.
func (s *session) OpenStream(ctx context.Context) (transport.SendStream, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	select {
	case s.slots <- struct{}{}:
		return (*sendStream)(newStream(s, s.peer)), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("open stream: %w", ctx.Err())
	case <-s.done:
		return nil, s.Err()
	}
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if len(p) > transport.MaxDatagram {
		return fmt.Errorf("datagram of %d bytes: at most %d", len(p), transport.MaxDatagram)
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.peer.PutDatagram(p)
	return nil
}

// Heard implements transport.Session: datagrams wait behind nothing.
func (s *session) Arrived() uint64 { return 0 }

// Traffic implements transport.Session: there is no network.
func (s *session) Traffic() transport.Traffic { return transport.Traffic{} }

// Peer, LocalAddr, RemoteAddr and Done implement transport.Session.
func (s *session) Peer() transport.Identity { return s.peer.owner.id }

func (s *session) LocalAddr() string { return s.owner.address }

func (s *session) RemoteAddr() string { return s.peer.owner.address }

func (s *session) Done() <-chan struct{} { return s.done }

// Err implements transport.Session.
func (s *session) Err() error {
	if err := s.err.Load(); err != nil {
		return err
	}
	return nil // not a nil *CloseError in an interface
}

// Close implements transport.Session.
func (s *session) Close(code uint64, reason string) error {
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	if s.end(&transport.CloseError{Code: code, Reason: reason}) {
		s.peer.end(&transport.CloseError{Remote: true, Code: code, Reason: reason})
	}
	return nil
}

// end ends this side with why. It reports whether it was the first to do so.
func (s *session) end(why *transport.CloseError) bool {
	if !s.err.CompareAndSwap(nil, why) {
		return false
	}
	close(s.done)
	s.owner.forget(s)
	return true
}
