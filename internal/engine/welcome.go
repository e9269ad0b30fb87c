package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// refusalPatience is how long a refused peer has to read why.
const refusalPatience = 500 * time.Millisecond

// handshakesMax bounds the sessions that have not sent HELLO, and handshakesEach
// those of one node, as its certificate names it: a member that opens
// sessions and sends nothing must not keep the others out.
const (
	handshakesMax  = 256
	handshakesEach = 8
)

// handshakes counts the sessions that have not sent HELLO.
type handshakes struct {
	mu   sync.Mutex // guards the fields below
	all  int
	each map[addr.UUID]int
}

// enter admits a session of node. It reports false if there are too many.
func (p *handshakes) enter(node addr.UUID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= handshakesMax || p.each[node] >= handshakesEach {
		return false
	}
	p.all++
	p.each[node]++
	return true
}

func (p *handshakes) leave(node addr.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.each[node]--; p.each[node] == 0 {
		delete(p.each, node)
	}
}

// acceptLinks accepts the sessions that peers dial.
func (n *Node) acceptLinks(p transport.Provider) {
	ctx := contextUntil(n.done)
	pending := handshakes{each: make(map[addr.UUID]int)}
	for {
		sess, err := p.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, transport.ErrClosed) {
				n.log.Error().Err(err).Str("provider", p.Name()).Msg("provider stopped accepting")
			}
			return
		}
		node := sess.Peer().Node
		if !pending.enter(node) {
			sess.Close(transport.CodeProtocol, "too many handshakes")
			continue
		}
		n.work.run(func() {
			defer pending.leave(node)
			n.welcome(p, sess)
		})
	}
}

// welcome shakes hands with a peer that dialed.
func (n *Node) welcome(provider transport.Provider, sess transport.Session) {
	var hello wire.Hello
	defer guard.Recover(func(err error, stack []byte) {
		n.panicked(hello.From, err, stack)
		sess.Close(transport.CodeProtocol, err.Error())
	})
	ctx, cancel := context.WithTimeout(contextUntil(n.done), n.cfg.DialTimeout)
	defer cancel()
	begun := n.now()
	o, h, body, err := firstFrame(ctx, sess)
	if err != nil {
		sess.Close(transport.CodeProtocol, "no HELLO")
		return
	}
	if hello, err = core.ReadHello(h, body); err != nil {
		sess.Close(transport.CodeProtocol, "the control stream does not begin with HELLO")
		return
	}
	lease, err := o.lease(ctx, hello)
	if err != nil {
		sess.Close(transport.CodeProtocol, "no lease behind HELLO")
		return
	}
	p, self, err := n.meet(ctx, hello, lease, sess.Peer(), provider.Name())
	if err == nil {
		defer n.welcomeOver(p)
		n.mu.Lock()
		peer := p.Peer
		n.mu.Unlock()
		l := newLink(n, provider.Name(), self.Incarnation, peer, sess, begun)
		l.beside, l.weighed = hello.Beside, n.dialed(provider.Name())
		err = n.answerHello(ctx, l, p, hello, self, o.r)
	}
	if err != nil {
		remote, _ := netip.ParseAddrPort(sess.RemoteAddr()) // the zero Addr where it is none
		if line := n.reports.refusals.Line(zerolog.InfoLevel, remote.Addr()); line != nil {
			line.Stringer("peer", hello.From).Str("remote", sess.RemoteAddr()).Err(err).Msg("link refused")
			n.noteLink("link-refused", hello.From, "of %v: %v", remote.Addr(), err)
		}
		n.refuse(sess, err)
	}
}

// meet checks a HELLO and the lease behind it against the node table. An incarnation that
// is not there yet may be on its way: meet waits for it until ctx is done.
//
// On success this node does not dial until welcomeOver.
func (n *Node) meet(ctx context.Context, hello wire.Hello, lease []byte, id transport.Identity, provider string) (*peerState, Self, error) {
	for {
		n.mu.Lock()
		self, changed := n.self, n.changed
		p := n.peers[hello.From.Node]
		var known Peer
		if p != nil {
			known = p.Peer
		}
		n.mu.Unlock()
		if id.Cluster != self.Cluster {
			return nil, self, fmt.Errorf("%w: certificate of cluster %v", status.Access, id.Cluster)
		}
		err := core.CheckHello(hello, self.linkEnd(), known.linkEnd(self.Cluster), proof(id))
		if err == nil {
			if err = n.prove(lease, known, id); err == nil {
				err = n.duplicate(p, self, provider, hello.Beside)
			}
			return p, self, err
		}
		if status.Of(err) != status.NoDevice {
			return nil, self, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, self, err
		}
	}
}

// duplicate decides between the session over provider that p dialed and one of ours. A peer that
// dials has lost the links that there were; one that sends beside, only one over the same provider.
func (n *Node) duplicate(p *peerState, self Self, provider string, beside bool) error {
	n.mu.Lock()
	now := p.link()
	if core.RefusesDialed(self.UUID, p.UUID, now != nil, now != nil && now.dialed, p.dialing != nil) {
		n.mu.Unlock()
		return fmt.Errorf("%w: the session dialed by node %d stays", status.IsConn, self.Incarnation.Node)
	}
	if p.welcoming++; p.welcomed == nil {
		p.welcomed = make(chan struct{})
	}
	lost := slices.DeleteFunc(slices.Clone(p.links), func(l *link) bool { return beside && l.provider != provider })
	n.mu.Unlock()
	for _, l := range lost {
		l.fail(transport.CodeDuplicate, errNewLink)
	}
	return nil
}

// welcomeOver lets this node dial p again.
func (n *Node) welcomeOver(p *peerState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.welcoming--; p.welcoming == 0 {
		close(p.welcomed)
		p.welcomed = nil
	}
}

// answerHello makes the session of l the link to p. The answer comes first: it
// has to be on the first stream that the peer sees.
func (n *Node) answerHello(ctx context.Context, l *link, p *peerState, hello wire.Hello, self Self, r *wire.Reader) error {
	answer := core.NewAnswer(hello, self.linkEnd(), l.peer.linkEnd(self.Cluster))
	greeting, err := self.greet(answer)
	if err != nil {
		return err
	}
	l.version = answer.VersionMax
	ctrl, err := l.sess.OpenStream(ctx)
	if err == nil {
		_, err = ctrl.Write(greeting)
	}
	if err == nil {
		err = n.cfg.Faults.Hit(failpoint.HelloAnswered)
	}
	if err == nil {
		err = n.adopt(p, l)
	}
	if err != nil {
		l.sess.Close(transport.RefusalCode(err), err.Error())
		return nil // too late for a refusal
	}
	l.start(ctrl, r)
	return nil
}

// refuse sends the peer the reason, and gives it refusalPatience to read that.
func (n *Node) refuse(sess transport.Session, err error) {
	ctx, cancel := context.WithTimeout(contextUntil(n.done), refusalPatience)
	defer cancel()
	defer sess.Close(transport.RefusalCode(err), err.Error())
	stream, streamErr := sess.OpenStream(ctx)
	if streamErr != nil {
		return
	}
	if _, err := stream.Write(core.NewRefusal(err).AppendTo(nil)); err != nil {
		return
	}
	stream.Close()
	select {
	case <-sess.Done(): // the peer has read it
	case <-ctx.Done():
	}
}

// closeError returns the transport's account of a session's end in err's
// chain, nil if there is none.
func closeError(err error) *transport.CloseError {
	ce, _ := errors.AsType[*transport.CloseError](err)
	return ce
}

// sessionError translates the end of a session into why the peer ended it.
func sessionError(sess transport.Session, err error) error {
	ce := closeError(err)
	if ce == nil {
		ce = closeError(sess.Err())
	}
	if ce == nil {
		return err
	}
	return cmp.Or(ce.Refusal(), err)
}

// isViolation reports whether err is the peer's violation of the protocol, and
// not that a stream, the link or the node ended.
func isViolation(err error) bool {
	return errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrUnknownType) ||
		errors.Is(err, status.Protocol) && !errors.Is(err, transport.ErrClosed)
}
