// Package mem is the transport provider inside one process: the loopback path
// of a node, and the network of clusters in tests.
//
// A stream is a bounded ring under a lock: a write copies in, a read copies out,
// neither allocates once the ring has grown. There are no goroutines; delay is
// a time at which bytes become visible to a reader, so that everything runs in
// a testing/synctest bubble.
package mem

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// ErrRefused is in the error of a Dial that no provider accepts.
var ErrRefused = errors.New("connection refused")

// Config configures a hub. The zero Config is a perfect network.
type Config struct {
	// Seed decides the jitter.
	Seed uint64

	// Delay is the time in flight of all that passes between two providers;
	// Jitter adds a uniform share of itself. Streams stay in order, datagrams
	// overtake each other. A hub that delays allocates in steady state.
	Delay, Jitter time.Duration

	// StreamBuffer is how many bytes one stream holds for its reader, rounded up
	// to a power of two; a Write beyond it waits. 0: 256 KiB.
	StreamBuffer int

	// MaxStreams bounds the open streams of one session in one direction, as
	// those of the other providers. 0: 32768.
	MaxStreams int

	// DialTimeout bounds a Dial over a cut path. 0: 2 s.
	DialTimeout time.Duration

	// IdleTimeout is how long a session survives a cut path. 0: 5 s.
	IdleTimeout time.Duration
}

// withDefaults returns c with every zero resolved.
func (c Config) withDefaults() *Config {
	if c.StreamBuffer <= 0 {
		c.StreamBuffer = 256 << 10
	}
	c.StreamBuffer = powerOfTwo(c.StreamBuffer)
	if c.MaxStreams <= 0 {
		c.MaxStreams = 32768
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 2 * time.Second
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = 5 * time.Second
	}
	return &c
}

// Pair returns the two ends of a session without a hub: the first belongs to
// a, and its Peer is b.
func Pair(a, b transport.Identity) (transport.Session, transport.Session) {
	cfg := Config{}.withDefaults()
	sa, sb := newSessions(cfg, &path{}, endpoint{"mem", a}, endpoint{"mem", b})
	return sa, sb
}

// A Hub is the network between the providers of one process. All methods may
// be called from any goroutine.
type Hub struct {
	cfg *Config

	mu        sync.Mutex // guards the fields below; never held while sessions end
	providers map[string]*Provider
	silent    map[string][]*session // peers of a provider that died silently
	cuts      map[route]bool
	paths     map[*path]route
	dials     uint64        // numbers the paths, for their seeds
	changed   chan struct{} // closed and replaced when providers or cuts change
}

// A route is an unordered pair of addresses.
type route struct{ low, high string }

func routeOf(a, b string) route { return route{min(a, b), max(a, b)} }

// NewHub returns a hub without providers.
func NewHub(cfg Config) *Hub {
	return &Hub{
		cfg:       cfg.withDefaults(),
		providers: make(map[string]*Provider),
		silent:    make(map[string][]*session),
		cuts:      make(map[route]bool),
		paths:     make(map[*path]route),
		changed:   make(chan struct{}),
	}
}

// Provider adds a provider at address that proves id to its peers. Where one
// was killed silently, its old peers now see a reset: the next incarnation answers
// them.
func (h *Hub) Provider(address string, id transport.Identity) (*Provider, error) {
	h.mu.Lock()
	if h.providers[address] != nil {
		h.mu.Unlock()
		return nil, fmt.Errorf("mem: address %q is in use", address)
	}
	p := &Provider{
		hub:      h,
		self:     endpoint{address, id},
		backlog:  make(chan *session, acceptBacklog),
		done:     make(chan struct{}),
		sessions: make(map[*session]struct{}),
	}
	h.providers[address] = p
	orphans := h.silent[address]
	delete(h.silent, address)
	h.wake()
	h.mu.Unlock()
	for _, s := range orphans {
		s.end(&transport.CloseError{Reset: true})
	}
	return p, nil
}

// Cut stops all traffic between the addresses a and b, in both directions:
// streams stall, datagrams vanish, dials hang; sessions end after the idle
// timeout.
func (h *Hub) Cut(a, b string) {
	h.mu.Lock()
	h.cuts[routeOf(a, b)] = true
	paths := h.pathsOf(routeOf(a, b))
	h.mu.Unlock()
	for _, p := range paths {
		p.setCut()
	}
}

// Heal undoes Cut.
func (h *Hub) Heal(a, b string) {
	h.mu.Lock()
	delete(h.cuts, routeOf(a, b))
	paths := h.pathsOf(routeOf(a, b))
	h.wake()
	h.mu.Unlock()
	for _, p := range paths {
		p.heal()
	}
}

// HealAll undoes every Cut.
func (h *Hub) HealAll() {
	h.mu.Lock()
	cuts := h.cuts
	h.cuts = make(map[route]bool)
	h.mu.Unlock()
	for r := range cuts {
		h.Heal(r.low, r.high)
	}
}

// pathsOf returns the paths of live sessions on r. h.mu is held.
func (h *Hub) pathsOf(r route) (paths []*path) {
	for p, at := range h.paths {
		if at == r {
			paths = append(paths, p)
		}
	}
	return paths
}

// A Death is how the peers of a killed provider learn of it.
type Death int

const (
	// Silent: nothing answers any more. Sessions end after the idle timeout,
	// or with a reset when a provider returns to the address.
	Silent Death = iota
	// Reset: the peers see a reset after one delay.
	Reset
)

// Kill ends the provider at address as a crash of its process would: no peer
// is notified, and data under way is lost. The address may be used again. Killing
// an address without provider does nothing.
func (h *Hub) Kill(address string, how Death) {
	h.mu.Lock()
	p := h.providers[address]
	delete(h.providers, address)
	h.mu.Unlock()
	if p == nil {
		return
	}
	for _, s := range p.shut() {
		peer := s.peer
		if how == Silent {
			h.mu.Lock()
			h.silent[address] = append(h.silent[address], peer)
			h.mu.Unlock()
			s.path.setCut()
		} else {
			s.path.deliver(func() { peer.end(&transport.CloseError{Reset: true}) })
		}
		s.end(&transport.CloseError{Reason: "provider killed"})
	}
	if how == Silent {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.providers[address] == nil && h.silent[address] == nil {
			h.silent[address] = []*session{} // dials hang, as towards a dead machine
		}
	}
}

// wake makes waiting dials try again. h.mu is held.
func (h *Hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// ended forgets the path of a session whose both ends are gone.
func (h *Hub) ended(s *session) {
	if s.peer.Err() == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.paths, s.path)
}

// dial makes a session from p to address. It returns wait instead while the
// way is silent.
func (h *Hub) dial(p *Provider, address string) (s *session, wait <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.providers[address]
	_, dead := h.silent[address]
	r := routeOf(p.self.address, address)
	switch {
	case h.cuts[r] || target == nil && dead:
		return nil, h.changed, nil
	case target == nil:
		return nil, nil, fmt.Errorf("nobody accepts there: %w", ErrRefused)
	}
	h.dials++
	way := h.newPath(r)
	here, there := newSessions(h.cfg, way, p.self, target.self)
	here.onEnd = func(s *session) { p.forget(s); h.ended(s) }
	there.onEnd = func(s *session) { target.forget(s); h.ended(s) }
	if err := p.adopt(here); err != nil {
		return nil, nil, err
	}
	if err := target.enqueue(there); err != nil {
		p.forget(here)
		return nil, nil, err
	}
	h.paths[way] = r
	return here, nil, nil
}

// newPath returns a path with a seed of its own. h.mu is held.
func (h *Hub) newPath(r route) *path {
	p := &path{delay: h.cfg.Delay, jitter: h.cfg.Jitter, idleTimeout: h.cfg.IdleTimeout}
	if p.jitter > 0 {
		name := fnv.New64a()
		fmt.Fprintf(name, "%q %q %d", r.low, r.high, h.dials)
		p.rng = rand.New(rand.NewPCG(h.cfg.Seed, name.Sum64()))
	}
	return p
}

// roundTrip waits as long as a handshake takes.
func (h *Hub) roundTrip(ctx context.Context) error {
	if h.cfg.Delay <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(2 * h.cfg.Delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
