package quic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/transport"
)

// connectionIDLength is the length of connection IDs in bytes: unguessable
// enough, since sessions are found by them and not by address.
const connectionIDLength = 8

// A Provider is one UDP socket on which sessions are accepted and dialed. It
// implements transport.Provider.
type Provider struct {
	cfg       Config
	transport *quicgo.Transport
	listener  *quicgo.EarlyListener
	settings  *quicgo.Config
	tails     tails

	ctx       context.Context // ends when Close begins
	stop      context.CancelFunc
	accepted  chan *session // handed from handshakes to Accept; unbuffered
	pending   atomic.Int64  // incoming handshakes, at most cfg.MaxHandshakes
	refusals  *logbound.Summary
	running   sync.WaitGroup
	closeOnce sync.Once
	closeErr  error

	slotMu sync.Mutex // guards slots
	slots  *admission.Table[*halfOpen]

	mu       sync.Mutex // guards the fields below
	closed   bool       // nothing is added to running or sessions any more
	sessions map[*session]struct{}
}

// New opens the socket and begins to accept sessions.
func New(cfg Config) (*Provider, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.PacketConn == nil {
		if cfg.PacketConn, err = net.ListenPacket("udp", cfg.Address); err != nil {
			return nil, fmt.Errorf("quic: %w", err)
		}
	}
	p := &Provider{
		cfg:      cfg,
		settings: cfg.quicConfig(),
		accepted: make(chan *session),
		refusals: logbound.New(cfg.Log, "sessions over quic were refused"),
		slots:    admission.New[*halfOpen](limits(cfg.MaxHandshakes)),
		sessions: make(map[*session]struct{}),
		tails:    tails{of: make(map[netip.AddrPort]*tail)},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.transport = &quicgo.Transport{
		Conn:                newSocket(ReceiveOffload(cfg.PacketConn), &p.tails),
		ConnectionIDLength:  connectionIDLength,
		StatelessResetKey:   (*quicgo.StatelessResetKey)(cfg.StatelessResetKey),
		VerifySourceAddress: p.underAttack,
		ConnContext:         p.admit,
	}
	if p.listener, err = p.transport.ListenEarly(p.cfg.serverTLS(), p.settings); err != nil {
		p.stop()
		return nil, errors.Join(fmt.Errorf("quic: listen: %w", err), cfg.PacketConn.Close())
	}
	p.running.Add(1)
	go p.acceptLoop()
	return p, nil
}

// Attributes implements transport.Provider.
func (p *Provider) Attributes() transport.Attributes {
	return transport.Attributes{Encrypted: true, Datagrams: true}
}

// Name returns "quic".
func (p *Provider) Name() string { return "quic" }

// Addr returns the socket's address.
func (p *Provider) Addr() string { return p.cfg.PacketConn.LocalAddr().String() }

// Accept implements transport.Provider.
func (p *Provider) Accept(ctx context.Context) (transport.Session, error) {
	if p.ctx.Err() == nil {
		select {
		case s := <-p.accepted:
			return s, nil
		case <-p.ctx.Done():
		case <-ctx.Done():
			return nil, fmt.Errorf("quic: accept: %w", ctx.Err())
		}
	}
	return nil, fmt.Errorf("quic: accept: %w", transport.ErrClosed)
}

// Dial implements transport.Provider. Nobody at the address shows as a timeout:
// UDP does not tell.
func (p *Provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	if !p.begin() {
		return nil, fmt.Errorf("quic: dial %s: %w", address, transport.ErrClosed)
	}
	defer p.running.Done()
	bounded, cancel := context.WithTimeoutCause(ctx, p.cfg.HandshakeTimeout, &transport.CloseError{Timeout: true})
	defer cancel()
	bounded, abort := context.WithCancelCause(bounded)
	defer abort(nil)
	defer context.AfterFunc(p.ctx, func() { abort(transport.ErrClosed) })()
	s, err := p.dial(bounded, address)
	if err == nil {
		return s, nil
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case bounded.Err() != nil:
		err = context.Cause(bounded)
	}
	return nil, fmt.Errorf("quic: dial %s: %w", address, err)
}

// dial opens a session and is not put off by a refusal. A peer refuses while too
// many dial it at once, which passes soon.
func (p *Provider) dial(ctx context.Context, address string) (*session, error) {
	to, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	const firstPause, maxPause = 20 * time.Millisecond, 80 * time.Millisecond
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		s, err := p.dialOnce(ctx, to)
		if !isRefused(err) {
			return s, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
}

// dialOnce opens, secures and confirms a connection. The peer may refuse it in
// all three: its queue of finished handshakes is short.
func (p *Provider) dialOnce(ctx context.Context, to *net.UDPAddr) (*session, error) {
	tlsConfig, err := p.cfg.clientTLS()
	if err != nil {
		return nil, err
	}
	conn, err := p.transport.Dial(ctx, to, tlsConfig, p.settings)
	if err != nil {
		return nil, explain(err)
	}
	s, err := p.confirm(ctx, conn)
	if err != nil {
		return nil, err
	}
	if !p.adopt(s) {
		return nil, transport.ErrClosed
	}
	return s, nil
}

// isRefused reports whether the peer had no room for a handshake.
func isRefused(err error) bool {
	var e *quicgo.TransportError
	return errors.As(err, &e) && e.Remote && e.ErrorCode == quicgo.ConnectionRefused
}

// explain adds the contract's CloseError to an error of a handshake.
func explain(err error) error { return &causedError{closeError(err), err} }

// resolve returns the UDP address of "host:port", where host is an IP address
// or a name.
func resolve(ctx context.Context, address string) (*net.UDPAddr, error) {
	if at, err := netip.ParseAddrPort(address); err == nil {
		return net.UDPAddrFromAddrPort(at), nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", port, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ips[0].Unmap(), uint16(number))), nil
}

// begin registers a goroutine, unless Close has begun. The goroutine ends with
// running.Done.
func (p *Provider) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

// adopt adds s to the sessions that end with p and starts its pump and its
// watch. If Close has begun it closes s instead.
func (p *Provider) adopt(s *session) bool {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		s.Close(transport.CodeOK, closingReason)
		return false
	}
	p.sessions[s] = struct{}{}
	p.running.Add(2)
	p.mu.Unlock()
	panicked := func(err error, stack []byte) {
		p.cfg.panicked(s.conn.RemoteAddr(), err, stack)
		s.Close(transport.CodeProtocol, err.Error())
	}
	go func() {
		defer p.running.Done()
		defer guard.Recover(panicked)
		s.watch(p.ctx)
	}()
	go func() {
		defer p.running.Done()
		defer p.forget(s)
		defer guard.Recover(panicked)
		s.pump()
	}()
	return true
}

// forget forgets a session that is over.
func (p *Provider) forget(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s)
}

// closingReason is what the peers of a closing provider are told.
const closingReason = "provider closed"

// Close implements transport.Provider. The order matters: quic-go's transport
// tells peers nothing, so that each session must have said its end before.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.mu.Lock()
		p.closed = true
		open := make([]*session, 0, len(p.sessions))
		for s := range p.sessions {
			open = append(open, s)
		}
		p.mu.Unlock()
		p.stop()
		for _, s := range open {
			s.Close(transport.CodeOK, closingReason)
		}
		p.closeErr = p.listener.Close()
		p.running.Wait()
		p.refusals.Close()
		p.cfg.panics.Close()
		p.closeErr = errors.Join(p.closeErr, p.transport.Close(), p.cfg.PacketConn.Close())
	})
	return p.closeErr
}
