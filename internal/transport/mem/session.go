package mem

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	datagramQueue = 128 // datagrams that wait for ReceiveDatagram; further ones are dropped
	maxReason     = 256 // bytes of the reason of a Close
)

// A session is one end of an association.
type session struct {
	owner     *Provider
	peer      *session
	slots     chan struct{} // one token per stream that this end has opened
	datagrams chan []byte
	arrival   chan struct{} // holds a token when AcceptStream should check the queue
	done      chan struct{}
	err       atomic.Pointer[transport.CloseError]

	mu    sync.Mutex // guards queue
	queue []*stream  // begun by the peer, not accepted
}

func newSession(owner *Provider) *session {
	return &session{
		owner:     owner,
		slots:     make(chan struct{}, owner.hub.cfg.MaxStreams),
		datagrams: make(chan []byte, datagramQueue),
		arrival:   make(chan struct{}, 1),
		done:      make(chan struct{}),
	}
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

// begin queues at the peer a stream of which the first bytes, or the end, are sent.
func (s *session) begin(l *stream) {
	s.peer.mu.Lock()
	s.peer.queue = append(s.peer.queue, l)
	s.peer.mu.Unlock()
	wait.Notify(s.peer.arrival)
}

// AcceptStream implements transport.Session. Streams are accepted in the order in which they
// were begun, as QUIC's streams are, however long the first bytes of each take.
func (s *session) AcceptStream(ctx context.Context) (transport.RecvStream, error) {
	for {
		if err := s.Err(); err != nil {
			return nil, err
		}
		if l := s.next(); l != nil {
			return (*recvStream)(l), nil
		}
		select {
		case <-s.arrival:
		case <-s.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("accept stream: %w", ctx.Err())
		}
	}
}

// next takes the first stream of the queue, nil if there is none.
func (s *session) next() (l *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 {
		l = s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
	}
	if len(s.queue) > 0 {
		wait.Notify(s.arrival) // another caller may wait
	}
	return l
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if len(p) > transport.MaxDatagram {
		return fmt.Errorf("datagram of %d bytes: at most %d", len(p), transport.MaxDatagram)
	}
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case s.peer.datagrams <- append([]byte{}, p...):
	default:
	}
	return nil
}

// ReceiveDatagram implements transport.Session.
func (s *session) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	select {
	case p := <-s.datagrams:
		return p, nil
	case <-s.done:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, fmt.Errorf("receive datagram: %w", ctx.Err())
	}
}

// Heard implements transport.Session: datagrams wait behind nothing.
func (s *session) Heard() uint64 { return 0 }

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
