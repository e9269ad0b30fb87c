package quic

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	quicgo "github.com/quic-go/quic-go"
)

// canceled is the error code of a canceled stream. Peers need no other code.
const canceled quicgo.StreamErrorCode = 0

// A sendLane is the sending half of a stream.
type sendLane struct {
	stream *quicgo.SendStream
	closed atomic.Bool // Cancel after Close must not drop written bytes
}

// Write implements transport.SendLane.
func (l *sendLane) Write(p []byte) (int, error) {
	n, err := l.stream.Write(p)
	if err != nil {
		err = laneError(err)
	}
	return n, err
}

// TryWrite implements transport.SendLane. Its accepted but unsent bytes are bounded by the stream's
// window.
func (l *sendLane) TryWrite(p []byte) (bool, error) {
	err := l.stream.TryWriteAll(p)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, quicgo.ErrWouldBlock):
		return false, nil
	}
	return false, laneError(err)
}

// SetWriteDeadline implements transport.SendLane.
func (l *sendLane) SetWriteDeadline(t time.Time) error { return l.stream.SetWriteDeadline(t) }

// Close implements transport.SendLane.
func (l *sendLane) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	// The only error is that the lane was canceled: then it has ended already.
	_ = l.stream.Close()
	return nil
}

// Cancel implements transport.SendLane.
func (l *sendLane) Cancel() {
	if !l.closed.Load() {
		l.stream.CancelWrite(canceled)
	}
}

// A recvLane is the receiving half of a stream.
type recvLane struct{ stream *quicgo.ReceiveStream }

// Read implements transport.RecvLane.
func (l *recvLane) Read(p []byte) (int, error) {
	n, err := l.stream.Read(p)
	if n > 0 || err == nil {
		return n, nil // the next Read returns the error, if there is one
	}
	if err == io.EOF {
		return 0, err
	}
	return 0, laneError(err)
}

// SetReadDeadline implements transport.RecvLane.
func (l *recvLane) SetReadDeadline(t time.Time) error { return l.stream.SetReadDeadline(t) }

// Cancel implements transport.RecvLane.
func (l *recvLane) Cancel() { l.stream.CancelRead(canceled) }
