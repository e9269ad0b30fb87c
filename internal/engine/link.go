package engine

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// A link is an authenticated association with one incarnation of a peer, established by a HELLO
// round trip. A node's link with itself is two links, one for each end of its connections.
//
// Goroutines, all ended by fail and counted in work: one accepts streams and starts a reader for
// each, one reads the control stream, one writes it, one reads datagrams; further ones are spawned
// for writing and for failing. The node knows a link that has failed until the last of them has
// ended, so that the removal of an incarnation can wait for them.
type link struct {
	n        *Node
	self     addr.Incarnation // this end
	peer     Peer
	provider string // its name
	weighed  []Considered
	sess     transport.Session
	dialed   bool      // by this node
	version  uint16    // of the protocol; set before start
	beside   bool      // its dialer has kept the link that the pair had
	otherEnd *link     // of a link with this node itself, the other end; else nil
	since    time.Time // wall clock, for people

	control chan []byte // frames for the control stream; full means a stuck peer
	end     linkEnd
	work    group

	freshUntil atomic.Int64 // Node.now until which the peer's operations are applied
	silence    atomic.Int32 // alive, silent or silentReported

	requests linkRequests

	mu        sync.Mutex // guards the fields below
	conns     linkConns
	used      time.Duration // Node.now when a connection last began or ended
	keepalive core.Keepalive
	quality   quality
	confirm   chan struct{} // closed by the next confirmation; nil while no call waits for one
	parting   parting
	shown     perMinute // answers to AskLinks
}

// linkRequests are the pending requests of a link, by their kind. Each has its own lock.
type linkRequests struct {
	pings requestTable[time.Duration] // by heartbeat sequence number
	asks  requestTable[wire.Answer]   // by request number
	rows  requestTable[wire.Links]    // as asks
}

// A linkEnd is the end of a link.
type linkEnd struct {
	begun bool          // guarded by the link's mu
	down  chan struct{} // closed when the link has failed
	err   error         // why; set before down is closed
}

// linkConns are a link's connections by this end's IDs.
type linkConns struct {
	all  map[wire.ConnID]*conn
	last wire.ConnID
}

// arrivals are the bytes of sess.Arrived, and when they were read.
type arrivals struct {
	bytes uint64
	at    time.Duration
}

// controlQueue bounds the frames that wait for the control stream. They are
// small and answer the peer; one that does not read them is cut off.
const controlQueue = 1024

func newLink(n *Node, provider string, self addr.Incarnation, peer Peer, sess transport.Session, begun time.Duration) *link {
	l := &link{
		n: n, provider: provider, self: self, peer: peer, sess: sess, since: time.Now(), version: wire.VersionMax,
		control: make(chan []byte, controlQueue), end: linkEnd{down: make(chan struct{})},
		conns: linkConns{all: make(map[wire.ConnID]*conn)}, parting: parting{acked: make(chan struct{})},
	}
	now := n.now()
	l.used, l.quality.arrived.at = now, now
	l.keepalive = core.Keepalive{Liveness: core.NewLiveness(n.keepaliveTimes(), begun, now), Self: self, Peer: peer.Incarnation}
	l.freshUntil.Store(int64(l.keepalive.FreshUntil()))
	return l
}

// start starts the link's goroutines. ctrl and in are the two control streams
// after HELLO; both are nil on a loop.
func (l *link) start(ctrl transport.SendStream, in *wire.Reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end.begun { // removed while it was being set up
		return
	}
	l.spawn(l.acceptStreams)
	l.spawn(func() { l.writeControl(ctrl) })
	if l.otherEnd == nil {
		l.spawn(func() { l.readControl(in) })
		l.spawn(l.readDatagrams)
	}
	l.spawn(func() { // a session that ends by itself takes the link with it
		select {
		case <-l.sess.Done():
			l.sessionEnded(l.sess.Err())
		case <-l.end.down:
		}
	})
}

// spawn runs f on a goroutine that the link and the node wait for. If f panics the link ends.
func (l *link) spawn(f func()) {
	l.n.work.add()
	l.work.run(func() {
		defer l.n.work.done()
		defer guard.Recover(l.panicked)
		f()
	})
}

// panicked ends the link: a goroutine that serves it has panicked.
func (l *link) panicked(err error, stack []byte) {
	l.n.panicked(l.peer.Incarnation, err, stack)
	l.fail(transport.CodeProtocol, err)
}

// panicked logs, within bounds, a panic of a goroutine that serves a peer.
func (n *Node) panicked(peer addr.Incarnation, err error, stack []byte) {
	n.reports.panics.Line(zerolog.ErrorLevel, netip.Addr{}).Stringer("peer", peer).Err(err).Bytes("stack", stack).Msg("BUG: what serves a peer has panicked; its link ends")
}

// spawner returns a function that runs f as spawn does, without allocating at each call.
func (l *link) spawner(f func()) func() {
	panicked := l.panicked
	run := func() {
		defer l.work.done()
		defer l.n.work.done()
		defer guard.Recover(panicked)
		f()
	}
	return func() {
		l.n.work.add()
		l.work.add()
		go run()
	}
}

// quiet returns when nothing of the link runs any more; it has failed.
func (l *link) quiet() {
	l.work.wait()
	for _, c := range l.allConns() {
		c.quiet()
	}
}

func (l *link) allConns() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.conns.all))
}

func (l *link) String() string { return fmt.Sprintf("link with %v", l.peer.Incarnation) }

// sessionEnded fails the link and reports the evidence in the end of its session, if the link did
// not end it. err is a goroutine's error: it may see the end before the session reports it.
func (l *link) sessionEnded(err error) {
	if said := l.sess.Err(); said != nil {
		err = said
	}
	if !l.fail(transport.CodeOK, err) {
		return
	}
	switch ce := closeError(err); {
	case ce == nil:
	case ce.Remote && ce.Code == transport.CodeFenced:
		l.n.report(l.peer.Incarnation, LinkFenced)
	case l.n.hasLiveLink(l.peer.Incarnation): // over another link
	case ce.Reset:
		l.n.report(l.peer.Incarnation, LinkReset)
	case ce.Timeout:
		l.n.report(l.peer.Incarnation, LinkSilent)
	}
}

// fail ends the link: its session closes with code, and every connection on it is cut off. When
// fail returns no frame of the peer is applied any more, and once the link is quiet no byte either.
// It reports whether this was the call that did it.
func (l *link) fail(code uint64, cause error) bool {
	l.mu.Lock()
	if l.end.begun {
		l.mu.Unlock()
		<-l.end.down
		return false
	}
	l.end.begun, l.end.err = true, cause
	conns := slices.Collect(maps.Values(l.conns.all))
	l.settle()
	l.mu.Unlock()
	reason := ""
	if cause != nil {
		reason = cause.Error()
	}
	l.sess.Close(code, reason)
	for _, c := range conns {
		c.fail(l.why())
	}
	l.countEnd(len(conns))
	l.n.linkDown(l)
	close(l.end.down)
	l.n.work.run(func() {
		defer guard.Recover(l.panicked)
		defer l.n.forgetLink(l)
		l.quiet()
	})
	return true
}

// why returns the reason for the link's end as text.
func (l *link) why() string {
	if l.end.err == nil {
		return "the session ended without a reason"
	}
	return l.end.err.Error()
}

// errNewLink is why a link ends that its peer has replaced.
var errNewLink = errors.New("peer established a new link")

// anotherLinkMayDo reports whether the end of a link with cause is no evidence of its peer's end:
// the peer gave it up, or has a newer one. Silence, a lost state, a fence and a leave are evidence.
func anotherLinkMayDo(cause error) bool {
	ce := closeError(cause)
	switch {
	case cause == errNewLink || cause == errUnused:
		return true
	case ce == nil || ce.Reset || ce.Timeout:
		return false
	}
	return ce.Code == transport.CodeOK || ce.Code == transport.CodeDuplicate
}

// add registers a new connection under a fresh ID. Its caller, or the endpoint when
// it holds it, releases its memory.
func (l *link) add(ep *endpoint) (*conn, error) {
	window, report, err := l.n.budget.take(ep.s, l.n.cfg.MessageWindow, l.n.now())
	if report {
		l.n.log.Warn().Err(err).Msg("no memory for another connection")
	}
	if err != nil {
		return nil, err
	}
	c, err := l.enter(ep, window)
	if err != nil {
		l.n.budget.give(ep.s, window)
	}
	return c, err
}

func (l *link) enter(ep *endpoint, window int) (*conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.end.begun:
		return nil, errLinkDown
	case l.parting.byPeer:
		return nil, status.NoDevice
	case len(l.conns.all) >= l.n.cfg.MaxConns:
		return nil, fmt.Errorf("a link carries %d connections: %w", l.n.cfg.MaxConns, status.NoBufs)
	}
	l.used = l.n.now()
	l.conns.last++
	c := newConn(l, ep, l.conns.last, window)
	l.conns.all[c.id] = c
	return c, nil
}

// errLinkDown is the error of a link that was found down: another one may do.
var errLinkDown = unreachable{errors.New("the link has ended")}

func (l *link) conn(id wire.ConnID) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns.all[id]
}

func (l *link) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns.all[c.id] == c {
		delete(l.conns.all, c.id)
		l.used = l.n.now()
	}
}

// streamsMax bounds the streams that wait for their first frame.
const streamsMax = 1024

// acceptStreams starts a reader for every stream that the peer opens.
func (l *link) acceptStreams() {
	ctx := contextUntil(l.end.down)
	fresh := make(chan struct{}, streamsMax)
	for {
		stream, err := l.sess.AcceptStream(ctx)
		if err != nil {
			if ctx.Err() == nil {
				l.sessionEnded(err)
			}
			return
		}
		select {
		case fresh <- struct{}{}:
		case <-l.end.down:
			return
		}
		l.spawn(func() {
			r := wire.NewReader(stream)
			h, body, err := r.Next()
			<-fresh
			var read func() error
			if err == nil {
				read, err = l.open(r, stream, h, body)
			}
			if read != nil {
				err = read()
			}
			if err != nil {
				stream.Cancel()
				l.violated(err)
			}
		})
	}
}

// violated ends the link if err is a violation of the protocol by the peer.
func (l *link) violated(err error) {
	if isViolation(err) {
		l.n.log.Warn().Err(err).Stringer("peer", l.peer.Incarnation).Msg("peer broke the protocol")
		l.fail(transport.CodeProtocol, err)
	}
}

// open handles a stream's first frame and returns the function that reads the rest; nil: the
// stream is dropped. It lasts as long as the connection does, so that it is called when the
// frames of the stack that decoded the first one are gone.
func (l *link) open(r *wire.Reader, stream transport.RecvStream, h wire.Header, body []byte) (read func() error, err error) {
	switch h.Type {
	case wire.TypeConnect:
		err = wire.Apply(h, body, wire.ParseConnect, func(f wire.Connect) error {
			l.use()
			req := &request{link: l, frame: f, stream: stream}
			read = func() error { return l.n.incoming(req, r) }
			return nil
		})
	case wire.TypeAccept:
		err = wire.Apply(h, body, wire.ParseAccept, func(f wire.Accept) error {
			c := l.conn(f.Peer)
			if c == nil || !c.ep.granted(c, f, stream) {
				stream.Cancel() // the connector gave up
				return nil
			}
			read = func() error { c.readOps(r, stream); return nil }
			return nil
		})
	case wire.TypeStream:
		err = wire.Apply(h, body, wire.ParseStream, func(f wire.Stream) error {
			c := l.conn(f.Peer)
			if c == nil {
				stream.Cancel() // closed meanwhile
				return nil
			}
			read = func() error { return c.readMessages(r, stream) }
			return nil
		})
	default:
		err = fmt.Errorf("%w: a stream begins with %v", status.Protocol, h.Type)
	}
	return read, err
}

// sendFrame queues a frame for the control stream.
func (l *link) sendFrame(frame []byte) {
	select {
	case l.control <- frame:
	case <-l.end.down:
	default:
		l.fail(transport.CodeProtocol, fmt.Errorf("%w: control stream is not read", status.NoBufs))
	}
}

// sendFrameInTurn is sendFrame for a stream's reader: it waits while the queue is full.
func (l *link) sendFrameInTurn(frame []byte) {
	select {
	case l.control <- frame:
	case <-l.end.down:
	}
}

// writeControl writes the control stream. On a loop its control stream has no
// reader: it hands the frames over itself.
func (l *link) writeControl(ctrl transport.SendStream) {
	for {
		select {
		case frame := <-l.control:
			if l.otherEnd != nil {
				h, err := wire.ParseHeader(frame)
				if err == nil {
					err = l.otherEnd.onControl(h, frame[wire.HeaderLen:])
				}
				l.violated(err)
				continue
			}
			if _, err := ctrl.Write(frame); err != nil {
				return // the session's end, which others report
			}
		case <-l.end.down:
			return
		}
	}
}

func (l *link) readControl(r *wire.Reader) {
	for {
		h, body, err := r.Next()
		if err == nil {
			l.received()
			err = l.onControl(h, body)
		}
		if err != nil {
			l.violated(err)
			return
		}
	}
}

// onRefuse hands the peer's refusal to the endpoint that has asked.
func (l *link) onRefuse(f wire.Refuse) error {
	if c := l.conn(f.Peer); c != nil {
		c.ep.refused(c, f.Code)
	}
	return nil
}

// onControl handles a frame of the control stream.
func (l *link) onControl(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeRefuse:
		return wire.Apply(h, body, wire.ParseRefuse, l.onRefuse)
	case wire.TypeAsk:
		return wire.Apply(h, body, wire.ParseAsk, l.asked)
	case wire.TypeAnswer:
		return wire.Apply(h, body, wire.ParseAnswer, func(f wire.Answer) error { return l.requests.asks.answer(f.Request, f) })
	case wire.TypeAskLinks:
		return wire.Apply(h, body, wire.ParseAskLinks, l.askedLinks)
	case wire.TypeLinks:
		return wire.Apply(h, body, wire.ParseLinks, func(f wire.Links) error { return l.requests.rows.answer(f.Request, f) })
	case wire.TypeProbe, wire.TypeProbeAck:
		reply, err := l.take(func(now time.Duration) (core.FrameEffect, error) { return l.keepalive.Control(h, body, now) })
		if reply != nil {
			l.sendFrame(reply)
		}
		return err
	case wire.TypeBye:
		return wire.Apply(h, body, wire.ParseBye, l.onBye)
	case wire.TypeByeAck:
		return l.onByeAck()
	}
	return fmt.Errorf("%w: %v on the control stream", status.Protocol, h.Type)
}
