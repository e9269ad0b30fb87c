package stream

import (
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/fabricd/fabricd/internal/transport"
)

// A recvStream is the reading end of a stream.
type recvStream struct {
	s        *session
	stream   *yamux.Stream
	canceled atomic.Bool
}

// Read implements transport.RecvStream.
func (l *recvStream) Read(p []byte) (int, error) {
	if l.canceled.Load() {
		return 0, transport.ErrStreamCanceled
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := l.stream.Read(p)
	if n > 0 {
		l.s.conn.took(l.stream.StreamID(), n)
		return n, nil // the next Read returns the error, if there is one
	}
	switch {
	case l.canceled.Load():
		return 0, transport.ErrStreamCanceled
	case err == io.EOF:
		l.s.streamOver(l.stream.StreamID())
		return 0, io.EOF
	case l.s.Err() != nil:
		return 0, l.s.Err()
	case err == yamux.ErrTimeout:
		return 0, os.ErrDeadlineExceeded
	case l.s.mux.IsClosed():
		return 0, l.s.why()
	}
	l.canceled.Store(true) // by the writer
	l.s.streamOver(l.stream.StreamID())
	return 0, transport.ErrStreamCanceled
}

// SetReadDeadline implements transport.RecvStream. yamux loses the credit of bytes that it returns
// after the deadline, if they are half of the stream's window: use a deadline only on a stream that has
// just begun.
func (l *recvStream) SetReadDeadline(t time.Time) error {
	if l.s.Err() != nil {
		return nil // finish has set one
	}
	return l.stream.SetReadDeadline(t)
}

// Cancel implements transport.RecvStream.
func (l *recvStream) Cancel() {
	if l.canceled.Swap(true) {
		return
	}
	l.s.streamOver(l.stream.StreamID())
	l.s.spawn(func() { _ = l.stream.Reset() }) // may block on the connection
}
