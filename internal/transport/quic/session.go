package quic

import (
	"context"
	"fmt"
	"sync/atomic"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// datagramQueue bounds the datagrams queued for sending: quic-go's own queue blocks when it is
// full. Further ones are dropped.
const datagramQueue = 64

// A session is one QUIC connection whose ends have confirmed each other.
type session struct {
	conn  *quicgo.Conn
	peer  transport.Identity
	tails *tails
	queue chan []byte       // datagrams to send; the pump goroutine empties it
	free  chan []byte       // buffers of the queue, for reuse
	asked chan acknowledged // signals the watch that a datagram is sent
	again atomic.Uint64     // bytes that the watch has resent
}

func newSession(conn *quicgo.Conn, peer transport.Identity, tails *tails) *session {
	return &session{
		conn:  conn,
		peer:  peer,
		tails: tails,
		queue: make(chan []byte, datagramQueue),
		free:  make(chan []byte, datagramQueue),
		asked: make(chan acknowledged, 1),
	}
}

// pump sends the queued datagrams until the connection ends.
func (s *session) pump() {
	ended := s.conn.Context().Done()
	for {
		select {
		case p := <-s.queue:
			// An error is either the end of the connection, seen below, or a path too small for the
			// datagram, which is then lost.
			_ = s.conn.SendDatagram(p)
			select {
			case s.free <- p:
			default:
			}
		case <-ended:
			return
		}
	}
}

// OpenStream implements transport.Session.
func (s *session) OpenStream(ctx context.Context) (transport.SendStream, error) {
	stream, err := s.conn.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, s.waitError(ctx, "open stream", err)
	}
	return &sendStream{stream: stream}, nil
}

// AcceptStream implements transport.Session.
func (s *session) AcceptStream(ctx context.Context) (transport.RecvStream, error) {
	stream, err := s.conn.AcceptUniStream(ctx)
	if err != nil {
		return nil, s.waitError(ctx, "accept stream", err)
	}
	return &recvStream{stream}, nil
}

// Traffic implements transport.Session.
func (s *session) Traffic() transport.Traffic {
	st := s.conn.ConnectionStats()
	return transport.Traffic{Sent: st.BytesSent + s.again.Load(), Received: st.BytesReceived, Packets: st.PacketsSent, Lost: st.PacketsLost}
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if len(p) > transport.MaxDatagram {
		return fmt.Errorf("datagram of %d bytes: at most %d", len(p), transport.MaxDatagram)
	}
	if err := s.Err(); err != nil {
		return err
	}
	var buf []byte
	select {
	case buf = <-s.free:
	default:
		buf = make([]byte, 0, transport.MaxDatagram)
	}
	s.ask()
	select {
	case s.queue <- append(buf[:0], p...):
	default: // full: a datagram may be lost
	}
	return nil
}

// ReceiveDatagram implements transport.Session.
func (s *session) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	p, err := s.conn.ReceiveDatagram(ctx)
	if err != nil {
		return nil, s.waitError(ctx, "receive datagram", err)
	}
	return p, nil
}

// waitError returns the session's end or that of ctx, whichever ended a wait.
func (s *session) waitError(ctx context.Context, what string, err error) error {
	if end := s.Err(); end != nil {
		return end
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	return closeError(err)
}

// Arrived implements transport.Session: datagrams overtake the bytes of streams.
func (s *session) Arrived() uint64 { return 0 }

// Peer, LocalAddr, RemoteAddr and Done implement transport.Session.
func (s *session) Peer() transport.Identity { return s.peer }

func (s *session) LocalAddr() string { return s.conn.LocalAddr().String() }

func (s *session) RemoteAddr() string { return s.conn.RemoteAddr().String() }

func (s *session) Done() <-chan struct{} { return s.conn.Context().Done() }

// Err implements transport.Session.
func (s *session) Err() error {
	if s.conn.Context().Err() == nil {
		return nil
	}
	return closeError(context.Cause(s.conn.Context()))
}

// Close implements transport.Session.
func (s *session) Close(code uint64, reason string) error {
	return s.conn.CloseWithError(quicgo.ApplicationErrorCode(code), network.Bounded(reason))
}
