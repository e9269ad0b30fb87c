package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/verdict"
)

// linkTo finds the link to a live node, establishing it if there is none. It gives up
// without a result when gone.
func (n *node) linkTo(id addr.NodeID, gone func() bool, done func(*link, error)) {
	if gone() {
		return
	}
	p, err := n.live(id)
	switch {
	case err != nil:
		done(nil, err)
		return
	case p.link != nil:
		done(p.link, nil)
		return
	}
	if !p.dialing && p.welcoming == 0 {
		p.dialing, p.dialErr = true, nil
		n.dial(p, 0)
	}
	dialing := p.dialing
	p.waiting = append(p.waiting, func() {
		if dialing && !p.dialing && p.link == nil && p.dialErr != nil && !p.lost {
			done(nil, fmt.Errorf("%w: node %d is not reachable: %w", status.NoDevice, id, p.dialErr))
			return
		}
		if p.lost {
			done(nil, status.NoDevice)
			return
		}
		n.linkTo(id, gone, done)
	})
}

// dial tries to establish the link to p and reports how that ended.
func (n *node) dial(p *peerState, round int) {
	n.dialOnce(p, func(err error) {
		if err != nil && core.WorthAnotherTry(err) && round+1 < core.DialRounds && !p.lost {
			n.p.after(core.DialPause, func() { n.dial(p, round+1) })
			return
		}
		p.dialErr, p.dialing = err, false
		up := p.link != nil
		p.waiting.wake(n.p)
		if err == nil || up || p.lost {
			return
		}
		switch status.Of(err) {
		case status.Version:
		case status.Reset:
			n.report(p.identity.Incarnation, verdict.LinkFenced)
		default:
			n.report(p.identity.Incarnation, verdict.LinkRefused)
		}
	})
}

// dialOnce dials and shakes hands, once.
func (n *node) dialOnce(p *peerState, done func(error)) {
	if p.link != nil || p.lost || p.at == nil {
		done(nil)
		return
	}
	peer, self, begun := p.identity, n.self, n.w.now
	n.w.dialQUIC(n.p, p.at, dialTimeout, func(e *quicEnd) {
		if e == nil {
			done(fmt.Errorf("%w: no answer", status.TimedOut))
			return
		}
		n.sendHello(e, self, peer, dialTimeout-(n.w.now-begun), func(ctrl *stream, r *frames, err error) {
			if err == nil {
				l := newLink(n, self.Incarnation, peer, e, begun)
				l.dialed = true
				if err = n.adopt(p, l); err == nil {
					l.start(ctrl, r)
					done(nil)
					return
				}
			}
			e.close(transport.RefusalCode(err), err.Error())
			done(err)
		})
	})
}

// adopt makes l the link to p, unless there is one or p is over.
func (n *node) adopt(p *peerState, l *link) error {
	switch {
	case n.peers[p.identity.Incarnation.Node] != p:
		return fmt.Errorf("%w: incarnation %v is over", status.Reset, p.identity.Incarnation)
	case n.self.Incarnation != l.self:
		return fmt.Errorf("%w: this is not %v any more", status.NoDevice, l.self)
	case p.link != nil:
		return fmt.Errorf("%w: the pair has a link", status.IsConn)
	}
	p.link = l
	n.links = append(n.links, l)
	if !n.ticking {
		n.ticking = true
		n.tickLinks()
	}
	return nil
}

// sendHello opens the control stream to a dialed peer and waits for its answer.
func (n *node) sendHello(e *quicEnd, self, peer core.LinkEnd, limit time.Duration, done func(*stream, *frames, error)) {
	proof := e.proof()
	if proof.UUID != peer.UUID {
		done(nil, nil, fmt.Errorf("%w: another node is there", status.Access))
		return
	}
	ctrl := e.open()
	ctrl.write(core.NewHello(self, peer).AppendTo(nil))
	if !n.p.step(failpoint.HelloSent) {
		return
	}
	n.firstFrame(e, limit, func(r *frames, h wire.Header, body []byte, err error) {
		var answer wire.Hello
		if err == nil {
			answer, err = core.ReadAnswer(h, body, strings.Clone)
		}
		if err == nil {
			err = core.CheckHello(answer, self, peer, proof)
		}
		done(ctrl, r, err)
	})
}

// proof is the identity in the certificate of the other end.
func (e *quicEnd) proof() core.Proof {
	o := e.peer().p
	return core.Proof{UUID: o.at.disk.uuid, Host: o.at.host}
}

// firstFrame reads the first frame of the first stream that the peer opens.
func (n *node) firstFrame(e *quicEnd, limit time.Duration, done func(*frames, wire.Header, []byte, error)) {
	over := false
	finish := func(r *frames, h wire.Header, body []byte, err error) {
		if !over {
			over = true
			e.ended = nil
			done(r, h, body, err)
		}
	}
	e.ended = func(how transport.CloseError) { finish(nil, wire.Header{}, nil, cmp.Or(how.Refusal(), error(&how))) }
	n.p.after(limit, func() { finish(nil, wire.Header{}, nil, status.TimedOut) })
	if e.over {
		e.ended(e.left)
		return
	}
	e.serve(func(l *stream) {
		e.stream = nil // those behind it wait for the link
		newFrames(l).first(func() bool { return over }, func(r *frames, h wire.Header, body []byte, err error) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			finish(r, h, body, err)
		})
	})
}

// welcome shakes hands with a peer that dialed.
func (n *node) welcome(e *quicEnd) {
	begun := n.w.now
	n.firstFrame(e, dialTimeout, func(r *frames, h wire.Header, body []byte, err error) {
		if err != nil {
			e.close(transport.CodeProtocol, "no HELLO")
			return
		}
		hello, err := core.ReadHello(h, body)
		if err != nil {
			e.close(transport.CodeProtocol, "the control stream does not begin with HELLO")
			return
		}
		n.meet(e, hello, begun+dialTimeout, func(p *peerState, err error) {
			if err != nil {
				n.refuse(e, err)
				return
			}
			n.answerHello(e, p, hello, r, begun)
		})
	})
}

// meet checks a HELLO against the node table. An incarnation that is not there yet may
// be on its way.
func (n *node) meet(e *quicEnd, hello wire.Hello, until time.Duration, done func(*peerState, error)) {
	p := n.peers[hello.From.Node]
	known := core.LinkEnd{Cluster: n.self.Cluster}
	if p != nil {
		known = p.identity
	}
	err := core.CheckHello(hello, n.self, known, e.proof())
	switch {
	case err == nil:
		done(p, n.duplicate(p))
	case status.Of(err) != status.NoDevice || n.w.now >= until:
		done(nil, err)
	default:
		again := once(func(struct{}) { n.meet(e, hello, until, done) })
		n.changes = append(n.changes, func() { again(struct{}{}) })
		n.p.after(until-n.w.now, func() { again(struct{}{}) })
	}
}

// duplicate decides between the session that p dialed and one of ours.
func (n *node) duplicate(p *peerState) error {
	old := p.link
	if core.RefusesDialed(n.self.UUID, p.identity.UUID, old != nil, old != nil && old.dialed, p.dialing) {
		return fmt.Errorf("%w: the session dialed by node %d stays", status.IsConn, n.self.Incarnation.Node)
	}
	p.welcoming++
	if old != nil {
		old.fail(transport.CodeDuplicate, "peer established a new link")
	}
	return nil
}

// answerHello makes the session the link to p. The answer comes first.
func (n *node) answerHello(e *quicEnd, p *peerState, hello wire.Hello, r *frames, begun time.Duration) {
	defer func() {
		if p.welcoming--; p.welcoming == 0 {
			p.waiting.wake(n.p)
		}
	}()
	if e.over {
		return
	}
	l := newLink(n, n.self.Incarnation, p.identity, e, begun)
	ctrl := e.open()
	answer := core.NewAnswer(hello, n.self, p.identity)
	ctrl.write(answer.AppendTo(nil))
	if !n.p.step(failpoint.HelloAnswered) {
		return
	}
	if err := n.adopt(p, l); err != nil {
		e.close(transport.RefusalCode(err), err.Error())
		return
	}
	l.start(ctrl, r)
}

// refuse sends the peer the reason, and gives it a moment to read that.
func (n *node) refuse(e *quicEnd, err error) {
	l := e.open()
	l.write(core.NewRefusal(err).AppendTo(nil))
	l.close()
	n.p.after(500*time.Millisecond, func() { e.close(transport.RefusalCode(err), err.Error()) })
}

// isViolation reports whether err means that the peer broke the protocol.
func isViolation(err error) bool {
	return errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrUnknownType) ||
		errors.Is(err, status.Protocol) && !errors.Is(err, transport.ErrClosed)
}

// frames reads frames from a stream without blocking: Next returns errNothing
// while the next one has not arrived.
type frames struct {
	*wire.Reader
	stream *stream
}

func newFrames(l *stream) *frames { return &frames{wire.NewReader(l), l} }

// first waits for the first frame of the stream, until it is over.
func (r *frames) first(over func() bool, done func(*frames, wire.Header, []byte, error)) {
	r.stream.more = func() {
		if h, body, err := r.Next(); err != errNothing && !over() {
			r.stream.more = nil
			done(r, h, body, err)
		}
	}
	r.stream.more()
}

// forget takes l out of the links.
func (n *node) forget(l *link) {
	n.links = without(n.links, l)
	if p := n.peers[l.peer.Incarnation.Node]; p != nil && p.link == l {
		p.link = nil
	}
}
