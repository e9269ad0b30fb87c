package stream

import (
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/fabricd/fabricd/internal/transport"
)

// laneBuffer is how many bytes a lane accepts without waiting: with yamux's header a frame of its
// largest size.
const laneBuffer = 64<<10 - muxHeader

// buffers belong to lanes that have bytes to write.
var buffers = sync.Pool{New: func() any { return new([laneBuffer]byte) }}

// A sendLane is the writing end of a lane. Write and TryWrite fill buf; while it holds bytes, a
// goroutine passes them to yamux, whose calls block on the connection.
type sendLane struct {
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

func newSendLane(s *session, stream *yamux.Stream) *sendLane {
	return &sendLane{s: s, stream: stream, room: make(chan struct{}, 1)}
}

// Write implements transport.SendLane.
func (l *sendLane) Write(p []byte) (n int, err error) {
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

// TryWrite implements transport.SendLane.
func (l *sendLane) TryWrite(p []byte) (bool, error) {
	n, _, err := l.take(p, true)
	return err == nil && n == len(p), err
}

// take copies as many bytes of p into the buffer as fit; with all, all or nothing.
func (l *sendLane) take(p []byte, all bool) (n int, deadline time.Time, err error) {
	if err := l.s.Err(); err != nil {
		return 0, deadline, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.canceled:
		return 0, deadline, transport.ErrLaneCanceled
	case l.closed:
		return 0, deadline, transport.ErrClosed
	case !all && !l.deadline.IsZero() && !time.Now().Before(l.deadline):
		return 0, deadline, os.ErrDeadlineExceeded
	case all && len(p) > laneBuffer-len(l.buf):
		return 0, deadline, nil
	}
	if n = min(len(p), laneBuffer-len(l.buf)); n > 0 {
		if l.buf == nil {
			l.buf = buffers.Get().(*[laneBuffer]byte)[:0]
		}
		l.buf = append(l.buf, p[:n]...)
		l.flushLocked()
	}
	return n, l.deadline, nil
}

// wait waits until take may succeed, or fail.
func (l *sendLane) wait(deadline time.Time) error {
	var late <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-l.room:
	case <-late:
	case <-l.s.done:
		return l.s.Err()
	}
	return nil
}

// flushLocked ensures that a goroutine flushes. mu is held.
func (l *sendLane) flushLocked() {
	if !l.flushing {
		l.flushing = true
		l.s.spawn(l.flush)
	}
}

// flush passes written bytes to yamux, and then the lane's end, if it was closed.
func (l *sendLane) flush() {
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
		token(l.room)
		_, err := l.stream.Write(buf)
		buffers.Put((*[laneBuffer]byte)(buf[:laneBuffer]))
		if err != nil && l.s.mux.IsClosed() {
			<-l.s.done
		} else if err != nil { // by the reader
			l.mu.Lock()
			l.canceled = true
			l.mu.Unlock()
		}
		token(l.room)
	}
}

// SetWriteDeadline implements transport.SendLane.
func (l *sendLane) SetWriteDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	token(l.room)
	return nil
}

// Close implements transport.SendLane.
func (l *sendLane) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && !l.canceled {
		l.closed = true
		l.flushLocked()
	}
	return nil
}

// Cancel implements transport.SendLane.
func (l *sendLane) Cancel() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.canceled {
		return
	}
	l.canceled = true
	_ = l.stream.SetWriteDeadline(longAgo) // wakes flush
	l.flushLocked()
	token(l.room)
}
