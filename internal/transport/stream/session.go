package stream

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	// datagramQueue bounds the datagrams queued for sending. Further ones are dropped.
	datagramQueue = 128
	// lingerTime is how long a closed session waits for the peer to read the CLOSE.
	lingerTime = 100 * time.Millisecond
	// writeTimeout is how long yamux waits for a write to the connection: longer than the engine's
	// time-out of a silent link.
	writeTimeout = time.Minute
)

// A session is one connection with yamux on it. Its goroutines are run, which writes control
// frames, one that reads them, one that accepts streams, yamux's three, and one for each stream that is
// being written or has just ended; run waits for all.
type session struct {
	transport.Incoming

	p             *Provider
	id            transport.Identity
	local, remote string

	conn    *muxConn
	mux     *yamux.Session
	control *yamux.Stream

	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	done   <-chan struct{} // of ctx

	wake chan struct{} // holds a token when run has work

	workMu sync.Mutex // guards over, and additions to work, none of which follow once over is set
	over   bool
	work   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	err   *transport.CloseError
	out   outgoing
	quota streamQuota
}

// outgoing are datagrams queued for writing.
type outgoing struct {
	frames []byte
	count  int
}

// streamQuota bound the streams that are open at once, each way.
type streamQuota struct {
	over     uint64        // streams of the peer that have ended
	reported uint64        // the part of over that was reported to the peer
	opened   uint64        // streams opened by this side
	most     uint64        // limit of opened: the ended ones plus atPeer
	atPeer   uint64        // limit on streams open at the peer
	free     chan struct{} // closed and replaced when most grows
}

// newSession returns a session over inner, whose ends have exchanged hellos.
func newSession(ctx context.Context, p *Provider, raw *meteredConn, inner net.Conn, dialed bool, streams uint32) (*session, error) {
	s := &session{
		p: p, local: raw.LocalAddr().String(), remote: raw.RemoteAddr().String(),
		quota: streamQuota{atPeer: uint64(streams), most: uint64(streams), free: make(chan struct{})},
		wake:  make(chan struct{}, 1),
	}
	s.Init(s)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.done = s.ctx.Done()
	s.conn = &muxConn{Conn: inner, raw: raw, window: p.cfg.SessionWindow, streamsMax: p.cfg.MaxStreams, ended: s.done,
		streams: make(map[uint32]*waiting), room: make(chan struct{}, 1)}
	err := s.begin(ctx, dialed)
	if err != nil {
		s.hangUp()
		return nil, err
	}
	return s, nil
}

// begin starts yamux and opens the control stream.
func (s *session) begin(ctx context.Context, dialed bool) (err error) {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false // the engine sends heartbeats
	cfg.LogOutput = io.Discard
	cfg.ConnectionWriteTimeout = writeTimeout
	cfg.AcceptBacklog = sendBacklog
	cfg.MaxIncomingStreams = 2 * maxStreams // see muxConn
	cfg.MaxStreamWindowSize = uint32(s.p.cfg.StreamWindow)
	cfg.ReadBufSize = 16 << 10
	if dialed {
		if s.mux, err = yamux.Client(s.conn, cfg, nil); err == nil {
			s.control, err = s.mux.OpenStream(ctx)
		}
		return err
	}
	if s.mux, err = yamux.Server(s.conn, cfg, nil); err == nil {
		s.control, err = s.mux.AcceptStream()
	}
	if err == nil && s.control.StreamID() != controlID {
		err = violation("the first stream is %d", s.control.StreamID())
	}
	return err
}

// serve runs the session, and closes the connection if that panics.
func (s *session) serve() {
	defer guard.Recover(func(err error, stack []byte) {
		s.panicked(err, stack)
		s.hangUp()
	})
	s.run()
}

// run is the session's first goroutine and its last one: it writes control frames, and when the
// session has ended it sends the peer a CLOSE and waits for all others.
func (s *session) run() {
	s.spawn(s.acceptStreams)
	s.spawn(s.readControl)
	var rest []byte
	for s.ctx.Err() == nil {
		select {
		case <-s.wake:
		case <-s.done:
		}
		buf := s.takeControl(rest)
		n, err := s.control.Write(buf)
		if rest = append(buf[:0], buf[n:]...); err != nil {
			break // ended, or about to end
		}
	}
	<-s.done
	if end, _ := s.Err().(*transport.CloseError); !end.Remote && !end.Reset && !end.Timeout {
		s.linger(appendClose(s.takeControl(rest), end))
	}
	s.hangUp()
	s.workMu.Lock()
	s.over = true
	s.workMu.Unlock()
	s.work.Wait()
}

// takeControl returns rest and the queued control frames.
func (s *session) takeControl(rest []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest = append(rest, s.out.frames...)
	s.out.frames, s.out.count = s.out.frames[:0], 0
	if s.quota.over > s.quota.reported {
		s.quota.reported = s.quota.over
		rest = appendFrame(rest, typeOver, number(s.quota.over))
	}
	return rest
}

// linger writes last and waits briefly until the peer closes, as it does after reading last: if the
// connection were closed with bytes unread here, it would be reset, and the written bytes might be
// lost.
func (s *session) linger(last []byte) {
	t := time.NewTimer(lingerTime)
	defer t.Stop()
	_ = s.control.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := s.control.Write(last); err != nil {
		return
	}
	select {
	case <-s.mux.CloseChan():
	case <-t.C:
	}
}

// hangUp closes the connection, and waits until yamux no longer uses it.
func (s *session) hangUp() {
	s.cancel()
	if s.mux != nil {
		_ = s.mux.Close()
	}
	_ = s.conn.Close()
}

// spawn runs f on a goroutine that run waits for, unless the session is over. If f
// panics the session ends.
func (s *session) spawn(f func()) {
	s.workMu.Lock()
	defer s.workMu.Unlock()
	if s.over {
		return
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer guard.Recover(s.panicked)
		f()
	}()
}

func (s *session) panicked(err error, stack []byte) {
	s.p.sessions.Panicked(s.remote, err, stack)
	s.finish(&transport.CloseError{Code: transport.CodeProtocol, Reason: network.Bounded(err.Error())})
}

// acceptStreams queues the streams that the peer opens, until yamux ends.
func (s *session) acceptStreams() {
	for {
		stream, err := s.mux.AcceptStream()
		if err != nil {
			s.finish(closeError(err))
			return
		}
		l := &recvStream{s: s, stream: stream}
		// The other direction is unused. An error is the end of the session.
		_ = stream.CloseWrite()
		s.conn.mu.Lock()
		if w := s.conn.streams[stream.StreamID()]; w != nil {
			w.stream = l
		}
		s.conn.mu.Unlock()
		s.PutStream(l)
	}
}

// readControl handles the peer's control frames.
func (s *session) readControl() {
	buf := make([]byte, maxBody)
	for {
		kind, body, err := readFrame(s.control, buf)
		if err != nil {
			if !s.mux.IsClosed() { // else acceptStreams has the reason
				s.finish(closeError(err))
			}
			return
		}
		switch kind {
		case typeClose:
			s.finish(parseClose(body))
			return
		case typeDatagram:
			s.PutDatagram(body)
		case typeOver:
			d := codec.From(body)
			err = s.peerEnded(d.U64())
		default:
			err = violation("frame of type %d on the control stream", kind)
		}
		if err != nil {
			s.finish(closeError(err))
			return
		}
	}
}

// peerEnded records how many streams are over at the peer.
func (s *session) peerEnded(count uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if count > s.quota.opened || count+s.quota.atPeer < s.quota.most {
		return violation("%d of %d streams are over", count, s.quota.opened)
	}
	s.quota.most = count + s.quota.atPeer
	close(s.quota.free)
	s.quota.free = make(chan struct{})
	return nil
}

// streamOver records that a stream of the peer is over.
func (s *session) streamOver(id uint32) {
	if !s.conn.forget(id) {
		return
	}
	s.mu.Lock()
	s.quota.over++
	s.mu.Unlock()
	wait.Notify(s.wake)
}

// OpenStream implements transport.Session.
func (s *session) OpenStream(ctx context.Context) (transport.SendStream, error) {
	if err := s.place(ctx); err != nil {
		return nil, err
	}
	stream, err := s.mux.OpenStream(ctx)
	if err == nil {
		return newSendStream(s, stream), nil
	}
	s.mu.Lock()
	s.quota.opened--
	s.mu.Unlock()
	if ctx.Err() != nil && !s.mux.IsClosed() {
		return nil, fmt.Errorf("open stream: %w", ctx.Err())
	}
	if !s.mux.IsClosed() {
		s.finish(closeError(err)) // no stream numbers are left
	}
	return nil, s.why()
}

// place takes a place for a stream.
func (s *session) place(ctx context.Context) error {
	for {
		s.mu.Lock()
		free, has := s.quota.free, s.quota.opened < s.quota.most
		if has {
			s.quota.opened++
		}
		s.mu.Unlock()
		if err := s.Err(); err != nil {
			return err
		}
		if has {
			return nil
		}
		if _, err := transport.Await(ctx, s, free, "open stream"); err != nil {
			return err
		}
	}
}

// why returns the session's end; it waits for it if it is imminent.
func (s *session) why() error {
	<-s.done
	return s.Err()
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if len(p) > transport.MaxDatagram {
		return fmt.Errorf("datagram of %d bytes: at most %d", len(p), transport.MaxDatagram)
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.out.count < datagramQueue {
		s.out.frames = appendFrame(s.out.frames, typeDatagram, p)
		s.out.count++
	}
	s.mu.Unlock()
	wait.Notify(s.wake)
	return nil
}

// Heard implements transport.Session: datagrams queue behind all incoming bytes.
func (s *session) Arrived() uint64 { return s.conn.raw.received.Load() }

// Traffic implements transport.Session.
func (s *session) Traffic() transport.Traffic {
	return transport.Traffic{Sent: s.conn.raw.sent.Load(), Received: s.conn.raw.received.Load()}
}

// Peer, LocalAddr, RemoteAddr and Done implement transport.Session.
func (s *session) Peer() transport.Identity { return s.id }

func (s *session) LocalAddr() string { return s.local }

func (s *session) RemoteAddr() string { return s.remote }

func (s *session) Done() <-chan struct{} { return s.done }

// Err implements transport.Session.
func (s *session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil // not a nil *CloseError in an interface
	}
	return s.err
}

// Close implements transport.Session.
func (s *session) Close(code uint64, reason string) error {
	s.finish(&transport.CloseError{Code: code, Reason: network.Bounded(reason)})
	return nil
}

// finish ends the session with why. run does the rest.
func (s *session) finish(why *transport.CloseError) {
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = why
		s.out.frames = nil
	}
	s.mu.Unlock()
	if !first {
		return
	}
	s.cancel()
	_ = s.control.SetWriteDeadline(time.Now().Add(lingerTime))
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	for _, w := range s.conn.streams {
		if w.stream != nil {
			_ = w.stream.stream.SetReadDeadline(longAgo) // wakes its Read
		}
	}
}
