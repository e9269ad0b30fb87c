package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wait"
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

	// Guarded by the hub's lock.
	closed bool
	open   map[*session]struct{}
}

// Attributes implements transport.Provider.
func (p *Provider) Attributes() transport.Attributes { return transport.Attributes{Datagrams: true} }

// Name returns "mem".
func (p *Provider) Name() string { return "mem" }

// Addr returns the provider's address in its hub.
func (p *Provider) Addr() string { return p.address }

// Dial implements transport.Provider. It fails with ErrRefused where no
// provider is.
func (p *Provider) Dial(ctx context.Context, address string) (transport.Session, error) {
	err := ctx.Err()
	var s *session
	if err == nil {
		s, err = p.hub.dial(p, address)
	}
	if err != nil {
		return nil, fmt.Errorf("mem: dial %s: %w", address, err)
	}
	return s, nil
}

// Accept implements transport.Provider.
func (p *Provider) Accept(ctx context.Context) (transport.Session, error) {
	if wait.Over(p.done) {
		return nil, fmt.Errorf("mem: accept: %w", transport.ErrClosed)
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
	for _, s := range p.shut() {
		s.Close(transport.CodeOK, "provider closed")
	}
	return nil
}

// shut stops Accept and Dial and returns the sessions that were open.
func (p *Provider) shut() []*session {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	close(p.done)
	delete(p.hub.providers, p.address)
	return slices.Collect(maps.Keys(p.open))
}

// forget forgets a session that has ended.
func (p *Provider) forget(s *session) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	delete(p.open, s)
}
