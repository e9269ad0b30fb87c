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

// A sendStream is the sending half of a stream.
type sendStream struct {
	stream *quicgo.SendStream
	closed atomic.Bool // Cancel after Close must not drop written bytes
}

// Write implements transport.SendStream.
func (l *sendStream) Write(p []byte) (int, error) {
	n, err := l.stream.Write(p)
	if err != nil {
		err = streamError(err)
	}
	return n, err
}

// TryWrite implements transport.SendStream. Its accepted but unsent bytes are bounded by the stream's
// window.
func (l *sendStream) TryWrite(p []byte) (bool, error) {
	err := l.stream.TryWriteAll(p)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, quicgo.ErrWouldBlock):
		return false, nil
	}
	return false, streamError(err)
}

// SetWriteDeadline implements transport.SendStream.
func (l *sendStream) SetWriteDeadline(t time.Time) error { return l.stream.SetWriteDeadline(t) }

// Close implements transport.SendStream.
func (l *sendStream) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	// The only error is that the stream was canceled: then it has ended already.
	_ = l.stream.Close()
	return nil
}

// Cancel implements transport.SendStream.
func (l *sendStream) Cancel() {
	if !l.closed.Load() {
		l.stream.CancelWrite(canceled)
	}
}

// A recvStream is the receiving half of a stream.
type recvStream struct{ stream *quicgo.ReceiveStream }

// Read implements transport.RecvStream.
func (l *recvStream) Read(p []byte) (int, error) {
	n, err := l.stream.Read(p)
	if n > 0 || err == nil {
		return n, nil // the next Read returns the error, if there is one
	}
	if err == io.EOF {
		return 0, err
	}
	return 0, streamError(err)
}

// SetReadDeadline implements transport.RecvStream.
func (l *recvStream) SetReadDeadline(t time.Time) error { return l.stream.SetReadDeadline(t) }

// Cancel implements transport.RecvStream.
func (l *recvStream) Cancel() { l.stream.CancelRead(canceled) }
