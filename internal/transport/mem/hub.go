// Package mem is the transport provider inside one process: the loopback path
// of a node, and the network of clusters in tests, whose faults and delays are
// those of package inject.
//
// The two ends of a stream share one buffer under a lock: a write copies in, a read
// copies out, neither allocates once the buffer has grown. There are no goroutines, so
// that everything runs in a testing/synctest bubble.
package mem

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/fabricd/fabricd/internal/transport"
)

// ErrRefused is in the error of a Dial that no provider accepts.
var ErrRefused = errors.New("connection refused")

// Config configures a hub.
type Config struct {
	// StreamBuffer is how many bytes one stream holds for its reader; a Write beyond it
	// waits. 0: 256 KiB.
	StreamBuffer int

	// MaxStreams bounds the open streams of one session in one direction, as
	// those of the other providers. 0: 32768.
	MaxStreams int
}

// Pair returns the two ends of a session without a network: the first belongs to
// a, and its Peer is b.
func Pair(a, b transport.Identity) (transport.Session, transport.Session) {
	h := NewHub(Config{})
	from, to := h.provider("mem", a), h.provider("mem", b)
	return between(from, to)
}

// A Hub is the network between the providers of one process. All methods may
// be called from any goroutine.
type Hub struct {
	cfg Config

	mu        sync.Mutex // guards the fields below, and closed and open of the providers
	providers map[string]*Provider
}

// NewHub returns a hub without providers.
func NewHub(cfg Config) *Hub {
	cfg.StreamBuffer = cmp.Or(cfg.StreamBuffer, 256<<10)
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 32768)
	return &Hub{cfg: cfg, providers: make(map[string]*Provider)}
}

// Provider adds a provider at address that proves id to its peers.
func (h *Hub) Provider(address string, id transport.Identity) (*Provider, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.providers[address] != nil {
		return nil, fmt.Errorf("mem: address %q is in use", address)
	}
	p := h.provider(address, id)
	h.providers[address] = p
	return p, nil
}

func (h *Hub) provider(address string, id transport.Identity) *Provider {
	return &Provider{
		hub: h, address: address, id: id,
		backlog: make(chan *session, acceptBacklog),
		done:    make(chan struct{}),
		open:    make(map[*session]struct{}),
	}
}

// dial makes a session from p to address.
func (h *Hub) dial(p *Provider, address string) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.providers[address]
	switch {
	case p.closed:
		return nil, transport.ErrClosed
	case target == nil:
		return nil, fmt.Errorf("no node accepts there: %w", ErrRefused)
	case len(target.backlog) == acceptBacklog:
		return nil, fmt.Errorf("too many wait for accept: %w", ErrRefused)
	}
	from, to := between(p, target)
	p.open[from], target.open[to] = struct{}{}, struct{}{}
	target.backlog <- to
	return from, nil
}

// between returns the two ends of a new session.
func between(from, to *Provider) (a, b *session) {
	a, b = newSession(from), newSession(to)
	a.peer, b.peer = b, a
	return a, b
}
