package daemon

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership"
)

// maxKnown bounds the members whose addresses are kept.
const maxKnown = 2048

// knownAddresses are the IP addresses of members, those that are gone included: connections from
// them have a share of the handshakes that strangers do not get.
// Host names do not count: nothing is looked up for a stranger.
type knownAddresses struct {
	mu    sync.Mutex // guards the fields below
	of    map[addr.UUID][]netip.Addr
	nodes map[netip.Addr]int // how many of them are at an address
	order []addr.UUID        // of of, the last one told of last
}

func newKnownAddresses() *knownAddresses {
	return &knownAddresses{of: make(map[addr.UUID][]netip.Addr), nodes: make(map[netip.Addr]int)}
}

// meet learns from an event where a node is. Beyond maxKnown nodes the one that was
// told of longest ago is forgotten.
func (k *knownAddresses) meet(ev membership.Event) {
	if ev.Kind != membership.EventAdded && ev.Kind != membership.EventUpdated {
		return
	}
	var at []netip.Addr
	for _, a := range ev.Node.Addresses() {
		if p, err := netip.ParseAddrPort(a); err == nil && !slices.Contains(at, p.Addr().Unmap()) {
			at = append(at, p.Addr().Unmap())
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(ev.Node.UUID)
	if len(k.order) >= maxKnown {
		k.forget(k.order[0])
	}
	k.of[ev.Node.UUID], k.order = at, append(k.order, ev.Node.UUID)
	for _, a := range at {
		k.nodes[a]++
	}
}

// forget forgets a node. The caller holds mu.
func (k *knownAddresses) forget(node addr.UUID) {
	i := slices.Index(k.order, node)
	if i < 0 {
		return
	}
	k.order = slices.Delete(k.order, i, i+1)
	for _, a := range k.of[node] {
		if k.nodes[a]--; k.nodes[a] == 0 {
			delete(k.nodes, a)
		}
	}
	delete(k.of, node)
}

// has reports whether a member is, or was, at a.
func (k *knownAddresses) has(a netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nodes[a] > 0
}
