package membership

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/gossip"
)

// A circle has the nodes that are in the host's table or were, and their addresses. A share of
// the limits on strangers is reserved for them, and gossip believes in them and dials them
// when they are gone; a node known by gossip alone is unproven.
type circle struct {
	table      map[gossip.Key]bool // the nodes in the table
	gone       []gossip.Key        // nodes that were, oldest first, at most maxGone: a split heals only if both sides dial
	remembered map[addr.UUID]bool  // nodes in it when this node last ran; counts while there is no table
	addresses  map[netip.Addr]bool // of all of them
}

// maxGone bounds those that were in the table, and maxAddresses the addresses.
const (
	maxGone      = 256
	maxAddresses = 4 * MaxNodes
)

// beginCircle makes the circle of those that this node remembers.
func (a *Agent) beginCircle() {
	c := circle{remembered: make(map[addr.UUID]bool), addresses: make(map[netip.Addr]bool)}
	c.reach(a.cfg.Node.Addresses)
	for _, m := range a.cfg.State.Members() {
		c.remembered[m.UUID] = true
		c.reach(m.Addresses)
	}
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	a.view.circle = c
}

func (c *circle) reach(addresses []string) {
	if len(c.addresses) > maxAddresses {
		clear(c.addresses)
	}
	for _, a := range addresses {
		if at, err := netip.ParseAddrPort(a); err == nil {
			c.addresses[at.Addr().Unmap()] = true
		}
	}
}

// meet makes the nodes those of the table. It reports whether that are others.
func (c *circle) meet(nodes []Node) bool {
	table := make(map[gossip.Key]bool, len(nodes))
	for _, n := range nodes {
		table[gossip.Key{UUID: n.UUID, Epoch: n.Epoch}] = true
	}
	if maps.Equal(table, c.table) {
		return false
	}
	for k := range c.table {
		if !table[k] {
			c.gone = append(c.gone, k)
		}
	}
	c.gone = c.gone[max(len(c.gone)-maxGone, 0):]
	for _, n := range nodes {
		c.reach(n.Addresses())
	}
	c.table = table
	return true
}

// proven reports whether a gossiping member is one that the host has granted an incarnation.
// It runs with a lock of gossip held.
func (a *Agent) proven(k gossip.Key) bool {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	c := &a.view.circle
	switch {
	case a.view.bans[k.UUID]:
		return false
	case c.table[k] || slices.Contains(c.gone, k):
		return true
	}
	return len(c.table) == 0 && c.remembered[k.UUID]
}

// Knows reports whether a member is, or was, at an address. It may be called from any goroutine.
func (a *Agent) Knows(at netip.Addr) bool {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	return a.view.circle.addresses[at.Unmap()]
}
