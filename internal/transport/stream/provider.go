package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Provider is one TCP listener on which sessions are accepted, and from which
// they are dialed. It implements transport.Provider.
type Provider struct {
	cfg Config

	sessions  *network.Sessions
	incoming  *network.Handshakes[net.Conn]
	closeOnce sync.Once
	closeErr  error
}

// New opens the listener and begins to accept sessions.
func New(cfg Config) (*Provider, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Listener == nil {
		if cfg.Listener, err = net.Listen("tcp", cfg.Address); err != nil {
			return nil, fmt.Errorf("tcp: %w", err)
		}
	}
	p := &Provider{
		cfg:      cfg,
		sessions: network.New("tcp", "connections to the tcp provider", cfg.Log, cfg.Refused),
		incoming: network.NewHandshakes[net.Conn](cfg.Config, cfg.MaxHandshakes, 2*cfg.MaxHandshakes),
	}
	p.sessions.Begin()
	go p.acceptLoop()
	return p, nil
}

// Attributes implements transport.Provider.
func (p *Provider) Attributes() transport.Attributes {
	return transport.Attributes{Encrypted: !p.cfg.Plaintext}
}

// Name returns "tcp".
func (p *Provider) Name() string { return "tcp" }

// Addr returns the listener's address.
func (p *Provider) Addr() string { return p.cfg.Listener.Addr().String() }

// acceptPause is how long the accept loop waits after a transient error, such as too few
// descriptors.
const acceptPause = 10 * time.Millisecond

// acceptLoop starts a goroutine for each connection that gets a place.
func (p *Provider) acceptLoop() {
	defer p.sessions.Done()
	for {
		c, err := p.cfg.Listener.Accept()
		if err != nil {
			if !wait.For(p.sessions.Context.Done(), acceptPause) {
				return
			}
			p.cfg.Log.Warn().Str("op", "accept").Err(err).Msg("tcp: accept")
			continue
		}
		if !p.admit(c) {
			_ = c.Close()
			p.refused(c, network.ErrTooMany)
			continue
		}
		go func() {
			defer p.sessions.Done()
			defer p.incoming.Leave(c)
			defer guard.Recover(func(err error, stack []byte) {
				p.sessions.Panicked(c.RemoteAddr().String(), err, stack)
				_ = c.Close()
			})
			if err := p.serve(c); err != nil {
				p.refused(c, err)
			}
		}()
	}
}

// refused counts and logs a refusal, unless Close has begun.
func (p *Provider) refused(c net.Conn, err error) {
	if p.sessions.Context.Err() == nil {
		p.sessions.Refused(c.RemoteAddr(), err)
	}
}

// admit takes a place for an incoming handshake. A handshake that loses its slot to it ends.
func (p *Provider) admit(c net.Conn) bool {
	if !p.sessions.Begin() {
		return false
	}
	evicted, ok := p.incoming.Enter(c, c.RemoteAddr())
	if evicted != nil {
		_ = evicted.Close() // its goroutine ends soon
	}
	if !ok {
		p.sessions.Done()
	}
	return ok
}

// Accept implements transport.Provider.
func (p *Provider) Accept(ctx context.Context) (transport.Session, error) {
	return p.sessions.Accept(ctx)
}

// Dial implements transport.Provider.
func (p *Provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	return p.sessions.Dial(ctx, address, p.cfg.HandshakeTimeout, p.dial)
}

// dial opens a connection, secures it and exchanges hellos.
func (p *Provider) dial(ctx context.Context, address string) (transport.Session, error) {
	c, err := p.cfg.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	settle := interruptible(ctx, c)
	s, err := p.establish(ctx, c, true)
	if !settle() && err == nil {
		s.hangUp()
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	if !p.adopt(s) {
		return nil, transport.ErrClosed
	}
	return s, nil
}

// serve completes one incoming connection, and passes the session to Accept.
func (p *Provider) serve(c net.Conn) error {
	ctx, cancel := context.WithTimeoutCause(p.sessions.Context, p.cfg.HandshakeTimeout, errSlow)
	defer cancel()
	settle := interruptible(ctx, c)
	s, err := p.establish(ctx, c, false)
	if !settle() && (err == nil || ctx.Err() != nil) {
		if err == nil {
			s.hangUp()
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = c.Close()
		return err
	}
	p.incoming.Proved(c)
	if p.adopt(s) {
		p.sessions.Offer(s)
	}
	return nil
}

var errSlow = &transport.CloseError{Code: transport.CodeProtocol, Reason: "handshake too slow"}

var longAgo = time.Unix(1, 0)

// interruptible makes calls on c fail when ctx ends, until settle. settle reports false if ctx has
// ended before.
func interruptible(ctx context.Context, c net.Conn) (settle func() bool) {
	// Only a connection that has ended refuses a deadline.
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(longAgo) })
}

// adopt adds s to the sessions that end with p and starts it. If Close has begun
// it ends s instead.
func (p *Provider) adopt(s *session) bool {
	if p.sessions.Adopt(s, s.serve) {
		return true
	}
	s.Close(transport.CodeOK, network.Closing)
	s.run()
	return false
}

// Close implements transport.Provider.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.sessions.End()
		p.closeErr = p.cfg.Listener.Close()
		if errors.Is(p.closeErr, net.ErrClosed) {
			p.closeErr = nil
		}
		p.sessions.Wait()
	})
	return p.closeErr
}
