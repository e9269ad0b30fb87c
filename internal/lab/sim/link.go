package sim

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A link is an association with one incarnation of a peer, established by a HELLO
// round trip.
type link struct {
	n      *node
	self   addr.Incarnation
	peer   core.LinkEnd
	sess   *quicEnd
	dialed bool
	down   bool
	ctrl   *stream

	conns         map[wire.ConnID]*conn
	lastConn      wire.ConnID
	keepalive     core.Keepalive
	lastKeepalive uint64
	pings         map[uint64]func()
	stalled       []*conn // connections whose next operation waits for a confirmation
	onDown        waiters
}

func newLink(n *node, self addr.Incarnation, peer core.LinkEnd, e *quicEnd, begun time.Duration) *link {
	return &link{n: n, self: self, peer: peer, sess: e, conns: make(map[wire.ConnID]*conn), pings: make(map[uint64]func()),
		keepalive: core.Keepalive{Liveness: core.NewLiveness(n.times, begun, n.w.now), Self: self, Peer: peer.Incarnation}}
}

// start puts the link in use. ctrl and in are the two control streams after
// HELLO.
func (l *link) start(ctrl *stream, in *frames) {
	if l.down {
		return
	}
	l.ctrl = ctrl
	l.sess.ended = l.sessionEnded
	l.sess.datagram = l.onDatagram
	in.stream.more = func() { l.readControl(in) }
	if l.sess.over {
		l.sessionEnded(l.sess.left)
		return
	}
	l.sess.serve(l.accept)
	l.readControl(in)
	if p := l.n.peers[l.peer.Incarnation.Node]; p != nil && p.link == l {
		p.waiting.wake(l.n.p)
	}
}

// sessionEnded fails the link and reports the evidence in the end of its session.
func (l *link) sessionEnded(how transport.CloseError) {
	if !l.fail(transport.CodeOK, how.Error()) {
		return
	}
	switch {
	case how.Reset:
		l.n.report(l.peer.Incarnation, verdict.LinkReset)
	case how.Remote && how.Code == transport.CodeFenced:
		l.n.report(l.peer.Incarnation, verdict.LinkFenced)
	case how.Timeout:
		l.n.report(l.peer.Incarnation, verdict.LinkSilent)
	}
}

// fail ends the link: every connection on it is cut off, and nothing of the
// peer is applied any more.
func (l *link) fail(code uint64, reason string) bool {
	if l.down {
		return false
	}
	l.down = true
	l.sess.close(code, reason)
	l.n.forget(l)
	for _, id := range sortedKeys(l.conns) {
		if c := l.conns[id]; c != nil {
			c.fail(status.Reset)
		}
	}
	l.onDown.wake(l.n.p)
	return true
}

var errLinkDown = fmt.Errorf("%w: the link has ended", status.NoDevice)

// add registers a new connection under a fresh ID.
func (l *link) add(ep *endpoint) (*conn, error) {
	if l.down {
		return nil, errLinkDown
	}
	l.lastConn++
	c := newConn(l, ep, l.lastConn)
	l.conns[c.id] = c
	return c, nil
}

func (l *link) forget(c *conn) {
	if l.conns[c.id] == c {
		delete(l.conns, c.id)
	}
}

// violated ends the link if err means that the peer broke the protocol.
func (l *link) violated(err error) {
	if err != nil && isViolation(err) {
		l.n.w.watch.protocol(l, err)
		l.fail(transport.CodeProtocol, err.Error())
	}
}

// accept reads the first frame of a stream that the peer opened, which states the stream's
// purpose.
func (l *link) accept(in *stream) {
	newFrames(in).first(func() bool { return l.down }, func(r *frames, h wire.Header, body []byte, err error) {
		if err == nil {
			err = l.open(r, h, body)
		}
		if err != nil {
			in.drop()
			l.violated(err)
		}
	})
}

// open handles a stream's first frame and then the stream.
func (l *link) open(r *frames, h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeConnect:
		f, err := wire.ParseConnect(h.Flags, body)
		if err == nil {
			l.n.incoming(l, f, r)
		}
		return err
	case wire.TypeAccept:
		f, err := wire.ParseAccept(h.Flags, body)
		if err != nil {
			return err
		}
		c := l.conns[f.Peer]
		if c == nil || !c.ep.granted(c, f, r) {
			r.stream.drop() // the connector gave up
			return nil
		}
		c.readOps(r)
		return nil
	case wire.TypeStream:
		f, err := wire.ParseStream(h.Flags, body)
		if err != nil {
			return err
		}
		c := l.conns[f.Peer]
		if c == nil {
			r.stream.drop() // closed meanwhile
			return nil
		}
		return c.readMessages(r)
	}
	return fmt.Errorf("%w: a stream begins with %v", status.Protocol, h.Type)
}

// sendFrame sends a frame on the control stream.
func (l *link) sendFrame(frame []byte) {
	if !l.down && l.ctrl != nil && !l.ctrl.write(frame) {
		l.fail(transport.CodeProtocol, "control stream is not read")
	}
}

func (l *link) readControl(r *frames) {
	for !l.down {
		h, body, err := r.Next()
		if err == errNothing {
			return
		}
		if err == nil {
			l.keepalive.Received(l.n.w.now)
			err = l.onControl(h, body)
		}
		if err != nil {
			l.violated(err)
			return
		}
	}
}

// onControl handles a frame of the control stream.
func (l *link) onControl(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeRefuse:
		f, err := wire.ParseRefuse(h.Flags, body)
		if c := l.conns[f.Peer]; err == nil && c != nil {
			c.ep.refused(c, f.Code)
		}
		return err
	case wire.TypeProbe, wire.TypeProbeAck:
		x, err := l.keepalive.Control(h, body, l.n.w.now)
		if x.Reply != nil {
			l.sendFrame(x.Reply)
		}
		l.received(x)
		return err
	}
	return fmt.Errorf("%w: %v on the control stream", status.Protocol, h.Type)
}

// received performs the effects of a frame of the peer, but for the reply.
func (l *link) received(x core.FrameEffect) {
	if x.Report {
		l.n.report(l.peer.Incarnation, verdict.LinkAlive)
	}
	if f := l.pings[x.Seq]; f != nil {
		delete(l.pings, x.Seq)
		f()
	}
	if waiting := l.stalled; x.Resume {
		l.stalled = nil
		for _, c := range waiting {
			c.pump()
		}
	}
}

// tick performs the requests of the link's keepalive.
func (l *link) tick() {
	if l.down {
		return
	}
	b := l.keepalive.Tick(l.n.w.now)
	if b.Send {
		l.sendKeepalive()
	}
	if b.Report {
		l.n.report(l.peer.Incarnation, verdict.LinkSilent)
	}
	if b.Again > 0 {
		l.n.p.after(b.Again, func() { l.tick() })
	}
	if b.Dead {
		l.fail(transport.CodeOK, "link is silent")
	}
}

func (l *link) sendKeepalive() uint64 {
	l.lastKeepalive++
	l.sess.send(l.keepalive.Heartbeat(l.lastKeepalive, l.n.w.now))
	return l.lastKeepalive
}

// onDatagram answers heartbeats and takes answers.
func (l *link) onDatagram(p []byte) {
	if l.down {
		return
	}
	x := l.keepalive.Datagram(p, l.n.w.now)
	if x.Reply != nil {
		l.sess.send(x.Reply)
	}
	l.received(x)
}

// fresh reports whether both incarnations were confirmed freshly, so that an
// operation of the peer may be applied. If not, c goes on when they are.
func (l *link) fresh(c *conn) bool {
	if l.keepalive.Fresh(l.n.w.now) {
		return true
	}
	l.stalled = append(l.stalled, c)
	if ask := l.keepalive.Ask(l.n.w.now); ask != nil {
		l.sendFrame(ask)
	}
	return false
}
