package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership/trust"
)

// openings bounds the connections that are not authenticated yet. A TCP connection, a handshake and
// one frame take an honest peer far less than Grace.
var openings = admission.Limits{Total: 256, Reserved: 64, PerAddress: 64, PerNetwork: 96, Grace: 250 * time.Millisecond}

// ErrElsewhere is the error of reading a connection that turned out to be for another listener,
// which has it now.
var ErrElsewhere = errors.New("the connection is for another listener")

// Config describes how a Server answers. It is not modified after Serve.
type Config struct {
	Listener net.Listener // closed by the Server
	Store    *trust.Store
	// Self returns this node as it is now, and the signed lease of its incarnation. It
	// must not block.
	Self func() (End, []byte)

	// Admit may refuse an opening whose claims are proved, best with Refusef. proto is ProtoControl
	// or ProtoLifeline; id is the identity that the certificate proves; lease is that of
	// h.From.Incarnation, the zero Lease without an incarnation and on control sessions. Nil admits every peer.
	Admit func(proto string, h Hello, id trust.Identity, lease Lease) error
	// Known reports whether a member of the cluster is, or was, at an address. Those have slots of
	// their own among the connections that are not authenticated yet. It must not wait. Nil: none
	// is known.
	Known func(netip.Addr) bool
	// Session gets every control session, not started. Nil: this node is not
	// the host and refuses them.
	Session func(*Session)
	// Lifeline gets every lifeline, not started.
	Lifeline func(*Lifeline)
	// Join decides about a node that wants to join; it redeems the token over
	// the connection state and may take a moment. Nil: as Session.
	Join func(cs tls.ConnectionState, ask JoinAsk) (JoinGrant, error)

	Log     zerolog.Logger
	Refused func() // is called for every connection that is not authenticated and admitted; it must not wait. Nil: not counted
}

// A Server accepts control sessions, lifelines and joining nodes on one
// listener and distinguishes them by their ALPN protocol.
type Server struct {
	cfg    Config
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the accept loop and every opening

	refusals *logbound.Summary
	failures *logbound.Summary // of accept
	panics   *logbound.Summary

	mu      sync.Mutex // guards opening
	opening *admission.Table[net.Conn]
}

// Serve starts to accept.
func Serve(cfg Config) *Server {
	if cfg.Refused == nil {
		cfg.Refused = func() {}
	}
	if cfg.Known == nil {
		cfg.Known = func(netip.Addr) bool { return false }
	}
	s := &Server{
		cfg:      cfg,
		opening:  admission.New[net.Conn](openings),
		refusals: logbound.New(cfg.Log, "connections were refused"),
		failures: logbound.New(cfg.Log, "connections could not be accepted"),
		panics:   logbound.New(cfg.Log, "connections ended with an internal error"),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s
}

// Close stops to accept and ends every opening that is under way. Sessions and
// lifelines that were handed over stay with their owner. It waits for all
// goroutines of the server; a second call does so too.
func (s *Server) Close() error {
	s.cancel()
	err := s.cfg.Listener.Close()
	s.mu.Lock()
	for _, c := range s.opening.Keys() {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	for _, lines := range []*logbound.Summary{s.refusals, s.failures, s.panics} {
		lines.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.cfg.Listener.Accept()
		if err == nil {
			s.admit(c)
			continue
		}
		if !wait.For(s.ctx.Done(), 10*time.Millisecond) {
			return
		}
		s.failures.Line(zerolog.WarnLevel, netip.Addr{}).Err(err).Msg("control: accept") // for example, no descriptors left
	}
}

// errNoSlot is why a connection is refused while too many strangers are here.
var errNoSlot = errors.New("too many connections without a proven identity")

// admit starts the opening of c, unless too many are under way.
func (s *Server) admit(c net.Conn) {
	from := admission.AddressOf(c.RemoteAddr())
	if !s.enter(c, from) {
		c.Close()
		if s.ctx.Err() == nil {
			s.refuse(c, from, errNoSlot)
		}
		return
	}
	s.wg.Go(func() {
		defer s.leave(c)
		defer guard.Recover(func(err error, stack []byte) {
			c.Close()
			s.cfg.Refused()
			s.panics.Line(zerolog.ErrorLevel, from).Stringer("remote", c.RemoteAddr()).Err(err).Bytes("stack", stack).Msg("control: connection ended")
		})
		err := s.open(c)
		if err != nil {
			c.Close()
		}
		if err != nil && !errors.Is(err, ErrElsewhere) {
			s.refuse(c, from, err)
		}
	})
}

// refuse counts and logs that c was refused. The text of err may be the peer's.
func (s *Server) refuse(c net.Conn, from netip.Addr, err error) {
	s.cfg.Refused()
	s.refusals.Line(zerolog.InfoLevel, from).Stringer("remote", c.RemoteAddr()).
		Str(zerolog.ErrorFieldName, logbound.Text(err.Error())).Msg("control: connection refused")
}

// enter takes a slot for c, and ends the connection that loses its own for it. It
// reports false if there is none.
func (s *Server) enter(c net.Conn, from netip.Addr) bool {
	known := s.cfg.Known(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	evicted, ok := s.opening.Enter(c, from, known, time.Now())
	if evicted != nil {
		evicted.Close() // its goroutine ends soon
	}
	return ok
}

// leave gives c's slot back, if it still has one.
func (s *Server) leave(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening.Leave(c)
}

// open does the server's half of the opening and hands the result over.
func (s *Server) open(c net.Conn) error {
	c.SetDeadline(time.Now().Add(openTimeout))
	t := tls.Server(c, s.tls())
	if err := t.HandshakeContext(s.ctx); err != nil {
		return err
	}
	l := newLink(c, t)
	proto := t.ConnectionState().NegotiatedProtocol
	if proto == trust.JoinALPN {
		return s.join(l)
	}
	o, err := s.greet(l, proto)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Time{})
	s.leave(c) // it is authenticated: no newcomer ends it any more
	if proto == ProtoControl {
		s.cfg.Session(newSession(l, s.cfg.Store, o, true))
		return nil
	}
	s.cfg.Lifeline(newLifeline(l, o, true))
	return nil
}

// tls returns the configuration that fits the client's protocol: a joining node has no certificate
// yet.
func (s *Server) tls() *tls.Config {
	mutual := s.cfg.Store.ServerTLS(ProtoControl, ProtoLifeline)
	mutual.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Contains(hello.SupportedProtos, trust.JoinALPN) {
			return s.cfg.Store.JoinServerTLS(), nil
		}
		return nil, nil
	}
	return mutual
}

// greet reads the HELLO, checks it and answers.
func (s *Server) greet(l *link, proto string) (opened, error) {
	f, err := l.read()
	if err != nil {
		return opened{}, fmt.Errorf("read HELLO: %w", err)
	}
	hello, ok := f.(Hello)
	if !ok {
		return opened{}, l.refuse(Refusef(CodeProtocol, "want HELLO, got %T", f))
	}
	self, lease := s.cfg.Self()
	if proto == ProtoControl {
		lease = nil
	}
	o := opened{self: self, peer: hello.From}
	version, err := s.check(l, proto, hello, &o)
	if err != nil {
		return opened{}, l.refuse(err)
	}
	o.version = version
	welcome := Welcome{Version: version, From: self, Lease: lease}
	if proto == ProtoLifeline && len(hello.Challenge) > 0 {
		if welcome.Proof, err = SignProof(s.cfg.Store, self, hello.Challenge); err != nil {
			return opened{}, l.refuse(err)
		}
	}
	return o, l.write(welcome)
}

// check decides about a HELLO, cheapest checks first. It returns the version to speak, and adds the
// peer's lease to o.
func (s *Server) check(l *link, proto string, h Hello, o *opened) (uint16, error) {
	version, err := negotiate(h.VersionMin, h.VersionMax)
	if err != nil {
		return 0, err
	}
	own := s.cfg.Store.Identity()
	if h.Cluster != own.Cluster {
		return 0, Refusef(CodeCluster, "this is cluster %s, the peer is of %s", own.Cluster, h.Cluster)
	}
	id, err := trust.IdentityOf(l.tls.ConnectionState())
	if err != nil {
		return 0, err
	}
	if err := checkClaim(h.From, id); err != nil {
		return 0, err
	}
	o.id = id
	l.identified(id)
	if h.From.UUID == own.Node && h.From.Epoch == o.self.Epoch {
		return 0, Refusef(CodeTarget, "this node called itself")
	}
	if !h.To.UUID.IsZero() && h.To.UUID != own.Node {
		return 0, Refusef(CodeTarget, "this is node %s, the peer wants %s", own.Node, h.To.UUID)
	}
	if proto == ProtoControl && s.cfg.Session == nil {
		return 0, Refusef(CodeRole, "node %s is not the host", own.Node)
	}
	if proto == ProtoLifeline {
		if o.lease, err = checkEnd(s.cfg.Store, h.From, id.Key, h.Lease); err != nil {
			return 0, err
		}
	}
	if s.cfg.Admit != nil {
		if err := s.cfg.Admit(proto, h, id, o.lease); err != nil {
			return 0, err
		}
	}
	return version, nil
}
