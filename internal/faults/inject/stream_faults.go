package inject

import (
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

// streamPeer returns the peer of a stream of s, whose traffic is not known yet.
func (s *session) streamPeer(p *peer) {
	p.layer, p.below, p.peers = s.layer, s.peer.below, s.peer.peers
	p.setTraffic(faults.Link)
}

// A sendStream is the sending end of a stream under the rules.
type sendStream struct {
	s     *session
	inner transport.SendStream
	peer  peer
	out   sendDirection
}

func newSendStream(s *session, inner transport.SendStream) *sendStream {
	l := &sendStream{s: s, inner: inner}
	s.streamPeer(&l.peer)
	l.out = sendDirection{peer: &l.peer, to: inner, stop: s.ctx.Done(),
		first:  func(p []byte) { l.peer.setTraffic(trafficOf(p)) },
		onEnd:  func() { _ = inner.Close(); s.release(l) }, // its only error is a stream that has ended
		onFail: func(err error) error { return streamError(err, s.Err) },
	}
	s.adopt(l)
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

// Cancel implements transport.SendStream. Bytes before a Close go on.
func (l *sendStream) Cancel() {
	if l.out.queue.finished() {
		return
	}
	l.out.interrupt(transport.ErrStreamCanceled)
	l.s.pass(l.inner.Cancel)
	l.s.release(l)
}

func (l *sendStream) poke() {
	l.out.queue.changed.fire()
	if !l.peer.idle() && l.peer.gate(true, false).Reset {
		l.peer.gate(true, true)
		l.Cancel()
	}
}

func (l *sendStream) abort() {
	err := l.s.Err()
	if err == nil {
		err = transport.ErrClosed
	}
	l.out.interrupt(err)
}

// A recvStream is the receiving end of a stream under the rules.
type recvStream struct {
	s     *session
	inner transport.RecvStream
	peer  peer
	in    recvDirection
}

func newRecvStream(s *session, inner transport.RecvStream) *recvStream {
	l := &recvStream{s: s, inner: inner}
	s.streamPeer(&l.peer)
	l.in = recvDirection{peer: &l.peer, from: inner, stop: s.ctx.Done(),
		first:  func(p []byte) { l.peer.setTraffic(trafficOf(p)) },
		onFail: func(err error) error { return streamError(err, s.Err) },
	}
	s.adopt(l)
	return l
}

// Read implements transport.RecvStream.
func (l *recvStream) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if err != nil && l.in.over(err) {
		l.s.release(l)
	}
	return n, err
}

// SetReadDeadline implements transport.RecvStream.
func (l *recvStream) SetReadDeadline(t time.Time) error { return l.in.setDeadline(t) }

// Cancel implements transport.RecvStream.
func (l *recvStream) Cancel() {
	l.in.interrupt(transport.ErrStreamCanceled)
	l.s.pass(l.inner.Cancel)
	l.s.release(l)
}

func (l *recvStream) poke() {
	l.in.queue.changed.fire()
	if !l.peer.idle() && l.peer.gate(false, false).Reset {
		l.peer.gate(false, true)
		l.Cancel()
	}
}

func (l *recvStream) abort() {
	err := l.s.Err()
	if err == nil {
		err = transport.ErrClosed
	}
	l.in.interrupt(err)
}

// pass calls f, which tells the peer something, when the rules let that pass. It
// does not wait. The end of the session says it too.
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
