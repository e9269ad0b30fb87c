package mem

import (
	"context"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// acceptBacklog bounds the sessions that wait for Accept; further dials are
// refused.
const acceptBacklog = 128

// A Provider is one address of a hub. It implements transport.Provider.
type Provider struct {
	hub     *Hub
	address string
	id      transport.Identity
	backlog chan *session
	done    chan struct{}
	closed  bool // the hub's lock guards it
}

// Attributes implements transport.Provider.
func (p *Provider) Attributes() transport.Attributes { return transport.Attributes{Datagrams: true} }

// Name returns "mem".
func (p *Provider) Name() string { return "mem" }

// Addr returns the provider's address in its hub.
func (p *Provider) Addr() string { return p.address }

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
	roundTrip := time.NewTimer(2 * p.hub.cfg.Delay)
	defer roundTrip.Stop()
	select {
	case <-roundTrip.C:
	case <-ctx.Done():
	}
	timeout := time.NewTimer(dialTimeout)
	defer timeout.Stop()
	for ctx.Err() == nil {
		s, wait, err := p.hub.dial(p, address)
		if wait == nil {
			return s, err
		}
		select {
		case <-wait:
		case <-timeout.C:
			return nil, &transport.CloseError{Timeout: true}
		case <-p.done:
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
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
	for _, s := range p.shut(false) {
		s.Close(transport.CodeOK, "provider closed")
	}
	return nil
}

// shut stops Accept and Dial and returns the sessions that were open. The address
// is free unless nothing is to answer there.
func (p *Provider) shut(silent bool) []*session {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	close(p.done)
	if !silent {
		delete(p.hub.providers, p.address)
	}
	return p.hub.sessionsOf(p)
}
