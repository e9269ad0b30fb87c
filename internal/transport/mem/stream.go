package mem

import (
	"io"
	"math/bits"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// firstBuffer is the size at which a stream's buffer starts; it doubles, as the
// reader lags, up to Config.StreamBuffer.
const firstBuffer = 4 << 10

// A stream is one direction of bytes from one session to its peer. Its two ends
// are *sendStream and *recvStream, the same memory under two method sets.
type stream struct {
	from, to *session
	readable chan struct{} // holds a token when something changed for the reader
	writable chan struct{} // the same for the writer

	readTimer  *time.Timer // made on use, by the reader, and only used there
	writeTimer *time.Timer // the same for the writer

	mu   sync.Mutex // guards the fields below; taken after a session's mu
	buf  []byte     // ring; its length is a power of two
	r, w uint64     // bytes ever read and written; w-r are in buf

	// marks are the times until which bytes are in flight, if the path has a delay.
	marks []mark

	readDeadline, writeDeadline time.Time

	fin        event // the writer's Close
	sendCancel event // the writer's Cancel
	recvCancel event // the reader's Cancel
	sendErr    error // the end of the session from
	recvErr    error // the end of the session to

	announced bool // the peer's AcceptStream knows it
	accepted  bool
	eof       bool // the reader has seen the end
	released  bool // the place among the open streams is given back
}

// A mark is the time due at which the bytes before upTo become visible.
type mark struct {
	upTo uint64
	due  time.Time
}

// An event happens at one end and is visible at the other: at once if prompt,
// else from due on while the path is not cut.
type event struct {
	happened, prompt bool
	due              time.Time
}

// sendStream and recvStream are the two ends of a stream.
type (
	sendStream stream
	recvStream stream
)

func newStream(from, to *session) *stream {
	return &stream{
		from: from, to: to,
		readable: make(chan struct{}, 1),
		writable: make(chan struct{}, 1),
	}
}

// Write copies p into the stream's buffer, waiting for room.
func (s *sendStream) Write(p []byte) (int, error) {
	l := (*stream)(s)
	done := 0
	for {
		n, until, err := l.write(p[done:], false)
		done += n
		if err != nil || done == len(p) {
			return done, err
		}
		if n == 0 {
			l.writeTimer = wait(l.writable, until, l.writeTimer)
		}
	}
}

// TryWrite copies all of p into the stream's buffer if it fits now.
func (s *sendStream) TryWrite(p []byte) (bool, error) {
	n, _, err := (*stream)(s).write(p, true)
	return err == nil && n == len(p), err
}

// write takes as much of p as there is room for, or with whole all or nothing.
// If it took nothing, it returns when at the latest to look again, zero for
// never.
func (l *stream) write(p []byte, whole bool) (n int, until time.Time, err error) {
	l.mu.Lock()
	now := l.now(l.writeDeadline)
	if err := l.writeError(now); err != nil {
		l.mu.Unlock()
		if err == transport.ErrStreamCanceled {
			l.from.forget(l)
		}
		return 0, time.Time{}, err
	}
	n = min(len(p), l.room())
	if whole && n < len(p) {
		n = 0
	}
	if n == 0 {
		until = l.writeDeadline
		if !l.from.path.cut() { // Heal wakes the streams
			until = earlier(until, l.recvCancel.due)
		}
		l.mu.Unlock()
		return 0, until, nil
	}
	l.put(p[:n])
	if l.from.path.slow() {
		l.marks = append(l.marks, mark{l.w, l.notBefore(now.Add(l.from.path.flight()))})
	}
	l.unlockNews()
	return n, time.Time{}, nil
}

// unlockNews unlocks l.mu and wakes the reader. The first call announces
// the stream to the receiving session.
func (l *stream) unlockNews() {
	announce := !l.announced
	l.announced = true
	l.mu.Unlock()
	notify(l.readable)
	if announce {
		l.to.announce(l)
	}
}

// writeError returns why no byte can be written at now. l.mu is held.
func (l *stream) writeError(now time.Time) error {
	switch {
	case l.sendErr != nil:
		return l.sendErr
	case l.sendCancel.happened || l.seen(l.recvCancel, now):
		return transport.ErrStreamCanceled
	case l.fin.happened:
		return transport.ErrClosed
	case !l.writeDeadline.IsZero() && !now.Before(l.writeDeadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// SetWriteDeadline implements transport.SendStream.
func (s *sendStream) SetWriteDeadline(t time.Time) error {
	l := (*stream)(s)
	l.mu.Lock()
	l.writeDeadline = t
	l.mu.Unlock()
	notify(l.writable)
	return nil
}

// Close lets the reader see io.EOF after all written bytes.
func (s *sendStream) Close() error {
	l := (*stream)(s)
	l.mu.Lock()
	if l.sendErr != nil || l.sendCancel.happened || l.fin.happened {
		err := l.sendErr
		l.mu.Unlock()
		return err
	}
	l.fin = l.eventNow()
	l.unlockNews()
	return nil
}

// Cancel drops bytes not yet read and wakes both ends.
func (s *sendStream) Cancel() {
	l := (*stream)(s)
	l.cancel(&l.sendCancel, &l.fin.happened, l.from, l.to)
}

// cancel makes how happen for its end, own, unless that is over.
func (l *stream) cancel(how *event, over *bool, own, other *session) {
	l.mu.Lock()
	if how.happened || *over {
		l.mu.Unlock()
		return
	}
	*how = l.eventNow()
	prompt := how.prompt
	l.mu.Unlock()
	l.wake()
	own.forget(l)
	if prompt {
		other.forget(l)
	} // else the other end needs to be woken when the path heals
	l.release()
}

// Read copies out of the stream's buffer, waiting for at least one byte.
func (r *recvStream) Read(p []byte) (int, error) {
	l := (*stream)(r)
	for {
		n, until, err := l.read(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		l.readTimer = wait(l.readable, until, l.readTimer)
	}
}

// read is the counterpart of write.
func (l *stream) read(p []byte) (n int, until time.Time, err error) {
	l.mu.Lock()
	now := l.now(l.readDeadline)
	if err := l.readError(now); err != nil {
		l.mu.Unlock()
		if err == transport.ErrStreamCanceled {
			l.to.forget(l)
		}
		return 0, time.Time{}, err
	}
	if n = min(len(p), l.visible(now)); n > 0 {
		l.get(p[:n])
		l.mu.Unlock()
		notify(l.writable)
		return n, time.Time{}, nil
	}
	if l.r == l.w && l.seen(l.fin, now) {
		l.eof = true
		l.mu.Unlock()
		l.from.forget(l)
		l.to.forget(l)
		l.release()
		return 0, time.Time{}, io.EOF
	}
	until = earlier(l.readDeadline, l.due())
	l.mu.Unlock()
	return 0, until, nil
}

// readError returns why no byte can be read at now. l.mu is held.
func (l *stream) readError(now time.Time) error {
	switch {
	case l.eof:
		return io.EOF
	case l.recvErr != nil:
		return l.recvErr
	case l.recvCancel.happened || l.seen(l.sendCancel, now):
		return transport.ErrStreamCanceled
	case !l.readDeadline.IsZero() && !now.Before(l.readDeadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// SetReadDeadline implements transport.RecvStream.
func (r *recvStream) SetReadDeadline(t time.Time) error {
	l := (*stream)(r)
	l.mu.Lock()
	l.readDeadline = t
	l.mu.Unlock()
	notify(l.readable)
	return nil
}

// Cancel drops bytes that have arrived and wakes both ends.
func (r *recvStream) Cancel() {
	l := (*stream)(r)
	l.cancel(&l.recvCancel, &l.eof, l.to, l.from)
}

// fail ends the stream at the side of s, whose session has ended with err.
func (l *stream) fail(s *session, err error) {
	l.mu.Lock()
	if s == l.from {
		l.sendErr = err
	}
	if s == l.to {
		l.recvErr = err
	}
	l.mu.Unlock()
	l.wake()
}

// release gives the stream's place among the open streams back, once it has ended
// and the peer does not have it in its queue of streams to accept.
func (l *stream) release() {
	l.mu.Lock()
	ended := l.eof || l.sendCancel.happened || l.recvCancel.happened
	if l.released || !ended || l.announced && !l.accepted {
		l.mu.Unlock()
		return
	}
	l.released = true
	l.buf, l.marks, l.r, l.w = nil, nil, 0, 0
	l.mu.Unlock()
	<-l.from.slots
}

// arrived reports whether AcceptStream may return the stream at now, else when it
// will, zero for unknown.
func (l *stream) arrived(now time.Time) (bool, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.visible(now) > 0 || l.seen(l.fin, now) || l.seen(l.sendCancel, now) {
		return true, time.Time{}
	}
	return false, l.due()
}

// wake wakes both ends.
func (l *stream) wake() {
	notify(l.readable)
	notify(l.writable)
}

// now reads the clock if anything depends on it. l.mu is held.
func (l *stream) now(deadline time.Time) time.Time {
	if deadline.IsZero() && !l.from.path.slow() {
		return time.Time{}
	}
	return time.Now()
}

// eventNow returns an event that happens now. l.mu is held.
func (l *stream) eventNow() event {
	path := l.from.path
	if !path.slow() {
		return event{happened: true, prompt: !path.cut()}
	}
	return event{happened: true, due: l.notBefore(time.Now().Add(path.flight()))}
}

// notBefore keeps the order of the stream: no byte becomes visible before those
// sent earlier.
func (l *stream) notBefore(due time.Time) time.Time {
	if k := len(l.marks); k > 0 && due.Before(l.marks[k-1].due) {
		return l.marks[k-1].due
	}
	return due
}

// seen reports whether the other end sees e at now.
func (l *stream) seen(e event, now time.Time) bool {
	return e.prompt || e.happened && !l.from.path.cut() && !now.Before(e.due)
}

// visible returns how many bytes the reader may have at now. l.mu is held.
func (l *stream) visible(now time.Time) int {
	if l.from.path.cut() {
		return 0
	}
	if !l.from.path.slow() {
		return int(l.w - l.r)
	}
	upTo := l.r
	for _, m := range l.marks {
		if now.Before(m.due) {
			break
		}
		upTo = max(upTo, m.upTo)
	}
	return int(upTo - l.r)
}

// due returns when something in flight becomes visible, zero if nothing is.
func (l *stream) due() time.Time {
	if l.from.path.cut() {
		return time.Time{} // Heal wakes the streams
	}
	t := earlier(l.sendCancel.due, l.fin.due)
	if len(l.marks) > 0 {
		t = earlier(l.sendCancel.due, l.marks[0].due)
	}
	return t
}

// room returns how many bytes fit.
func (l *stream) room() int { return l.from.cfg.StreamBuffer - int(l.w-l.r) }

// put appends p, which fits, to the ring.
func (l *stream) put(p []byte) {
	if need := int(l.w-l.r) + len(p); need > len(l.buf) {
		l.grow(need)
	}
	at := int(l.w) & (len(l.buf) - 1)
	k := copy(l.buf[at:], p)
	copy(l.buf, p[k:])
	l.w += uint64(len(p))
}

// get takes len(p) bytes from the ring.
func (l *stream) get(p []byte) {
	at := int(l.r) & (len(l.buf) - 1)
	k := copy(p, l.buf[at:])
	copy(p[k:], l.buf)
	l.r += uint64(len(p))
	done := 0
	for done < len(l.marks) && l.marks[done].upTo <= l.r {
		done++
	}
	l.marks = l.marks[done:]
}

// grow makes the ring hold need bytes, at least one.
func (l *stream) grow(need int) {
	buf := make([]byte, max(firstBuffer, powerOfTwo(need)))
	for i := l.r; i < l.w; { // at most two pieces
		from, to := int(i)&(len(l.buf)-1), int(i)&(len(buf)-1)
		piece := min(int(l.w-i), len(l.buf)-from, len(buf)-to)
		copy(buf[to:to+piece], l.buf[from:])
		i += uint64(piece)
	}
	l.buf = buf
}

// powerOfTwo returns the least power of two that is at least n, which is positive.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// notify puts a token into ch, which holds one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// wait returns at a token in ch or at until, unless that is zero. It returns
// the timer for the next wait.
func wait(ch <-chan struct{}, until time.Time, t *time.Timer) *time.Timer {
	if until.IsZero() {
		<-ch
		return t
	}
	if t == nil {
		t = time.NewTimer(time.Until(until))
	} else {
		t.Reset(time.Until(until))
	}
	select {
	case <-ch:
		t.Stop()
	case <-t.C:
	}
	return t
}

// earlier returns the earlier of two times; a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
