package stream

import (
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wait"
)

// streamBuffer is how many bytes a stream accepts without waiting: with yamux's header a frame of its
// largest size.
const streamBuffer = 64<<10 - muxHeader

// buffers belong to streams that have bytes to write.
var buffers = sync.Pool{New: func() any { return new([streamBuffer]byte) }}

// A sendStream is the writing end of a stream. Write and TryWrite fill buf; while it holds bytes, a
// goroutine passes them to yamux, whose calls block on the connection.
type sendStream struct {
	s      *session
	stream *yamux.Stream
	room   chan struct{} // holds a token when a Write should retry

	mu       sync.Mutex // guards the fields below
	buf      []byte
	flushing bool
	closed   bool
	canceled bool // by either side
	deadline time.Time
}

func newSendStream(s *session, stream *yamux.Stream) *sendStream {
	return &sendStream{s: s, stream: stream, room: make(chan struct{}, 1)}
}

// Write implements transport.SendStream.
func (l *sendStream) Write(p []byte) (n int, err error) {
	for {
		k, deadline, err := l.take(p[n:], false)
		if n += k; err != nil || n == len(p) {
			return n, err
		}
		if err := l.wait(deadline); err != nil {
			return n, err
		}
	}
}

// TryWrite implements transport.SendStream.
func (l *sendStream) TryWrite(p []byte) (bool, error) {
	n, _, err := l.take(p, true)
	return err == nil && n == len(p), err
}

// take copies as many bytes of p into the buffer as fit; with all, all or nothing.
func (l *sendStream) take(p []byte, all bool) (n int, deadline time.Time, err error) {
	if err := l.s.Err(); err != nil {
		return 0, deadline, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.canceled:
		return 0, deadline, transport.ErrStreamCanceled
	case l.closed:
		return 0, deadline, transport.ErrClosed
	case !all && !l.deadline.IsZero() && !time.Now().Before(l.deadline):
		return 0, deadline, os.ErrDeadlineExceeded
	case all && len(p) > streamBuffer-len(l.buf):
		return 0, deadline, nil
	}
	if n = min(len(p), streamBuffer-len(l.buf)); n > 0 {
		if l.buf == nil {
			l.buf = buffers.Get().(*[streamBuffer]byte)[:0]
		}
		l.buf = append(l.buf, p[:n]...)
		l.flushLocked()
	}
	return n, l.deadline, nil
}

// wait waits until take may succeed, or fail.
func (l *sendStream) wait(deadline time.Time) error {
	select {
	case <-l.room:
	case <-wait.At(deadline):
	case <-l.s.done:
		return l.s.Err()
	}
	return nil
}

// flushLocked ensures that a goroutine flushes. mu is held.
func (l *sendStream) flushLocked() {
	if !l.flushing {
		l.flushing = true
		l.s.spawn(l.flush)
	}
}

// flush passes written bytes to yamux, and then the stream's end, if it was closed.
func (l *sendStream) flush() {
	for {
		l.mu.Lock()
		buf := l.buf
		l.buf = nil
		if l.canceled || len(buf) == 0 {
			l.flushing = false
			closed, canceled := l.closed, l.canceled
			l.mu.Unlock()
			switch {
			case canceled:
				_ = l.stream.Reset()
			case closed:
				_ = l.stream.CloseWrite()
			}
			return
		}
		l.mu.Unlock()
		wait.Notify(l.room)
		_, err := l.stream.Write(buf)
		buffers.Put((*[streamBuffer]byte)(buf[:streamBuffer]))
		if err != nil && l.s.mux.IsClosed() {
			<-l.s.done
		} else if err != nil { // by the reader
			l.mu.Lock()
			l.canceled = true
			l.mu.Unlock()
		}
		wait.Notify(l.room)
	}
}

// SetWriteDeadline implements transport.SendStream.
func (l *sendStream) SetWriteDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	wait.Notify(l.room)
	return nil
}

// Close implements transport.SendStream.
func (l *sendStream) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && !l.canceled {
		l.closed = true
		l.flushLocked()
	}
	return nil
}

// Cancel implements transport.SendStream.
func (l *sendStream) Cancel() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.canceled {
		return
	}
	l.canceled = true
	_ = l.stream.SetWriteDeadline(longAgo) // wakes flush
	l.flushLocked()
	wait.Notify(l.room)
}
