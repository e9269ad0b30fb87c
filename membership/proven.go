package membership

import (
	"net/netip"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/gossip"
)

// A circle is who has been in the host's table, in this start or the last one, and
// where. Those keep a share of what strangers crowd, and gossip looks for them when
// they are gone; what only gossip names is nobody.
type circle struct {
	nodes     map[addr.UUID]bool
	addresses map[netip.Addr]bool
}

// maxCircle bounds a circle: what comes and goes in years.
const maxCircle = 4 * MaxNodes

func (c *circle) add(node addr.UUID, addresses []string) {
	if c.nodes == nil || len(c.nodes) > maxCircle || len(c.addresses) > maxCircle {
		*c = circle{make(map[addr.UUID]bool), make(map[netip.Addr]bool)}
	}
	c.nodes[node] = true
	for _, a := range addresses {
		if at, err := netip.ParseAddrPort(a); err == nil {
			c.addresses[at.Addr().Unmap()] = true
		}
	}
}

// beginCircle makes the circle of those that this node remembers.
func (a *Agent) beginCircle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.view.circle.add(a.self.UUID, a.cfg.Node.Addresses)
	for _, m := range a.cfg.State.Members() {
		a.view.circle.add(m.UUID, m.Addresses)
	}
}

// proven reports whether a gossiping member is one that the host has granted a life.
func (a *Agent) proven(k gossip.Key) bool {
	if d := a.enroller; d != nil && d.get(k.UUID) != nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view.circle.nodes[k.UUID] && !a.view.bans[k.UUID]
}

// knows reports whether a member is, or was, at an address.
func (a *Agent) knows(at netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view.circle.addresses[at.Unmap()]
}
