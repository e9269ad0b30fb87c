package faults

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Names map nodes to addresses, and which node has which identity. Knowledge about a
// node stays until newer replaces it: a cut must hold after the node was removed, too. The zero
// Names are empty. All methods may be called from any goroutine.
type Names struct {
	mu    sync.RWMutex // guards the fields below
	ids   map[addr.UUID]addr.NodeID
	texts map[string]*named            // by "host:port", as dialed
	at    map[netip.AddrPort]addr.UUID // the same, resolved
	hosts map[netip.Addr][]addr.UUID   // the nodes with an address there
	known map[addr.UUID][]string       // the keys in texts
}

// A named address is that of a node, with what it was resolved to.
type named struct {
	node addr.UUID
	at   []netip.AddrPort
}

// maxPlaces bounds the addresses that are known of one node.
const maxPlaces = 16

// maxNamed bounds the nodes that are known.
const maxNamed = 1 << 16

// SetID records which ID the node with an identity has, or had last.
func (n *Names) SetID(node addr.UUID, id addr.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ids == nil {
		n.ids = make(map[addr.UUID]addr.NodeID)
	}
	if _, ok := n.ids[node]; !ok && len(n.ids) >= maxNamed {
		return
	}
	for other, had := range n.ids {
		if had == id && other != node { // the ID is another node's now
			delete(n.ids, other)
		}
	}
	n.ids[node] = id
}

// SetPlace records that a node is at address, "host:port". If host is a name,
// resolved are its addresses.
func (n *Names) SetPlace(node addr.UUID, address string, resolved ...netip.AddrPort) {
	if at, err := netip.ParseAddrPort(address); err == nil {
		resolved = append(resolved, at)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.texts == nil {
		n.texts = make(map[string]*named)
		n.at = make(map[netip.AddrPort]addr.UUID)
		n.hosts = make(map[netip.Addr][]addr.UUID)
		n.known = make(map[addr.UUID][]string)
	}
	if _, ok := n.known[node]; !ok && len(n.known) >= maxNamed {
		return
	}
	if had := n.texts[address]; had != nil && (had.node != node || len(resolved) > 0) {
		n.forget(address)
	}
	if n.texts[address] == nil {
		if len(n.known[node]) >= maxPlaces {
			n.forget(n.known[node][0])
		}
		n.known[node] = append(n.known[node], address)
		n.texts[address] = &named{node: node}
	}
	place := n.texts[address]
	for _, at := range resolved {
		at = plain(at)
		n.at[at] = node
		place.at = append(place.at, at)
		if !slices.Contains(n.hosts[at.Addr()], node) && len(n.hosts[at.Addr()]) < maxNamed {
			n.hosts[at.Addr()] = append(n.hosts[at.Addr()], node)
		}
	}
}

// forget drops an address of a node, and the hosts on which the node has no other one. mu is held.
func (n *Names) forget(address string) {
	place := n.texts[address]
	delete(n.texts, address)
	n.known[place.node] = slices.DeleteFunc(n.known[place.node], func(s string) bool { return s == address })
	for _, at := range place.at {
		if n.at[at] == place.node && !n.has(place.node, func(other netip.AddrPort) bool { return other == at }) {
			delete(n.at, at)
		}
		if n.has(place.node, func(other netip.AddrPort) bool { return other.Addr() == at.Addr() }) {
			continue
		}
		n.hosts[at.Addr()] = slices.DeleteFunc(n.hosts[at.Addr()], func(node addr.UUID) bool { return node == place.node })
		if len(n.hosts[at.Addr()]) == 0 {
			delete(n.hosts, at.Addr())
		}
	}
}

// has reports whether one of a node's resolved addresses is as like says. mu is held.
func (n *Names) has(node addr.UUID, like func(netip.AddrPort) bool) bool {
	return slices.ContainsFunc(n.known[node], func(address string) bool { return slices.ContainsFunc(n.texts[address].at, like) })
}

// plain returns at in the form in which it is looked up.
func plain(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// Node returns the ID of the node with an identity, addr.NoNode if it has none.
func (n *Names) Node(node addr.UUID) addr.NodeID {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.node(node)
}

func (n *Names) node(node addr.UUID) addr.NodeID {
	if id, ok := n.ids[node]; ok {
		return id
	}
	return addr.NoNode
}

// At returns the ID of the node that has the address, addr.NoNode if none has.
func (n *Names) At(at netip.AddrPort) addr.NodeID {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if node, ok := n.at[plain(at)]; ok {
		return n.node(node)
	}
	return addr.NoNode
}

// Place is At for an address as one dials it, "host:port".
func (n *Names) Place(address string) addr.NodeID {
	n.mu.RLock()
	place, id := n.texts[address], addr.NoNode
	if place != nil {
		id = n.node(place.node)
	}
	n.mu.RUnlock()
	if place != nil {
		return id
	}
	if at, err := netip.ParseAddrPort(address); err == nil {
		return n.At(at)
	}
	return addr.NoNode
}

// On returns the IDs of the nodes that have an address on host. Every loopback address is the same
// host: a connection dialed to one comes from another.
func (n *Names) On(host netip.Addr) (ids []addr.NodeID) {
	host = host.Unmap().WithZone("")
	n.mu.RLock()
	defer n.mu.RUnlock()
	add := func(nodes []addr.UUID) {
		for _, node := range nodes {
			if id, ok := n.ids[node]; ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	if !host.IsLoopback() {
		add(n.hosts[host])
		return ids
	}
	for other, nodes := range n.hosts {
		if other.IsLoopback() {
			add(nodes)
		}
	}
	slices.Sort(ids)
	return ids
}
