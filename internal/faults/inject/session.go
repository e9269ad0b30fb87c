package inject

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/transport"
)

// A session is one under the rules. Where they are enforced on packets below,
// it only makes its streams; else it is the link that is cut: its end is reported to
// the other side, and seen on this one, when the rules let it pass.
type session struct {
	transport.Session // below
	provider          *provider
	layer             *Layer
	peer              peer
	queue             *packetQueue
	order             order
	inbox             chan []byte // datagrams that have arrived; nil with packets below

	ctx    context.Context // ends with done
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below
	err     error      // why it has ended here
	streams map[stream]struct{}
}

// Bounds of the datagrams of one session that wait.
const (
	inboxDatagrams  = 128 // until they are received
	queuedDatagrams = 256 // that a rule delays
)

func (p *provider) session(inner transport.Session) *session {
	s := &session{Session: inner, provider: p, layer: p.layer, streams: make(map[stream]struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	node := inner.Peer().Node
	s.peer.layer, s.peer.below = p.layer, p.below
	s.peer.peers = func() []addr.NodeID { return []addr.NodeID{p.layer.plane.Names.Node(node)} }
	s.peer.setTraffic(faults.Link)
	s.queue = newPacketQueue(p.layer, queuedDatagrams)
	if !p.layer.add(s) {
		s.abort()
		return s
	}
	if !p.below {
		s.inbox = make(chan []byte, inboxDatagrams)
		p.layer.spawn(s.receive)
	}
	p.layer.spawn(s.follow)
	return s
}

// linkGate returns the decision about the whole link, at whichever layer it is enforced. With count
// the decision is counted.
func (s *session) linkGate(count bool) faults.Gate {
	w := peer{layer: s.layer, peers: s.peer.peers}
	w.setTraffic(faults.Link)
	return w.gate(true, count)
}

// follow ends the session here when it has ended below and the rules let that be
// seen.
func (s *session) follow() {
	defer s.queue.stop()
	defer s.layer.remove(s)
	select {
	case <-s.Session.Done():
	case <-s.ctx.Done():
		return
	}
	if s.layer.awaitOpen(&s.peer, s.ctx.Done()) {
		s.end(s.Session.Err())
	}
}

// end ends the session here. The first call decides why.
func (s *session) end(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	streams := s.streams
	s.streams = nil
	s.mu.Unlock()
	s.cancel()
	for l := range streams {
		l.abort()
		s.layer.remove(l)
	}
}

// adopt registers a stream; one of a session that has ended ends at once.
func (s *session) adopt(l stream) {
	s.mu.Lock()
	ended := s.err != nil
	if !ended {
		s.streams[l] = struct{}{}
	}
	s.mu.Unlock()
	if ended || !s.layer.add(l) {
		l.abort()
	}
}

func (s *session) release(l stream) {
	s.mu.Lock()
	delete(s.streams, l)
	s.mu.Unlock()
	s.layer.remove(l)
}

func (s *session) poke() {
	if s.Err() != nil || !s.linkGate(false).Reset {
		return
	}
	s.linkGate(true)
	s.end(&transport.CloseError{Reset: true})
	s.Session.Close(transport.CodeOK, "reset by a fault")
}

func (s *session) abort() {
	s.end(&transport.CloseError{Code: transport.CodeOK, Reason: "faults ended"})
	s.Session.Close(transport.CodeOK, "faults ended")
}

// OpenStream implements transport.Session.
func (s *session) OpenStream(ctx context.Context) (transport.SendStream, error) {
	ctx, cancel := s.until(ctx)
	defer cancel()
	inner, err := s.Session.OpenStream(ctx)
	if err != nil {
		return nil, s.explain(err)
	}
	return newSendStream(s, inner), nil
}

// AcceptStream implements transport.Session.
func (s *session) AcceptStream(ctx context.Context) (transport.RecvStream, error) {
	ctx, cancel := s.until(ctx)
	defer cancel()
	inner, err := s.Session.AcceptStream(ctx)
	if err != nil {
		if s.peer.gate(false, false).Stopped && s.Session.Err() != nil {
			<-ctx.Done() // the end below is not to be seen yet
		}
		return nil, s.explain(err)
	}
	return newRecvStream(s, inner), nil
}

// until returns ctx, which ends with the session too.
func (s *session) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(s.Err()) })
	return ctx, func() { stop(); cancel(nil) }
}

// explain returns why the session has ended, if it has, else err.
func (s *session) explain(err error) error {
	if end := s.Err(); end != nil {
		return end
	}
	return err
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	if s.inbox == nil || s.peer.idle() || len(p) > transport.MaxDatagram {
		return s.Session.SendDatagram(p)
	}
	f := s.datagram(true, len(p))
	if f.Drop {
		return nil
	}
	own := bytes.Clone(p)
	if !s.queue.schedule(f, len(own), true, func() { _ = s.Session.SendDatagram(own) }) { // an error is a lost datagram
		return nil
	}
	return s.Session.SendDatagram(p)
}

// datagram decides about a datagram. One that is corrupted is lost: in a packet
// it would not pass its checksum. Without packets below it is part of a stream, of
// which a cut in one direction stops both: soon nothing is acknowledged.
func (s *session) datagram(sending bool, size int) faults.Decision {
	m := s.peer.meeting(s.peer.peers()[0], sending)
	m.Carrier = faults.Packets
	f := s.layer.plane.Decide(m, size)
	f.Drop = f.Drop || f.Corrupt || s.peer.gate(sending, true).Stopped
	return f
}

// receive takes the datagrams from below.
func (s *session) receive() {
	for {
		p, err := s.Session.ReceiveDatagram(s.ctx)
		if err != nil {
			return
		}
		if s.peer.idle() {
			s.arrive(p)
			continue
		}
		f := s.datagram(false, len(p))
		if f.Drop {
			continue
		}
		later := bytes.Clone(p)
		if s.queue.schedule(f, len(p), false, func() { s.arrive(bytes.Clone(later)) }) {
			s.arrive(p)
		}
	}
}

// arrive queues p, or drops it when the queue is full.
func (s *session) arrive(p []byte) {
	select {
	case s.inbox <- p:
	default:
	}
}

// ReceiveDatagram implements transport.Session.
func (s *session) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	if s.inbox == nil {
		return s.Session.ReceiveDatagram(ctx)
	}
	return transport.Await(ctx, s, s.inbox, "receive datagram")
}

// Arrived implements transport.Session. While there are rules on the traffic above the provider,
// bytes that came below them may not be seen here.
func (s *session) Arrived() uint64 {
	if !s.provider.below && !s.peer.idle() {
		return 0
	}
	return s.Session.Arrived()
}

// Close implements transport.Session. The peer learns of it as late as of a datagram, and across a
// cut when that ends.
func (s *session) Close(code uint64, reason string) error {
	if s.Err() != nil {
		return nil
	}
	s.end(&transport.CloseError{Code: code, Reason: reason})
	wait, stopped := s.peer.judge(true, len(reason))
	if (wait > 0 || stopped) && s.layer.linger(func() { s.linger(wait, code, reason) }) {
		return nil
	}
	return s.Session.Close(code, reason)
}

// linger closes the session below after wait, and when the rules let the peer learn of it.
func (s *session) linger(wait time.Duration, code uint64, reason string) {
	sleep(s.Session.Done(), s.layer.ctx.Done(), time.Now().Add(wait))
	s.layer.awaitOpen(&s.peer, s.Session.Done())
	// An error can only mean that it has ended already.
	_ = s.Session.Close(code, reason)
}

// Done implements transport.Session.
func (s *session) Done() <-chan struct{} { return s.ctx.Done() }

// Err implements transport.Session.
func (s *session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
