package network

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/admission"
)

// ErrTooMany refuses a peer while too many handshakes are in progress.
var ErrTooMany = errors.New("too many handshakes")

// slotGrace is how long a correct peer may take for its part of a handshake while others wait for
// its slot.
const slotGrace = 250 * time.Millisecond

// Handshakes are the incoming handshakes of a provider. Each has a place until it has failed, or
// Accept has returned its session, and a slot until its peer has proved its identity. All methods
// may be called from any goroutine.
type Handshakes[K comparable] struct {
	known func(netip.Addr) bool
	most  int // places

	mu     sync.Mutex // guards the fields below
	places int        // in use
	slots  *admission.Table[K]
}

// NewHandshakes returns an empty table. A peer that holds some slots open without sending does not
// block the others.
func NewHandshakes[K comparable](cfg Config, slots, places int) *Handshakes[K] {
	most := cfg.MaxHandshakes
	return &Handshakes[K]{known: cfg.Known, most: places, slots: admission.New[K](admission.Limits{Total: slots, Reserved: slots / 4,
		PerAddress: max(1, most/4), PerNetwork: max(1, 3*most/8), Grace: slotGrace})}
}

// Enter takes a place and a slot for k, and reports false if there is none. evicted, unless it is
// the zero K, has lost its slot for it: the caller ends that handshake.
func (h *Handshakes[K]) Enter(k K, peer net.Addr) (evicted K, ok bool) {
	from := admission.AddressOf(peer)
	known := h.known(from)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.places >= h.most {
		return evicted, false
	}
	if evicted, ok = h.slots.Enter(k, from, known, time.Now()); ok {
		h.places++
	}
	return evicted, ok
}

// Proved releases the slot of k: its peer has proved its identity.
func (h *Handshakes[K]) Proved(k K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slots.Leave(k)
}

// Leave releases the place and the slot of k.
func (h *Handshakes[K]) Leave(k K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slots.Leave(k)
	h.places--
}

// Taken returns how many places and slots are in use.
func (h *Handshakes[K]) Taken() (places, slots int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.places, h.slots.Len()
}
