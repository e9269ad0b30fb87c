package mem

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wait"
)

// A stream is one direction of bytes from one session to its peer. Its two ends
// are *sendStream and *recvStream, the same memory under two method sets.
type stream struct {
	writer, reader end
	begin          sync.Once // queues the stream at the peer's session

	mu       sync.Mutex   // guards the fields below and those of the ends
	data     bytes.Buffer // written, not read
	fin      bool         // the writer has closed
	released bool         // the place among the open streams is given back
}

// An end is the state of a stream's writer or reader.
type end struct {
	session  *session
	changed  chan struct{} // holds a token when a call that waits should look again
	deadline time.Time
	canceled bool  // at either end
	over     error // io.EOF that was read, transport.ErrClosed after Close
}

// sendStream and recvStream are the two ends of a stream.
type (
	sendStream stream
	recvStream stream
)

func newStream(from, to *session) *stream {
	return &stream{
		writer: end{session: from, changed: make(chan struct{}, 1)},
		reader: end{session: to, changed: make(chan struct{}, 1)},
	}
}

// err returns why the end cannot go on. The stream's lock is held.
func (e *end) err() error {
	switch {
	case e.over != nil:
		return e.over
	case e.session.Err() != nil:
		return e.session.Err()
	case e.canceled:
		return transport.ErrStreamCanceled
	case !e.deadline.IsZero() && !time.Now().Before(e.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// wait returns when the end has changed, its session has ended, or at deadline, unless that is
// zero.
func (e *end) wait(deadline time.Time) {
	select {
	case <-e.changed:
	case <-e.session.done:
	case <-wait.At(deadline):
	}
}

// Write copies p into the stream's buffer, waiting for room.
func (s *sendStream) Write(p []byte) (int, error) {
	l := (*stream)(s)
	done := 0
	for {
		n, deadline, err := l.write(p[done:], false)
		if done += n; err != nil || done == len(p) {
			return done, err
		}
		l.writer.wait(deadline)
	}
}

// TryWrite copies all of p into the stream's buffer if it fits.
func (s *sendStream) TryWrite(p []byte) (bool, error) {
	n, _, err := (*stream)(s).write(p, true)
	return err == nil && n == len(p), err
}

// write takes as much of p as there is room for, or with whole all or nothing. It returns
// the deadline too.
func (l *stream) write(p []byte, whole bool) (n int, deadline time.Time, err error) {
	from := l.writer.session
	l.mu.Lock()
	deadline, err = l.writer.deadline, l.writer.err()
	if err == nil {
		n = min(len(p), from.owner.hub.cfg.StreamBuffer-l.data.Len())
	}
	if n == 0 || whole && n < len(p) {
		l.mu.Unlock()
		return 0, deadline, err
	}
	l.data.Write(p[:n])
	l.mu.Unlock()
	wait.Notify(l.reader.changed)
	l.start()
	return n, deadline, nil
}

// start queues a stream of which the first bytes, or the end, are sent: streams are accepted in this
// order, as QUIC's streams are, however long the first bytes of each take.
func (l *stream) start() { l.begin.Do(func() { l.reader.session.PutStream((*recvStream)(l)) }) }

// SetWriteDeadline implements transport.SendStream.
func (s *sendStream) SetWriteDeadline(t time.Time) error {
	return (*stream)(s).setDeadline(&s.writer, t)
}

func (l *stream) setDeadline(e *end, t time.Time) error {
	l.mu.Lock()
	e.deadline = t
	l.mu.Unlock()
	wait.Notify(e.changed)
	return nil
}

// Close lets the reader see io.EOF after all written bytes.
func (s *sendStream) Close() error {
	l := (*stream)(s)
	l.mu.Lock()
	if l.writer.over != nil || l.writer.canceled {
		l.mu.Unlock()
		return s.writer.session.Err()
	}
	l.writer.over, l.fin = transport.ErrClosed, true
	l.mu.Unlock()
	wait.Notify(l.reader.changed)
	l.start()
	return s.writer.session.Err()
}

// Cancel drops bytes not yet read and wakes both ends.
func (s *sendStream) Cancel() { (*stream)(s).cancel(&s.writer, &s.reader) }

// cancel cancels the stream at both ends, unless it is over here.
func (l *stream) cancel(here, there *end) {
	l.mu.Lock()
	if here.over != nil || here.canceled {
		l.mu.Unlock()
		return
	}
	here.canceled, there.canceled = true, true
	l.releaseLocked()
	l.mu.Unlock()
	wait.Notify(here.changed)
	wait.Notify(there.changed)
}

// releaseLocked gives the stream's place among the open streams back. The caller holds mu.
func (l *stream) releaseLocked() {
	if !l.released {
		l.released = true
		<-l.writer.session.slots
	}
}

// Read copies out of the stream's buffer, waiting for at least one byte.
func (r *recvStream) Read(p []byte) (int, error) {
	l := (*stream)(r)
	for {
		n, deadline, err := l.read(p)
		if n > 0 {
			wait.Notify(l.writer.changed)
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		l.reader.wait(deadline)
	}
}

// read is the counterpart of write.
func (l *stream) read(p []byte) (n int, deadline time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.reader.err(); err != nil {
		return 0, deadline, err
	}
	if n = min(len(p), l.data.Len()); n > 0 {
		n, err = l.data.Read(p[:n])
	} else if l.fin {
		l.reader.over, err = io.EOF, io.EOF
		l.releaseLocked()
	}
	return n, l.reader.deadline, err
}

// SetReadDeadline implements transport.RecvStream.
func (r *recvStream) SetReadDeadline(t time.Time) error {
	return (*stream)(r).setDeadline(&r.reader, t)
}

// Cancel drops bytes that have arrived and wakes both ends.
func (r *recvStream) Cancel() {
	(*stream)(r).cancel(&r.reader, &r.writer)
}
