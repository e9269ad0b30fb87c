package tcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/transport"
)

// datagramQueue bounds the datagrams that wait for ReceiveDatagram. Further
// ones are dropped.
const datagramQueue = 128

// A session is one association. Its goroutines are the watch, the flusher once a
// writer was in a hurry, the readers of its bulk connections, and short ones that
// open those or write what a socket did not take; the provider waits for all of them.
//
// Locks are taken in this order: writeMu, a recvLane's mu, mu; those of helm,
// outlet and spawn are innermost.
type session struct {
	p             *Provider
	dialed        bool
	number        uint64 // names the session in bindings; chosen by the accepter
	address       string // where the dialer dials bulk connections
	segment       int    // bound of its segments, in bytes; 0: none
	id            transport.Identity
	local, remote string
	plaintext     bool   // both ends allow it
	maxBulk       int    // both ends allow it
	peerLane      uint64 // the peer's window of a lane
	leastBulk     int    // a bulk piece is put off for less credit, in bytes

	key []byte // proves tokens; nil with TLS

	rec  *recordConn
	conn io.ReadWriter // the frames of the first connection: TLS over rec, or rec's own
	out  *outlet
	helm helm

	guests sync.Pool // of hands for Help

	// Of the holder of the helm.
	in         []byte // what has come and was not handled, from start to end
	start, end int
	woke       bool          // a waiting reader was woken in this turn
	recent     *recvLane     // had the last data; it may be over since
	frames     atomic.Uint64 // counts the frames that have come
	socket     socketReader

	company *company      // whose looks see the first connection
	seat    uint64        // in it, of run; 0: none
	found   atomic.Uint64 // one more than frames when a look last found something

	allowed allowance // what the peer may send

	datagrams chan []byte
	arrival   chan struct{}                 // holds a token when AcceptLane should look
	panicked  func(err error, stack []byte) // ends the session, for guard.Recover
	ctx       context.Context               // ends with the session
	cancel    context.CancelFunc
	done      <-chan struct{} // of ctx

	workMu sync.Mutex // guards over, and that nothing is added to work afterwards
	over   bool
	work   sync.WaitGroup

	writeMu   sync.Mutex // the order of frames on the first connection; guards frame, put and collected
	frame     []byte     // memory for what is written at once: a frame, or a lone write
	put       []byte     // frames that were put off or collected
	collected collection
	owes      atomic.Bool   // there is something in put
	collects  atomic.Bool   // what was collected is in put
	flushes   chan struct{} // wakes the flusher
	spoke     atomic.Int64  // when the last data was written at once, since company.begun
	failing   sync.Once     // failSoon

	mu        sync.Mutex // guards the fields below
	err       *transport.CloseError
	lanesIn   map[uint64]*recvLane
	lastIn    uint64        // number of the last lane that the peer has opened
	opened    chan struct{} // closed and replaced when lastIn grows; nil while nobody waits
	queue     []*recvLane   // not accepted yet; at most MaxLanes
	retired   uint64        // lanes of the peer that are over
	lanesTold uint64        // how many lanes the peer knows that it may open

	lanesOut  map[uint64]*sendLane
	unnamed   map[*sendLane]struct{} // those without a number
	lastOut   uint64                 // number of the last lane opened here
	openOut   uint64                 // OpenLanes that have taken a place
	lanesMax  uint64                 // how many lanes the peer allows
	placeFree chan struct{}          // closed and replaced when a place becomes free; nil while nobody waits
	waiting   map[*sendLane]struct{} // writers that wait for credit or for the outlet

	sendTotal, sendLimit uint64 // bytes of all lanes

	bulk bulkState
}

// newSession returns a session over a connection whose ends have said hello.
func newSession(p *Provider, rec *recordConn, conn *tls.Conn, id transport.Identity, peer hello) (*session, error) {
	plain := p.plainFirst(peer)
	key, err := bindingKey(conn, plain)
	if err != nil {
		return nil, err
	}
	s := &session{
		p: p, id: id, rec: rec, conn: conn, key: key,
		local: rec.LocalAddr().String(), remote: rec.RemoteAddr().String(),
		plaintext: p.cfg.Plaintext && peer.plaintext,
		maxBulk:   min(p.cfg.MaxBulk, int(peer.bulk)),
		peerLane:  uint64(peer.laneWindow),
		leastBulk: int(min(peer.laneWindow, peer.sessionWindow) / 4),
		in:        make([]byte, 3*(headerLen+maxSmall)),
		datagrams: make(chan []byte, datagramQueue),
		arrival:   make(chan struct{}, 1),
		flushes:   make(chan struct{}, 1),
		collected: collection{last: -1, sent: -hurry},
		lanesIn:   make(map[uint64]*recvLane),
		lanesOut:  make(map[uint64]*sendLane),
		unnamed:   make(map[*sendLane]struct{}),
		waiting:   make(map[*sendLane]struct{}),
		lanesTold: uint64(p.cfg.MaxLanes),
		lanesMax:  uint64(peer.lanes),
		sendLimit: uint64(peer.sessionWindow),
	}
	if rec.plain = plain; plain {
		s.conn = plainStream{rec}
	}
	s.allowed.begin(uint64(p.cfg.SessionWindow))
	s.panicked = func(err error, stack []byte) {
		p.panicked(s.remote, err, stack)
		s.finish(&transport.CloseError{Code: transport.CodeProtocol, Reason: bounded(err.Error())})
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.done = s.ctx.Done()
	s.helm.alarm, s.helm.free = make(chan struct{}, 1), make(chan struct{})
	// A deadline of a connection that has ended needs no setting.
	s.helm.interrupt = func() { _ = rec.SetReadDeadline(longAgo) }
	s.helm.resume = func() { _ = rec.SetReadDeadline(time.Time{}) }
	s.carry(rec.Conn)
	return s, nil
}

// carry makes s read and write c, its first connection.
func (s *session) carry(c net.Conn) {
	s.rec.Conn = c
	s.out = newOutlet(c, s.spawn, s.wakeWriters, func(err error) { s.finish(closeError(err)) })
	s.rec.async = s.out
	s.socket.begin(s)
	s.company = companyOf(s)
}

// longAgo is a deadline that ends a blocked call at once.
var longAgo = time.Unix(1, 0)

// OpenLane implements transport.Session.
func (s *session) OpenLane(ctx context.Context) (transport.SendLane, error) {
	for {
		s.mu.Lock()
		if s.err != nil {
			defer s.mu.Unlock()
			return nil, s.err
		}
		if s.openOut < s.lanesMax {
			s.openOut++
			l := &sendLane{s: s, wake: make(chan struct{}, 1), limit: s.peerLane}
			s.unnamed[l] = struct{}{}
			s.mu.Unlock()
			return l, nil
		}
		if s.placeFree == nil {
			s.placeFree = make(chan struct{})
		}
		free := s.placeFree
		s.mu.Unlock()
		select {
		case <-free:
		case <-s.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("open lane: %w", ctx.Err())
		}
	}
}

// AcceptLane implements transport.Session.
func (s *session) AcceptLane(ctx context.Context) (transport.RecvLane, error) {
	for {
		l, err := s.nextLane()
		if err != nil {
			return nil, err
		}
		if l != nil {
			return l, nil
		}
		select {
		case <-s.arrival:
		case <-s.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("accept lane: %w", ctx.Err())
		}
	}
}

// nextLane takes the next lane, nil if there is none.
func (s *session) nextLane() (*recvLane, error) {
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return nil, s.err
	}
	if len(s.queue) == 0 {
		s.mu.Unlock()
		return nil, nil
	}
	l := s.queue[0]
	s.queue[0] = nil
	if s.queue = s.queue[1:]; len(s.queue) > 0 {
		notify(s.arrival) // another caller may wait
	}
	s.mu.Unlock()
	l.mu.Lock()
	l.accepted = true
	retire := l.over() // it was canceled while it waited
	l.mu.Unlock()
	if retire {
		s.retire(l)
	}
	return l, nil
}

// SendDatagram implements transport.Session.
func (s *session) SendDatagram(p []byte) error {
	if len(p) > transport.MaxDatagram {
		return fmt.Errorf("datagram of %d bytes: at most %d", len(p), transport.MaxDatagram)
	}
	if err := s.Err(); err != nil {
		return err
	}
	if s.out.backlog.Load() > maxBacklog {
		return nil // a datagram may be lost
	}
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if err := s.send(header{kind: typeDatagram, length: uint32(len(p))}, vector{b: p}); err != nil {
		s.failSoon(err)
	}
	return nil
}

// endGrace is how long whoever reads the first connection has to find its end,
// and the peer's word on it, when a datagram could not be written any more.
const endGrace = 20 * time.Millisecond

// failSoon ends the session if nobody else has until endGrace is over: who reads
// may have missed the end (socketReader).
func (s *session) failSoon(err error) {
	s.failing.Do(func() {
		s.spawn(func() {
			t := time.NewTimer(endGrace)
			defer t.Stop()
			select {
			case <-t.C:
				s.finish(closeError(err))
			case <-s.done:
			}
		})
	})
}

// ReceiveDatagram implements transport.Session.
func (s *session) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	select {
	case p := <-s.datagrams:
		return p, nil
	default:
	}
	select {
	case p := <-s.datagrams:
		return p, nil
	case <-s.done:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, fmt.Errorf("receive datagram: %w", ctx.Err())
	}
}

// Heard implements transport.Session. What a slow network takes long to carry waits in
// the kernel and here, and datagrams wait behind it or are dropped.
func (s *session) Heard() uint64 {
	_, received := s.Traffic()
	return received
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

// Traffic implements transport.Meter.
func (s *session) Traffic() (sent, received uint64) {
	sent, received = s.rec.sent.Load(), s.rec.received.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	more, moreReceived := s.bulk.traffic()
	return sent + more, received + moreReceived
}

// Close implements transport.Session.
func (s *session) Close(code uint64, reason string) error {
	s.finish(&transport.CloseError{Code: code, Reason: bounded(reason)})
	return nil
}

// finish ends the session with why. If it ends here, the peer is told.
func (s *session) finish(why *transport.CloseError) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = why
	stuck := s.endOfWay(why) // before anybody can dial again
	in, out, unnamed := s.lanesIn, s.lanesOut, s.unnamed
	s.lanesIn, s.lanesOut, s.unnamed, s.queue = nil, nil, nil, nil
	clear(s.waiting)
	if s.opened != nil {
		close(s.opened)
		s.opened = nil
	}
	fail := func(l *sendLane) {
		l.err = why
		l.look()
	}
	for _, l := range out {
		fail(l)
	}
	for l := range unnamed {
		fail(l)
	}
	s.spawn(s.letGo()) // before cancel: the session's work is not over yet
	s.cancel()
	s.mu.Unlock()
	for _, l := range in {
		l.fail(why)
	}
	s.helm.close()
	if stuck {
		s.p.tellNarrow(s.rec.Conn, standardSegment, "a link that got stuck")
	}
	if why.Remote || why.Reset || why.Timeout {
		return
	}
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	_ = s.send(header{kind: typeClose, length: uint32(len(why.Reason)), value: min(why.Code, maxOffset)}, vector{b: []byte(why.Reason)})
}

// run is the session's first goroutine and its last one: it keeps the watch,
// and when the session has ended it waits for all others.
func (s *session) run() {
	s.seat = s.company.seatOf(s)
	s.watch()
	<-s.helm.free
	if end, _ := s.Err().(*transport.CloseError); !end.Remote && !end.Reset && !end.Timeout {
		s.linger()
	}
	s.hangUp()
	s.workMu.Lock()
	s.over = true
	s.workMu.Unlock()
	s.work.Wait()
}

// spawn runs f on a goroutine that run waits for. It reports false if the
// session is over. If f panics the session ends.
func (s *session) spawn(f func()) bool {
	s.workMu.Lock()
	defer s.workMu.Unlock()
	if !s.over {
		s.work.Add(1)
		go s.guarded(f)
	}
	return !s.over
}

func (s *session) guarded(f func()) {
	defer s.work.Done()
	defer guard.Recover(s.panicked)
	f()
}

// lingerTime is how long a closed session waits for the peer to take the news.
const lingerTime = 100 * time.Millisecond

// linger waits until the peer hangs up, as it does when it has read the CLOSE:
// closed with bytes unread here, the connection would be reset, and the CLOSE
// might be lost.
func (s *session) linger() {
	_ = s.rec.SetDeadline(time.Now().Add(lingerTime)) // it fails where the connection has ended
	buf := make([]byte, 16<<10)
	for {
		if _, err := s.rec.Conn.Read(buf); err != nil {
			return
		}
	}
}

// hangUp closes the session's connections.
func (s *session) hangUp() {
	s.company.leave(s.seat)
	_ = s.rec.Conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bulk.close()
}
