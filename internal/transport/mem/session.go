package mem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// datagramQueue bounds the datagrams that wait for ReceiveDatagram, in flight
// or arrived. Further ones are dropped.
const datagramQueue = 128

// maxReason bounds the reason of a Close, in bytes.
const maxReason = 256

// A session is one end of an association.
type session struct {
	cfg       *Config
	path      *path
	peer      *session
	peerID    transport.Identity
	local     string
	remote    string
	slots     chan struct{} // one token per stream that this end has opened
	datagrams chan []byte
	flying    atomic.Int32  // datagrams in flight to here
	arrival   chan struct{} // holds a token when AcceptStream should check the queue
	done      chan struct{}
	onEnd     func(*session) // notifies the hub; nil for a pair without hub

	mu      sync.Mutex // guards the fields below; taken before a stream's mu
	err     *transport.CloseError
	streams map[*stream]struct{} // both directions, until they have ended
	queue   []*stream            // announced, not accepted; at most cfg.MaxStreams
}

// newSessions returns the two ends of an association over p.
func newSessions(cfg *Config, p *path, a, b endpoint) (*session, *session) {
	sa, sb := newSession(cfg, p, a, b), newSession(cfg, p, b, a)
	sa.peer, sb.peer = sb, sa
	p.a, p.b = sa, sb
	return sa, sb
}

// An endpoint names one end of a session.
type endpoint struct {
	address string
	id      transport.Identity
}

func newSession(cfg *Config, p *path, here, there endpoint) *session {
	return &session{
		cfg: cfg, path: p,
		peerID: there.id, local: here.address, remote: there.address,
		slots:     make(chan struct{}, cfg.MaxStreams),
		datagrams: make(chan []byte, datagramQueue),
		arrival:   make(chan struct{}, 1),
		done:      make(chan struct{}),
		streams:   make(map[*stream]struct{}),
	}
}

// OpenStream implements transport.Session.
func (s *session) OpenStream(ctx context.Context) (transport.SendStream, error) {
	select {
	case s.slots <- struct{}{}:
	default:
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("open stream: %w", ctx.Err())
		case <-s.done:
			return nil, s.Err()
		}
	}
	l := newStream(s, s.peer)
	if err := s.remember(l); err != nil {
		<-s.slots
		return nil, err
	}
	if err := s.peer.remember(l); err != nil {
		// The peer has ended and that news is under way: the stream will have no
		// reader, and it fails here when the news arrives.
		l.fail(s.peer, err)
	}
	return (*sendStream)(l), nil
}

// remember adds l to the streams that fail when s ends.
func (s *session) remember(l *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.streams[l] = struct{}{}
	return nil
}

// forget removes a stream that has ended.
func (s *session) forget(l *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, l)
}

// announce queues a stream that the peer has begun to write.
func (s *session) announce(l *stream) {
	s.mu.Lock()
	if s.err == nil {
		s.queue = append(s.queue, l)
	}
	s.mu.Unlock()
	notify(s.arrival)
}

// AcceptStream implements transport.Session.
func (s *session) AcceptStream(ctx context.Context) (transport.RecvStream, error) {
	var timer *time.Timer
	for {
		l, until, err := s.nextStream()
		if err != nil {
			return nil, err
		}
		if l != nil {
			l.release() // it may have been canceled while it waited
			return (*recvStream)(l), nil
		}
		var due <-chan time.Time
		if !until.IsZero() {
			timer = time.NewTimer(time.Until(until))
			due = timer.C
		}
		select {
		case <-s.arrival:
		case <-due:
		case <-s.done:
		case <-ctx.Done():
			err = fmt.Errorf("accept stream: %w", ctx.Err())
		}
		if timer != nil {
			timer.Stop()
		}
		if err != nil {
			return nil, err
		}
	}
}

// nextStream takes the next stream if it has arrived, or returns the time at which it will. Streams
// are accepted in the order in which they were begun, as QUIC's streams are,
// however long the first bytes of each take: the first one is the control stream.
func (s *session) nextStream() (*stream, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, time.Time{}, s.err
	}
	if len(s.queue) == 0 {
		return nil, time.Time{}, nil
	}
	var now time.Time
	if s.path.slow() {
		now = time.Now()
	}
	l := s.queue[0]
	if ok, due := l.arrived(now); !ok {
		return nil, due, nil
	}
	s.queue = append(s.queue[:0], s.queue[1:]...)
	if len(s.queue) > 0 {
		notify(s.arrival) // another caller may wait
	}
	l.mu.Lock()
	l.accepted = true
	l.mu.Unlock()
	return l, time.Time{}, nil
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if len(p) > transport.MaxDatagram {
		return fmt.Errorf("datagram of %d bytes: at most %d", len(p), transport.MaxDatagram)
	}
	if err := s.Err(); err != nil {
		return err
	}
	if s.path.cut() {
		return nil
	}
	to := s.peer
	if to.flying.Add(1) > datagramQueue {
		to.flying.Add(-1)
		return nil
	}
	data := append(make([]byte, 0, len(p)), p...)
	d := s.path.flight()
	if d <= 0 {
		to.datagramArrived(data)
		return nil
	}
	time.AfterFunc(d, func() { to.datagramArrived(data) })
	return nil
}

// datagramArrived queues p, or drops it when the queue is full.
func (s *session) datagramArrived(p []byte) {
	s.flying.Add(-1)
	select {
	case s.datagrams <- p:
	default:
	}
}

// ReceiveDatagram implements transport.Session.
func (s *session) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	select {
	case p := <-s.datagrams:
		return p, nil
	default:
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
func (s *session) Peer() transport.Identity { return s.peerID }

func (s *session) LocalAddr() string { return s.local }

func (s *session) RemoteAddr() string { return s.remote }

func (s *session) Done() <-chan struct{} { return s.done }

// Err implements transport.Session.
func (s *session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil // not a nil *CloseError in an interface
	}
	return s.err
}

// Close implements transport.Session.
func (s *session) Close(code uint64, reason string) error {
	reason = bounded(reason)
	if s.end(&transport.CloseError{Code: code, Reason: reason}) {
		s.path.deliver(s.tellPeer)
	}
	return nil
}

// bounded cuts reason to maxReason bytes, at a boundary between characters.
func bounded(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	return strings.ToValidUTF8(reason[:maxReason], "")
}

// tellPeer ends the peer with the cause that ended s here.
func (s *session) tellPeer() {
	var why *transport.CloseError
	if errors.As(s.Err(), &why) && !why.Remote && !why.Timeout && !why.Reset {
		s.peer.end(&transport.CloseError{Remote: true, Code: why.Code, Reason: why.Reason})
	}
}

// healed delivers the close and the streams' bytes that the cut has held back.
func (s *session) healed() {
	s.tellPeer()
	notify(s.arrival)
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.streams {
		l.wake()
	}
}

// end ends this side with why and fails its streams. It reports whether it was
// the first to do so.
func (s *session) end(why *transport.CloseError) bool {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return false
	}
	s.err = why
	streams := s.streams
	s.streams, s.queue = nil, nil
	close(s.done)
	s.mu.Unlock()
	for l := range streams {
		l.fail(s, why)
	}
	if s.onEnd != nil {
		s.onEnd(s)
	}
	return true
}
