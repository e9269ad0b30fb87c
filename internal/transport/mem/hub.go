// Package mem is the transport provider inside one process: the loopback path
// of a node, and the network of clusters in tests.
//
// The two ends of a stream share one buffer under a lock: a write copies in, a read
// copies out, neither allocates once the buffer has grown. There are no goroutines but
// those of timers, so that everything runs in a testing/synctest bubble.
package mem

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// ErrRefused is in the error of a Dial that no provider accepts.
var ErrRefused = errors.New("connection refused")

const (
	dialTimeout = 2 * time.Second // bounds a Dial over a cut path
	idleTimeout = 5 * time.Second // how long a session survives a cut path
)

// Config configures a hub. The zero Config is a perfect network.
type Config struct {
	// Seed decides the jitter.
	Seed uint64

	// Delay is the time in flight of all that passes between two providers;
	// Jitter adds a uniform share of itself. Streams stay in order, datagrams
	// overtake each other. A hub that delays allocates in steady state.
	Delay, Jitter time.Duration

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
	w := h.connect(h.provider("mem", a), h.provider("mem", b))
	return w.a, w.b
}

// A Hub is the network between the providers of one process. All methods may
// be called from any goroutine.
type Hub struct {
	cfg Config

	mu        sync.Mutex // guards the fields below and Provider.closed; never held while sessions end
	providers map[string]*Provider
	cuts      map[route]bool
	paths     map[*path]struct{} // of sessions of which an end is open
	dials     uint64             // numbers the paths, for their seeds
	changed   chan struct{}      // closed and replaced when a Dial that waits may succeed
}

// A route is an unordered pair of addresses.
type route struct{ low, high string }

func routeOf(a, b string) route { return route{min(a, b), max(a, b)} }

// NewHub returns a hub without providers.
func NewHub(cfg Config) *Hub {
	cfg.StreamBuffer = cmp.Or(cfg.StreamBuffer, 256<<10)
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 32768)
	return &Hub{
		cfg:       cfg,
		providers: make(map[string]*Provider),
		cuts:      make(map[route]bool),
		paths:     make(map[*path]struct{}),
		changed:   make(chan struct{}),
	}
}

// Provider adds a provider at address that proves id to its peers. Where one
// was killed silently, its old peers now see a reset: the next incarnation answers
// them.
func (h *Hub) Provider(address string, id transport.Identity) (*Provider, error) {
	h.mu.Lock()
	old := h.providers[address]
	if old != nil && !old.closed {
		h.mu.Unlock()
		return nil, fmt.Errorf("mem: address %q is in use", address)
	}
	p := h.provider(address, id)
	h.providers[address] = p
	orphans := h.sessionsOf(old)
	h.wake()
	h.mu.Unlock()
	for _, s := range orphans {
		s.peer.end(&transport.CloseError{Reset: true})
	}
	return p, nil
}

func (h *Hub) provider(address string, id transport.Identity) *Provider {
	return &Provider{
		hub: h, address: address, id: id,
		backlog: make(chan *session, acceptBacklog),
		done:    make(chan struct{}),
	}
}

// sessionsOf returns the sessions of p of which an end is open. h.mu is held.
func (h *Hub) sessionsOf(p *Provider) (all []*session) {
	for w := range h.paths {
		for _, s := range []*session{w.a, w.b} {
			if s.owner == p {
				all = append(all, s)
			}
		}
	}
	return all
}

// silent reports whether p was killed, and nothing answers at its address. h.mu is held.
func (h *Hub) silent(p *Provider) bool { return p.closed && h.providers[p.address] == p }

// wake makes waiting dials try again. h.mu is held.
func (h *Hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Cut stops all traffic between the addresses a and b, in both directions:
// streams stall, datagrams vanish, dials hang; sessions end after the idle
// timeout.
func (h *Hub) Cut(a, b string) {
	h.mu.Lock()
	h.cuts[routeOf(a, b)] = true
	paths := h.pathsOf(routeOf(a, b))
	h.mu.Unlock()
	for _, w := range paths {
		w.setCut()
	}
}

// Heal undoes Cut.
func (h *Hub) Heal(a, b string) {
	h.mu.Lock()
	delete(h.cuts, routeOf(a, b))
	paths := h.pathsOf(routeOf(a, b))
	h.wake()
	h.mu.Unlock()
	for _, w := range paths {
		w.heal()
	}
}

// HealAll undoes every Cut.
func (h *Hub) HealAll() {
	h.mu.Lock()
	var cuts []route
	for r := range h.cuts {
		cuts = append(cuts, r)
	}
	h.mu.Unlock()
	for _, r := range cuts {
		h.Heal(r.low, r.high)
	}
}

// pathsOf returns the paths on r, without those to a silent provider. h.mu is held.
func (h *Hub) pathsOf(r route) (paths []*path) {
	for w := range h.paths {
		a, b := w.a.owner, w.b.owner
		if routeOf(a.address, b.address) == r && !h.silent(a) && !h.silent(b) {
			paths = append(paths, w)
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
	h.mu.Unlock()
	if p == nil {
		return
	}
	for _, s := range p.shut(how == Silent) {
		if how == Silent {
			s.path.setCut()
		} else {
			s.path.send(&s.order, func() { s.peer.end(&transport.CloseError{Reset: true}) })
		}
		s.end(&transport.CloseError{Reason: "provider killed"})
	}
}

// dial makes a session from p to address. It returns wait instead while the
// way is silent.
func (h *Hub) dial(p *Provider, address string) (s *session, wait <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.providers[address]
	switch {
	case p.closed:
		return nil, nil, transport.ErrClosed
	case h.cuts[routeOf(p.address, address)] || target != nil && target.closed:
		return nil, h.changed, nil
	case target == nil:
		return nil, nil, fmt.Errorf("nobody accepts there: %w", ErrRefused)
	case len(target.backlog) == acceptBacklog:
		return nil, nil, fmt.Errorf("too many wait for accept: %w", ErrRefused)
	}
	w := h.connect(p, target)
	h.paths[w] = struct{}{}
	target.backlog <- w.b
	return w.a, nil, nil
}

// connect returns the path of a new session from one provider to another.
func (h *Hub) connect(from, to *Provider) *path {
	h.dials++
	w := &path{hub: h, delay: h.cfg.Delay, jitter: h.cfg.Jitter, a: newSession(from), b: newSession(to)}
	w.rng = rand.New(rand.NewPCG(h.cfg.Seed, h.dials))
	w.a.path, w.a.peer = w, w.b
	w.b.path, w.b.peer = w, w.a
	w.direct.Store(!w.slow())
	return w
}

// ended forgets the path of a session whose both ends are gone.
func (h *Hub) ended(w *path) {
	if w.a.Err() == nil || w.b.Err() == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.paths, w)
}
