package quic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/wait"
)

// connectionIDLength is the length of connection IDs in bytes. They must be hard to guess, because
// sessions are found by them and not by address.
const connectionIDLength = 8

// A Provider is one UDP socket on which sessions are accepted and dialed. It
// implements transport.Provider.
type Provider struct {
	cfg       Config
	transport *quicgo.Transport
	listener  *quicgo.EarlyListener
	settings  *quicgo.Config
	tls       network.TLS
	tails     tails
	sessions  *network.Sessions
	incoming  *network.Handshakes[*halfOpen]
	closeOnce sync.Once
	closeErr  error
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
		sessions: network.New("quic", "sessions over quic", cfg.Log, cfg.Refused),
		// A quarter of the slots stays free for handshakes that have lost theirs but still exist:
		// before Accept has returned the connection, quic-go ends a handshake only by its timeout.
		incoming: network.NewHandshakes[*halfOpen](cfg.Config, cfg.MaxHandshakes-cfg.MaxHandshakes/4, cfg.MaxHandshakes),
		tails:    tails{of: make(map[netip.AddrPort]*tail)},
	}
	p.tls = cfg.tls(func(err error, stack []byte) { p.sessions.Panicked("", err, stack) })
	p.transport = &quicgo.Transport{
		Conn:                newSocket(ReceiveOffload(cfg.PacketConn), &p.tails),
		ConnectionIDLength:  connectionIDLength,
		StatelessResetKey:   (*quicgo.StatelessResetKey)(cfg.StatelessResetKey),
		VerifySourceAddress: p.underAttack,
		ConnContext:         p.admit,
	}
	if p.listener, err = p.transport.ListenEarly(p.tls.ServerConfig(), p.settings); err != nil {
		p.sessions.End()
		return nil, errors.Join(fmt.Errorf("quic: listen: %w", err), cfg.PacketConn.Close())
	}
	p.sessions.Begin()
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
	return p.sessions.Accept(ctx)
}

// Dial implements transport.Provider. An address without a peer shows as a timeout: UDP reports no
// error.
func (p *Provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	return p.sessions.Dial(ctx, address, p.cfg.HandshakeTimeout, p.dial)
}

// dial opens a session and retries after a refusal. A peer refuses while too many others dial it at
// once, which is transient.
func (p *Provider) dial(ctx context.Context, address string) (transport.Session, error) {
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
		if !wait.For(ctx.Done(), pause) {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
}

// dialOnce opens, secures and confirms a connection. The peer may refuse it in all three steps: its
// queue of finished handshakes is short.
func (p *Provider) dialOnce(ctx context.Context, to *net.UDPAddr) (*session, error) {
	tlsConfig, err := p.tls.ClientConfig()
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
func explain(err error) error { return &network.CausedError{CloseError: closeError(err), Cause: err} }

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

// adopt adds s to the sessions that end with p and starts its pump and its
// watch. If Close has begun it closes s instead.
func (p *Provider) adopt(s *session) bool {
	if p.sessions.Adopt(s, s.pump, func() { s.watch(p.sessions.Context) }) {
		return true
	}
	s.Close(transport.CodeOK, network.Closing)
	return false
}

// Close implements transport.Provider. The order matters: quic-go's transport sends peers nothing,
// so each session must have sent its end before.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.sessions.End()
		p.closeErr = p.listener.Close()
		p.sessions.Wait()
		p.closeErr = errors.Join(p.closeErr, p.transport.Close(), p.cfg.PacketConn.Close())
	})
	return p.closeErr
}
