// Package transport is the contract between fabricd's engine and the providers
// that carry its bytes between two nodes: sessions, streams and datagrams.
//
// A session is one authenticated association of two fabricd processes. A stream is one ordered,
// reliable, unidirectional stream of bytes inside a session. Streams are independent of each other: a
// stream without a reader must not block another one. Package transporttest verifies the guarantees
// of every provider.
package transport

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// MaxDatagram is the largest datagram, in bytes, that every session carries.
const MaxDatagram = 1000

// Close codes of a session, numbers on the wire: never renumber or reuse one.
const (
	CodeOK           uint64 = 0 // orderly end
	CodeLeaving      uint64 = 1 // the node leaves the cluster
	CodeDuplicate    uint64 = 2 // the pair has another session, which is kept
	CodeIDMismatch   uint64 = 3 // HELLO named another incarnation than this node's
	CodeWrongCluster uint64 = 4
	CodeFenced       uint64 = 5 // the incarnation was removed
	CodeProtocol     uint64 = 6 // the peer violated the protocol
	CodeVersion      uint64 = 7 // no common protocol version
)

// ErrClosed is returned by the methods of a closed provider, session or stream.
var ErrClosed = errors.New("transport closed")

// ErrStreamCanceled is returned by a stream's methods after either side canceled it.
var ErrStreamCanceled = errors.New("stream canceled")

// A CloseError is the way a session ended. It is in the chain of every error that a session or its
// streams return after the end.
type CloseError struct {
	Remote bool   // the peer closed it
	Code   uint64 // CodeOK …; meaningless if Reset or Timeout
	Reason string // text, bounded by 256 bytes

	// Reset is set when the peer's process no longer knows the session: it crashed, and another
	// process or its next incarnation answered.
	Reset bool
	// Timeout is set when the peer stopped answering.
	Timeout bool
}

// Error returns a sentence with the side, the code and the reason.
func (e *CloseError) Error() string {
	switch {
	case e.Reset:
		return "session reset: peer lost its state"
	case e.Timeout:
		return "session timed out: peer is silent"
	}
	side := "here"
	if e.Remote {
		side = "by peer"
	}
	if e.Reason == "" {
		return "session closed " + side
	}
	return "session closed " + side + ": " + e.Reason
}

// Unwrap makes errors.Is(err, ErrClosed) true for every CloseError.
func (e *CloseError) Unwrap() error { return ErrClosed }

// An Identity is the verified content of a peer's certificate.
type Identity struct {
	Cluster addr.UUID
	Node    addr.UUID
	Host    bool // the certificate allows the host role

	Key   [32]byte  // SHA-256 of the certificate's public key (SubjectPublicKeyInfo); zero: unknown to the provider
	Until time.Time // end of the certificate's validity; zero: it has none
}

// A Provider accepts and dials sessions. All methods may be called from any
// goroutine.
type Provider interface {
	// Name returns the provider's short name: "quic", "mem".
	Name() string

	// Attributes returns the attributes of its sessions.
	Attributes() Attributes

	// Addr returns the address, in the form that Dial takes, under which this
	// provider accepts sessions.
	Addr() string

	// Dial opens a session to the provider at address. It returns when both sides have
	// authenticated each other, when ctx is done, or when the peer refused; the error then has the
	// reason.
	Dial(ctx context.Context, address string) (Session, error)

	// Accept returns the next session that a peer has dialed, authenticated.
	Accept(ctx context.Context) (Session, error)

	// Close closes every session with CodeOK and frees the provider's
	// resources. It waits for the provider's goroutines.
	Close() error
}

// A Session is one authenticated association with a peer process.
type Session interface {
	// OpenStream opens a stream towards the peer. The peer sees the stream when the
	// first bytes arrive. It blocks while the peer's limit of open streams is
	// reached.
	OpenStream(ctx context.Context) (SendStream, error)

	// AcceptStream returns the next stream that the peer has opened: streams that were opened and written
	// to one after the other arrive in that order.
	AcceptStream(ctx context.Context) (RecvStream, error)

	// SendDatagram sends p, at most MaxDatagram bytes, at most once and in no
	// order. It does not block; p may be reused when it returns.
	SendDatagram(p []byte) error

	// ReceiveDatagram returns the next datagram; the caller owns it.
	ReceiveDatagram(ctx context.Context) ([]byte, error)

	// Arrived returns a count that changes with received bytes of the peer if its datagrams queue
	// behind those bytes: such bytes prove that the peer is alive, as datagrams do. It stays 0 if
	// datagrams do not queue behind other bytes.
	Arrived() uint64

	// Traffic returns the session's counters. A provider without a network returns zeros.
	Traffic() Traffic

	// Peer returns the verified identity of the peer.
	Peer() Identity

	// LocalAddr and RemoteAddr return the addresses of the two ends, for logs.
	LocalAddr() string
	RemoteAddr() string

	// Close ends the session at once: undelivered bytes are lost. The first call decides the code;
	// later calls do nothing.
	Close(code uint64, reason string) error

	// Done is closed when the session has ended; Err then returns the reason.
	Done() <-chan struct{}
	Err() error
}

// A Traffic is a session's counters since its beginning.
type Traffic struct {
	// Sent and Received are the bytes of all packets, including retransmissions and the provider's
	// own headers, without those of UDP, TCP and IP.
	Sent, Received uint64
	// Packets is the number of sent packets, and Lost of them did not arrive; zeros if the provider
	// does not count them.
	Packets, Lost uint64
}

// A SendStream is the writing end of a stream. One goroutine writes at a time;
// the other methods may be called from any goroutine.
type SendStream interface {
	// Write blocks until the provider has copied p. On error, n < len(p) bytes were accepted.
	io.Writer

	// TryWrite passes all of p to the provider without blocking, or nothing. It reports false if it
	// would have to wait. Callers keep p small (≤ 1 KiB).
	TryWrite(p []byte) (bool, error)

	// SetWriteDeadline makes Writes that are blocked at t, and later ones, fail with an error that
	// is os.ErrDeadlineExceeded. Zero: no deadline.
	SetWriteDeadline(t time.Time) error

	// Close ends the stream after all bytes written: the reader gets them, then
	// io.EOF. It must not be called during a Write.
	Close() error

	// Cancel drops the stream: undelivered bytes may be lost, and the reader gets ErrStreamCanceled. It
	// unblocks a Write. After Close it does nothing.
	Cancel()
}

// A RecvStream is the reading end of a stream. One goroutine reads at a time.
type RecvStream interface {
	// Read returns at least one byte, io.EOF after the writer's Close, or an
	// error. It reads straight into p.
	io.Reader

	// SetReadDeadline is SendStream.SetWriteDeadline for Read.
	SetReadDeadline(t time.Time) error

	// Cancel makes the writer stop and drops received bytes. It unblocks a Read. A stream that was
	// read to io.EOF needs no Cancel.
	Cancel()
}
