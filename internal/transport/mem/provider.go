package mem

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// acceptBacklog bounds the sessions that wait for Accept; further dials are
// refused.
const acceptBacklog = 128

// A Provider is one address of a hub. It implements transport.Provider.
type Provider struct {
	hub     *Hub
	self    endpoint
	backlog chan *session
	done    chan struct{}

	mu       sync.Mutex // guards the fields below; taken after the hub's mu
	closed   bool
	sessions map[*session]struct{}
}

// Attributes implements transport.Provider.
func (p *Provider) Attributes() transport.Attributes { return transport.Attributes{Datagrams: true} }

// Name returns "mem".
func (p *Provider) Name() string { return "mem" }

// Addr returns the provider's address in its hub.
func (p *Provider) Addr() string { return p.self.address }

// Dial implements transport.Provider. It fails with ErrRefused where no
// provider is, and with a timeout where a path is cut or a provider died
// silently.
func (p *Provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	s, err := p.dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("mem: dial %s: %w", address, err)
	}
	return s, nil
}

func (p *Provider) dial(ctx context.Context, address string) (*session, error) {
	if err := p.hub.roundTrip(ctx); err != nil {
		return nil, err
	}
	var timeout <-chan time.Time
	for {
		s, wait, err := p.hub.dial(p, address)
		if wait == nil {
			return s, err
		}
		if timeout == nil {
			t := time.NewTimer(p.hub.cfg.DialTimeout)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-wait:
		case <-timeout:
			return nil, &transport.CloseError{Timeout: true}
		case <-p.done:
			return nil, transport.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Accept implements transport.Provider.
func (p *Provider) Accept(ctx context.Context) (transport.Session, error) {
	select {
	case <-p.done:
		return nil, fmt.Errorf("mem: accept: %w", transport.ErrClosed)
	default:
	}
	select {
	case s := <-p.backlog:
		return s, nil
	case <-p.done:
		return nil, fmt.Errorf("mem: accept: %w", transport.ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("mem: accept: %w", ctx.Err())
	}
}

// Close implements transport.Provider. The address is free afterwards.
func (p *Provider) Close() error {
	p.hub.mu.Lock()
	if p.hub.providers[p.self.address] == p {
		delete(p.hub.providers, p.self.address)
	}
	p.hub.mu.Unlock()
	for _, s := range p.shut() {
		s.Close(transport.CodeOK, "provider closed")
	}
	return nil
}

// shut stops Accept and Dial and returns the sessions that were open.
func (p *Provider) shut() (open []*session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	close(p.done)
	for s := range p.sessions {
		open = append(open, s)
	}
	return open
}

// adopt adds s to the sessions that end with p.
func (p *Provider) adopt(s *session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return transport.ErrClosed
	}
	p.sessions[s] = struct{}{}
	return nil
}

// enqueue adopts s and hands it to Accept.
func (p *Provider) enqueue(s *session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrRefused
	}
	select {
	case p.backlog <- s:
	default:
		return fmt.Errorf("too many wait for accept: %w", ErrRefused)
	}
	p.sessions[s] = struct{}{}
	return nil
}

// forget removes a session that has ended.
func (p *Provider) forget(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s)
}
