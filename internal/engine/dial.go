package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/internal/wire"
)

// linkSlack is how long linkTo waits beyond DialTimeout: by then the attempt
// has ended, with its error.
const linkSlack = 500 * time.Millisecond

// unreachable is why a node cannot be reached. Its code is status.NoDevice, the code
// of a node that is not there: this one may be a live member.
type unreachable struct{ error }

func (u unreachable) Unwrap() []error { return []error{status.NoDevice, u.error} }

var errNoLink = unreachable{errors.New("the node was not reached in time")}

// linkTo returns the link to a live node, establishing it if there is none. The error is
// status.NoDevice if the node is not live, is lost meanwhile or cannot be reached.
func (n *Node) linkTo(ctx context.Context, id addr.NodeID) (*link, error) {
	for bounded := false; ; {
		n.mu.Lock()
		if id == n.self.Incarnation.Node && n.self.Incarnation.Generation != 0 && !n.closed {
			defer n.mu.Unlock()
			return n.loopLocked(), nil
		}
		p, err := n.liveLocked(id)
		if err != nil {
			n.mu.Unlock()
			return nil, err
		}
		if l := p.link(); l != nil {
			n.mu.Unlock()
			return l, nil
		}
		dialing, welcomed := p.dialing, p.welcomed
		if dialing == nil && welcomed == nil {
			dialing = make(chan struct{})
			p.dialing = dialing
			incarnation := p.Incarnation
			n.work.run(func() { n.dial(p, incarnation) })
		}
		n.mu.Unlock()
		if !bounded { // a peer whose dials to us fail, again and again, ends no dial of ours
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, n.cfg.DialTimeout+linkSlack, errNoLink)
			defer cancel()
			bounded = true
		}
		select {
		case <-welcomed:
		case <-dialing:
			n.mu.Lock()
			err, up := p.dialErr, len(p.links) > 0
			n.mu.Unlock()
			if !up && err != nil {
				return nil, unreachable{fmt.Errorf("node %d is not reachable: %w", id, err)}
			}
		case <-p.lost:
			return nil, status.NoDevice
		case <-ctx.Done():
			if err := context.Cause(ctx); err != errNobodyAccepted {
				return nil, err
			}
			return nil, errNoLink // no link yet: the peer had no request to accept
		}
	}
}

// loopLocked returns the connectors' end of the link to this node itself. The caller holds mu.
func (n *Node) loopLocked() *link {
	if n.loop != nil {
		return n.loop
	}
	id := transport.Identity{Cluster: n.self.Cluster, Node: n.self.UUID}
	a, b := mem.Pair(id, id)
	self := Peer{Incarnation: n.self.Incarnation, UUID: n.self.UUID, Epoch: n.self.Epoch, Name: n.self.Name}
	n.loop = newLink(n, "loopback", self.Incarnation, self, a, n.now())
	other := newLink(n, "loopback", self.Incarnation, self, b, n.now())
	n.loop.dialed = true
	n.loop.otherEnd, other.otherEnd = other, n.loop
	for _, l := range []*link{n.loop, other} {
		n.links[l] = struct{}{}
		l.start(nil, nil)
	}
	return n.loop
}

// linkDown removes a failed link from its peer's links, so that no call finds it.
func (n *Node) linkDown(l *link) {
	n.mu.Lock()
	if n.loop != nil && (n.loop == l || n.loop == l.otherEnd) {
		n.loop = nil
	}
	level := zerolog.InfoLevel
	if p := n.peers[l.peer.Incarnation.Node]; p != nil && p.Incarnation == l.peer.Incarnation {
		p.links = slices.DeleteFunc(p.links, func(o *link) bool { return o == l })
		if !p.ends.shown(n.now(), endsShown) {
			level = zerolog.DebugLevel
		}
	}
	n.mu.Unlock()
	if l.otherEnd == nil {
		n.log.WithLevel(level).Stringer("peer", l.peer.Incarnation).Str("provider", l.provider).Str("cause", l.why()).
			Str("age", time.Since(l.since).Round(time.Millisecond).String()).Msg("link down")
		if level == zerolog.InfoLevel {
			n.noteLink("link-down", l.peer.Incarnation, "over %s: %s", l.provider, l.why())
		}
	}
}

// endsShown is how many ends of links with one incarnation a minute are logged at info level:
// a peer can dial and close as often as it likes. The others are debug.
const endsShown = 10

// forgetLink forgets a link that is quiet.
func (n *Node) forgetLink(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.links, l)
}

// dial tries to establish the link to p, until DialTimeout, and reports how that ended.
func (n *Node) dial(p *peerState, incarnation addr.Incarnation) {
	err := n.dialGuarded(p, incarnation, func(ctx context.Context) error { return n.dialInRounds(ctx, p) })
	n.mu.Lock()
	p.dialErr = err
	up := len(p.links) > 0
	close(p.dialing)
	p.dialing = nil
	n.mu.Unlock()
	if err == nil || up || isClosed(p.lost) || isClosed(n.done) {
		return
	}
	n.log.Info().Stringer("peer", incarnation).Err(err).Msg("link could not be established")
	n.noteLink("link-failed", incarnation, "%v", err)
	switch status.Of(err) {
	case status.Version: // it lives: it answered, and will never answer otherwise
	case status.Reset:
		n.report(incarnation, LinkFenced)
	default:
		n.report(incarnation, LinkRefused)
	}
}

// dialGuarded runs dial, which dials an incarnation of p, until DialTimeout or the end of that incarnation.
// A panic is an error.
func (n *Node) dialGuarded(p *peerState, incarnation addr.Incarnation, dial func(context.Context) error) (err error) {
	defer guard.Recover(func(e error, stack []byte) {
		n.panicked(incarnation, e, stack)
		err = fmt.Errorf("%w: %w", status.Protocol, e)
	})
	ctx, cancel := context.WithTimeout(contextUntil(p.lost), n.cfg.DialTimeout)
	defer cancel()
	return dial(ctx)
}

// dialInRounds goes through the addresses until a link is there, or an error is final.
func (n *Node) dialInRounds(ctx context.Context, p *peerState) (err error) {
	for round := range core.DialRounds {
		if round > 0 && !n.pause(ctx, core.DialPause) {
			break
		}
		if err = n.dialOnce(ctx, p); err == nil || !core.WorthAnotherTry(err) {
			break
		}
	}
	return err
}

// pause waits for d. It reports false if ctx or the node ended before.
func (n *Node) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-n.done:
	}
	return false
}

// dialOnce tries every provider that the peer has too, the preferred one first,
// and every address once. Each attempt gets its share of the time that is left: an
// unanswered one must leave some to the others.
func (n *Node) dialOnce(ctx context.Context, p *peerState) error {
	n.mu.Lock()
	if len(p.links) > 0 { // the peer dialed meanwhile
		n.mu.Unlock()
		return nil
	}
	peer := p.Peer
	n.mu.Unlock()
	c, err := newChoice(n.cfg.Providers, peer)
	if err != nil {
		return err
	}
	return n.dialChoice(ctx, p, peer, c)
}

// dialChoice is dialOnce with the providers of c.
func (n *Node) dialChoice(ctx context.Context, p *peerState, peer Peer, c *choice) (err error) {
	left := c.attempts()
	for i, provider := range n.cfg.Providers[:len(c.considered)-c.spared] {
		if !c.offered(i) {
			continue
		}
		var answered bool
		if answered, err = n.dialOver(ctx, p, peer, provider, c, left); answered || ctx.Err() != nil {
			return err
		}
		left -= len(c.addresses)
		c.failed(i, err)
	}
	return err
}

// dialOver dials a peer's addresses over one provider, with left attempts to go. answered means
// that another provider would not help: the peer's word counts, whatever carried it.
func (n *Node) dialOver(ctx context.Context, p *peerState, peer Peer, provider transport.Provider, c *choice, left int) (answered bool, err error) {
	for i, address := range c.addresses {
		attempt, cancel := share(ctx, left-i)
		var reached bool
		reached, err = n.dialAddress(attempt, p, peer, provider, address, c)
		cancel()
		answered = answered || reached
		if err == nil || !core.WorthAnotherTry(err) || ctx.Err() != nil {
			return true, err
		}
	}
	return answered, err
}

// share returns ctx with the first of so many equal parts of the time that is left.
func share(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(max(parts, 1)))
}

// dialAddress dials one address and shakes hands. reached means that a session
// was established, whatever came of it.
func (n *Node) dialAddress(ctx context.Context, p *peerState, peer Peer, provider transport.Provider, address string, c *choice) (reached bool, err error) {
	begun, self := n.now(), n.Self()
	var sess transport.Session
	defer guard.Recover(func(e error, stack []byte) {
		n.panicked(peer.Incarnation, e, stack)
		if err = fmt.Errorf("%w: %w", status.Protocol, e); sess != nil {
			sess.Close(transport.CodeProtocol, e.Error())
		}
	})
	if sess, err = provider.Dial(ctx, address); err != nil {
		return false, err
	}
	ctrl, o, err := n.sendHello(ctx, sess, self, peer, c.beside())
	if err == nil {
		l := newLink(n, provider.Name(), self.Incarnation, peer, sess, begun)
		l.dialed, l.beside, l.weighed, l.version = true, c.beside(), c.chose(provider.Name()), o.version
		if err = n.adopt(p, l); err == nil {
			n.logFallback(l)
			l.start(ctrl, o.r)
			return true, nil
		}
	}
	sess.Close(transport.RefusalCode(err), err.Error())
	return true, err
}

// adopt makes l the link to p, unless there is one or p is over. One beside others has
// a provider that they have not.
func (n *Node) adopt(p *peerState, l *link) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed || n.peers[p.Incarnation.Node] != p:
		return fmt.Errorf("%w: incarnation %v is over", status.Reset, p.Incarnation)
	case n.self.Incarnation != l.self:
		return fmt.Errorf("%w: this is not %v any more", status.NoDevice, l.self)
	case slices.ContainsFunc(p.links, func(o *link) bool { return !l.beside || o.provider == l.provider }):
		return fmt.Errorf("%w: the pair has a link", status.IsConn)
	}
	p.links = append(p.links, l)
	if !p.ends.spent(n.now(), endsShown) {
		n.noteLink("link-up", p.Incarnation, "over %s: %s", l.provider, why(l.weighed))
	}
	p.backAt = n.now() + backEvery
	n.links[l] = struct{}{}
	n.counters.count(func(c *Counters) { c.LinksBegun++ })
	wait.Notify(n.linked)
	return nil
}

// linkEnd returns the identity that core compares a HELLO with.
func (s Self) linkEnd() core.LinkEnd {
	return core.LinkEnd{Cluster: s.Cluster, Incarnation: s.Incarnation, UUID: s.UUID, Epoch: s.Epoch, Term: s.Term}
}

func (p Peer) linkEnd(cluster addr.UUID) core.LinkEnd {
	return core.LinkEnd{Cluster: cluster, Incarnation: p.Incarnation, UUID: p.UUID, Epoch: p.Epoch}
}

func proof(id transport.Identity) core.Proof { return core.Proof{UUID: id.Node, Host: id.Host} }

// sendHello opens the control stream to a dialed peer and waits for its answer.
func (n *Node) sendHello(ctx context.Context, sess transport.Session, self Self, peer Peer, beside bool) (transport.SendStream, *opening, error) {
	if id := sess.Peer(); id.Node != peer.UUID || id.Cluster != self.Cluster {
		return nil, nil, fmt.Errorf("%w: dialed node %v, its certificate names %v", status.Access, peer.UUID, id.Node)
	}
	hello := core.NewHello(self.linkEnd(), peer.linkEnd(self.Cluster))
	hello.Beside = beside
	greeting, err := self.greet(hello)
	if err != nil {
		return nil, nil, err
	}
	ctrl, err := sess.OpenStream(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := ctrl.Write(greeting); err != nil {
		return nil, nil, sessionError(sess, err)
	}
	if err := n.cfg.Faults.Hit(failpoint.HelloSent); err != nil {
		return nil, nil, err
	}
	o, h, body, err := firstFrame(ctx, sess)
	if err != nil {
		return nil, nil, sessionError(sess, err)
	}
	if err := n.answered(ctx, o, h, body, self, peer, sess.Peer()); err != nil {
		return nil, nil, err
	}
	return ctrl, o, nil
}

// answered decides about the answer to a HELLO; h and body are the answer's first frame.
func (n *Node) answered(ctx context.Context, o *opening, h wire.Header, body []byte, self Self, peer Peer, proved transport.Identity) error {
	f, err := core.ReadAnswer(h, body, logbound.Text)
	if err != nil {
		return err
	}
	lease, err := o.lease(ctx, f)
	if err == nil {
		err = core.CheckHello(f, self.linkEnd(), peer.linkEnd(self.Cluster), proof(proved))
	}
	if err == nil {
		err = n.prove(lease, peer, proved)
	}
	o.version = f.VersionMax
	return err
}

// firstFrame reads the first frame of the first stream that the peer opens.
func firstFrame(ctx context.Context, sess transport.Session) (*opening, wire.Header, []byte, error) {
	stream, err := sess.AcceptStream(ctx)
	if err != nil {
		return nil, wire.Header{}, nil, err
	}
	undo := deadlineOnDone(ctx, stream.SetReadDeadline)
	o := &opening{stream: stream, r: wire.NewReader(stream)}
	h, body, err := o.r.Next()
	undo()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return o, h, body, err
}
