package inject

import (
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// trafficOf returns the traffic of a lane by its first byte.
func trafficOf(first []byte) faults.Traffic {
	switch t, _ := wire.TypeOf(first); t {
	case wire.TypeStream:
		return faults.Messages
	case wire.TypeConnect, wire.TypeAccept:
		return faults.RMA
	}
	return faults.Link
}

// laneParty returns the party of a lane of s, whose traffic is not known yet.
func (s *session) laneParty(p *party) {
	p.layer, p.below, p.peers = s.layer, s.party.below, s.party.peers
	p.setTraffic(faults.Link)
}

// A sendLane is the sending end of a lane under the rules.
type sendLane struct {
	s     *session
	inner transport.SendLane
	party party
	out   outHalf
}

func newSendLane(s *session, inner transport.SendLane) *sendLane {
	l := &sendLane{s: s, inner: inner}
	s.laneParty(&l.party)
	l.out = outHalf{who: &l.party, to: inner, stop: s.ctx.Done(),
		first:  func(p []byte) { l.party.setTraffic(trafficOf(p)) },
		onEnd:  func() { _ = inner.Close(); s.release(l) }, // its only error is a lane that has ended
		onFail: func(err error) error { return laneError(err, s.Err) },
	}
	s.adopt(l)
	return l
}

// Write implements transport.SendLane.
func (l *sendLane) Write(p []byte) (int, error) { return l.out.Write(p) }

// TryWrite implements transport.SendLane.
func (l *sendLane) TryWrite(p []byte) (bool, error) { return l.out.try(p, l.inner.TryWrite) }

// SetWriteDeadline implements transport.SendLane.
func (l *sendLane) SetWriteDeadline(t time.Time) error { return l.out.setDeadline(t) }

// Close implements transport.SendLane.
func (l *sendLane) Close() error {
	l.out.finish()
	return nil
}

// Cancel implements transport.SendLane. Bytes before a Close go on.
func (l *sendLane) Cancel() {
	if l.out.line.finished() {
		return
	}
	l.out.interrupt(transport.ErrLaneCanceled)
	l.s.pass(l.inner.Cancel)
	l.s.release(l)
}

func (l *sendLane) poke() {
	l.out.line.changed.fire()
	if !l.party.idle() && l.party.gate(true, false).Reset {
		l.party.gate(true, true)
		l.Cancel()
	}
}

func (l *sendLane) abort() {
	err := l.s.Err()
	if err == nil {
		err = transport.ErrClosed
	}
	l.out.interrupt(err)
}

// A recvLane is the receiving end of a lane under the rules.
type recvLane struct {
	s     *session
	inner transport.RecvLane
	party party
	in    inHalf
}

func newRecvLane(s *session, inner transport.RecvLane) *recvLane {
	l := &recvLane{s: s, inner: inner}
	s.laneParty(&l.party)
	l.in = inHalf{who: &l.party, from: inner, stop: s.ctx.Done(),
		first:  func(p []byte) { l.party.setTraffic(trafficOf(p)) },
		onFail: func(err error) error { return laneError(err, s.Err) },
	}
	s.adopt(l)
	return l
}

// Read implements transport.RecvLane.
func (l *recvLane) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if err != nil && l.in.over(err) {
		l.s.release(l)
	}
	return n, err
}

// SetReadDeadline implements transport.RecvLane.
func (l *recvLane) SetReadDeadline(t time.Time) error { return l.in.setDeadline(t) }

// Cancel implements transport.RecvLane.
func (l *recvLane) Cancel() {
	l.in.interrupt(transport.ErrLaneCanceled)
	l.s.pass(l.inner.Cancel)
	l.s.release(l)
}

func (l *recvLane) poke() {
	l.in.line.changed.fire()
	if !l.party.idle() && l.party.gate(false, false).Reset {
		l.party.gate(false, true)
		l.Cancel()
	}
}

func (l *recvLane) abort() {
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
		if s.layer.awaitOpen(&s.party, s.ctx.Done()) {
			f()
		}
	}
	if !s.party.gate(true, false).Stopped || !s.layer.linger(later) {
		f()
	}
}
