package inject

import (
	"errors"
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// trafficOf returns the traffic of a stream by its first byte.
func trafficOf(first []byte) faults.Traffic {
	switch t, _ := wire.TypeOf(first); t {
	case wire.TypeStream:
		return faults.Messages
	case wire.TypeConnect, wire.TypeAccept:
		return faults.RMA
	}
	return faults.Link
}

// A linkStream is one end of a stream of a session, sending or receiving, under the rules.
type linkStream struct {
	s      *session
	peer   peer
	dir    *direction
	cancel func() // of the stream below
}

// begin completes d, the direction of a stream whose traffic is not known yet, and registers it.
func (l *linkStream) begin(s *session, d *direction, cancel func()) {
	l.s, l.dir, l.cancel = s, d, cancel
	l.peer.layer, l.peer.below, l.peer.peers = s.layer, s.peer.below, s.peer.peers
	l.peer.setTraffic(faults.Link)
	d.peer, d.stop = &l.peer, s.ctx.Done()
	d.first = func(p []byte) { l.peer.setTraffic(trafficOf(p)) }
	d.onFail = func(err error) error { return streamError(err, s.Err) }
	s.adopt(l)
}

// Cancel implements transport.SendStream and RecvStream. Bytes before a Close go on.
func (l *linkStream) Cancel() {
	if l.dir.sending && l.dir.queue.finished() {
		return
	}
	l.dir.interrupt(transport.ErrStreamCanceled)
	l.s.pass(l.cancel)
	l.s.release(l)
}

func (l *linkStream) poke() {
	l.dir.queue.changed.Fire()
	if l.peer.gate(l.dir.sending, false).Reset {
		l.peer.gate(l.dir.sending, true)
		l.Cancel()
	}
}

func (l *linkStream) abort() {
	err := l.s.Err()
	if err == nil {
		err = transport.ErrClosed
	}
	l.dir.interrupt(err)
}

// A sendStream is the sending end of a stream under the rules.
type sendStream struct {
	linkStream
	inner transport.SendStream
	out   sendDirection
}

func newSendStream(s *session, inner transport.SendStream) *sendStream {
	l := &sendStream{inner: inner}
	l.out = sendDirection{to: inner, order: &s.order, direction: direction{sending: true, setBelow: inner.SetWriteDeadline}}
	l.out.onEnd = func() { _ = inner.Close(); s.release(&l.linkStream) } // its only error is a stream that has ended
	l.begin(s, &l.out.direction, inner.Cancel)
	return l
}

// Write implements transport.SendStream.
func (l *sendStream) Write(p []byte) (int, error) { return l.out.Write(p) }

// TryWrite implements transport.SendStream.
func (l *sendStream) TryWrite(p []byte) (bool, error) { return l.out.try(p, l.inner.TryWrite) }

// SetWriteDeadline implements transport.SendStream.
func (l *sendStream) SetWriteDeadline(t time.Time) error { return l.out.setDeadline(t) }

// Close implements transport.SendStream.
func (l *sendStream) Close() error {
	l.out.finish()
	return nil
}

// A recvStream is the receiving end of a stream under the rules.
type recvStream struct {
	linkStream
	in recvDirection
}

func newRecvStream(s *session, inner transport.RecvStream) *recvStream {
	l := &recvStream{in: recvDirection{from: inner, direction: direction{setBelow: inner.SetReadDeadline}}}
	l.begin(s, &l.in.direction, inner.Cancel)
	return l
}

// Read implements transport.RecvStream.
func (l *recvStream) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // the last word
		l.s.release(&l.linkStream)
	}
	return n, err
}

// SetReadDeadline implements transport.RecvStream.
func (l *recvStream) SetReadDeadline(t time.Time) error { return l.in.setDeadline(t) }

// pass calls f, which sends the peer something, when the rules let that pass. It
// does not wait. The end of the session reports it too.
func (s *session) pass(f func()) {
	later := func() {
		if s.layer.awaitOpen(&s.peer, s.ctx.Done()) {
			f()
		}
	}
	if !s.peer.gate(true, false).Stopped || !s.layer.linger(later) {
		f()
	}
}
