package stream

import (
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/fabricd/fabricd/internal/transport"
)

// A recvLane is the reading end of a lane.
type recvLane struct {
	s        *session
	stream   *yamux.Stream
	canceled atomic.Bool
}

// Read implements transport.RecvLane.
func (l *recvLane) Read(p []byte) (int, error) {
	if l.canceled.Load() {
		return 0, transport.ErrLaneCanceled
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
		return 0, transport.ErrLaneCanceled
	case err == io.EOF:
		l.s.laneOver(l.stream.StreamID())
		return 0, io.EOF
	case l.s.Err() != nil:
		return 0, l.s.Err()
	case err == yamux.ErrTimeout:
		return 0, os.ErrDeadlineExceeded
	case l.s.mux.IsClosed():
		return 0, l.s.why()
	}
	l.canceled.Store(true) // by the writer
	l.s.laneOver(l.stream.StreamID())
	return 0, transport.ErrLaneCanceled
}

// SetReadDeadline implements transport.RecvLane. yamux loses the credit of bytes that it returns
// after the deadline, if they are half of the lane's window: use a deadline only on a lane that has
// just begun.
func (l *recvLane) SetReadDeadline(t time.Time) error {
	if l.s.Err() != nil {
		return nil // finish has set one
	}
	return l.stream.SetReadDeadline(t)
}

// Cancel implements transport.RecvLane.
func (l *recvLane) Cancel() {
	if l.canceled.Swap(true) {
		return
	}
	l.s.laneOver(l.stream.StreamID())
	l.s.spawn(func() { _ = l.stream.Reset() }) // may block on the connection
}
