package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/membership/trust"
)

// Bounds of what strangers can make a server hold open. Nodes on one machine
// share its address, so the bound per address is generous. When all places are
// taken, the address that holds most gives one up to an address that holds less.
const (
	maxOpening        = 256
	maxOpeningPerAddr = 128
)

// ErrElsewhere is the error of reading a connection that turned out to be for
// somebody else than the Server, who has it now.
var ErrElsewhere = errors.New("the connection is for another listener")

// Config says how a Server answers. It is not modified after Serve.
type Config struct {
	Listener net.Listener // closed by the Server
	Store    *trust.Store
	// Self returns this node as it is now, and the signed lease of its life. It
	// must not block.
	Self func() (End, []byte)

	// Admit may refuse an opening whose claims are proved, best with Refusef.
	// proto is ProtoControl or ProtoLifeline; id is what the certificate proves;
	// lease is that of h.From.Life, the
	// zero Lease without a life and on control sessions. Nil admits everybody.
	Admit func(proto string, h Hello, id trust.Identity, lease Lease) error
	// Session gets every control session, not started. Nil: this node is not
	// the host and refuses them.
	Session func(*Session)
	// Lifeline gets every lifeline, not started.
	Lifeline func(*Lifeline)
	// Join decides about a node that wants to join; it redeems the token over
	// the connection state and may take a moment. Nil: as Session.
	Join func(cs tls.ConnectionState, ask JoinAsk) (JoinGrant, error)

	Log     zerolog.Logger
	Refused func() // is called for every connection that shows nobody who is admitted; it must not wait. Nil: nobody counts
}

// A Server accepts control sessions, lifelines and joining nodes on one
// listener and tells them apart by their ALPN protocol.
type Server struct {
	cfg    Config
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the accept loop and every opening

	mu      sync.Mutex // guards the fields below
	opening map[net.Conn]opening
	perAddr map[string]int // how many of opening
	begun   uint64         // openings ever begun
}

// An opening is a connection that has not shown who it is.
type opening struct {
	from  string // the peer's address, without the port
	order uint64 // counts the openings
}

// Serve starts to accept.
func Serve(cfg Config) *Server {
	if cfg.Refused == nil {
		cfg.Refused = func() {}
	}
	s := &Server{cfg: cfg, opening: make(map[net.Conn]opening), perAddr: make(map[string]int)}
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
	for c := range s.opening {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
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
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(10 * time.Millisecond): // for example, no descriptors left
			s.cfg.Log.Warn().Err(err).Msg("control: accept")
		}
	}
}

// admit starts the opening of c, unless too many are under way.
func (s *Server) admit(c net.Conn) {
	if !s.enter(c, hostOf(c.RemoteAddr())) {
		c.Close()
		return
	}
	s.wg.Go(func() {
		err := s.open(c)
		s.mu.Lock()
		s.leaveLocked(c)
		s.mu.Unlock()
		if err != nil {
			c.Close()
		}
		if err != nil && !errors.Is(err, ErrElsewhere) {
			s.cfg.Refused()
			s.cfg.Log.Info().Str("remote", c.RemoteAddr().String()).Err(err).Msg("control: connection refused")
		}
	})
}

// enter takes a place for c. It reports false if there is none.
func (s *Server) enter(c net.Conn, from string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.perAddr[from] >= maxOpeningPerAddr {
		return false
	}
	if len(s.opening) >= maxOpening && !s.makeRoomLocked(from) {
		return false
	}
	s.begun++
	s.opening[c] = opening{from, s.begun}
	s.perAddr[from]++
	return true
}

// leaveLocked gives c's place back, once. The caller holds mu.
func (s *Server) leaveLocked(c net.Conn) {
	o, ok := s.opening[c]
	if !ok {
		return
	}
	delete(s.opening, c)
	if s.perAddr[o.from]--; s.perAddr[o.from] == 0 {
		delete(s.perAddr, o.from)
	}
}

// makeRoomLocked ends the oldest opening of the address that has most of them,
// so that somebody who holds connections open without a word keeps out nobody
// else. It reports false if from would then have more than that address. The
// caller holds mu.
func (s *Server) makeRoomLocked(from string) bool {
	var oldest net.Conn
	var worst opening
	for c, o := range s.opening {
		more := s.perAddr[o.from] - s.perAddr[worst.from]
		if oldest == nil || more > 0 || more == 0 && o.order < worst.order {
			oldest, worst = c, o
		}
	}
	if s.perAddr[worst.from] <= s.perAddr[from]+1 {
		return false
	}
	s.leaveLocked(oldest)
	oldest.Close() // its goroutine ends soon
	return true
}

func hostOf(a net.Addr) string {
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return h
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
	if proto == ProtoControl {
		s.cfg.Session(newSession(l, s.cfg.Store, o, true))
		return nil
	}
	s.cfg.Lifeline(newLifeline(l, o, true))
	return nil
}

// tls returns the configuration that fits the client's protocol: who joins has
// no certificate yet.
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
	welcome := Welcome{Version: version, From: self, Lease: lease}
	if proto == ProtoLifeline && len(hello.Challenge) > 0 {
		if welcome.Proof, err = SignProof(s.cfg.Store, self, hello.Challenge); err != nil {
			return opened{}, l.refuse(err)
		}
	}
	return o, l.write(welcome)
}

// check decides about a HELLO, from what needs least to what needs most. It
// returns the version to speak, and adds the peer's lease to o.
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
