package admission

import (
	"net/netip"
	"time"
)

// A pool is one class of slots, divided by fairness between networks, and within a network between
// addresses.
//
// Invariant: len(entries) ≤ limits.Total; perAddr and perNet count entries and hold
// no zero.
type pool[K comparable] struct {
	limits  Limits // Reserved is not used
	entries map[K]entry
	perAddr map[netip.Addr]int
	perNet  map[netip.Prefix]int
	begun   uint64 // entries ever added
}

type entry struct {
	from  netip.Addr
	since time.Time
	order uint64 // counts the entries of the pool
}

func newPool[K comparable](l Limits) pool[K] {
	return pool[K]{limits: l, entries: make(map[K]entry), perAddr: make(map[netip.Addr]int), perNet: make(map[netip.Prefix]int)}
}

// networkOf returns the network of a: /24 of IPv4, /64 of IPv6.
func networkOf(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 24
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // no address
	}
	return p
}

// enter adds k. If no slot is left for from, it may evict another entry.
func (p *pool[K]) enter(k K, from netip.Addr, now time.Time) (evicted K, ok bool) {
	if p.limits.Total == 0 {
		return evicted, false
	}
	network := networkOf(from)
	bounded := !from.IsLoopback()
	switch {
	case bounded && p.perAddr[from] >= p.limits.PerAddress:
		evicted, ok = p.oldest(func(e entry) bool { return e.from == from }, false, now)
	case bounded && p.perNet[network] >= p.limits.PerNetwork:
		evicted, ok = p.fromNetwork(network, from, now)
	case len(p.entries) >= p.limits.Total:
		evicted, ok = p.fromAny(network, from, now)
	default:
		p.add(k, from, now)
		return evicted, true
	}
	if !ok {
		return evicted, false
	}
	p.remove(evicted)
	p.add(k, from, now)
	return evicted, true
}

// fromAny chooses the entry to evict for a newcomer of network when the pool is full: one of the
// network that holds most.
func (p *pool[K]) fromAny(network netip.Prefix, from netip.Addr, now time.Time) (evicted K, ok bool) {
	most := p.perNet[network]
	for _, n := range p.perNet {
		most = max(most, n)
	}
	if most == p.perNet[network] {
		// No network holds more than this one. Its addresses compete, and then the networks that
		// hold as many.
		if evicted, ok = p.fromNetwork(network, from, now); ok {
			return evicted, true
		}
		return p.oldest(func(e entry) bool { return p.perNet[networkOf(e.from)] == most }, false, now)
	}
	worst := 0 // of an address in a network that holds most
	for _, e := range p.entries {
		if p.perNet[networkOf(e.from)] == most {
			worst = max(worst, p.perAddr[e.from])
		}
	}
	return p.oldest(func(e entry) bool {
		return p.perNet[networkOf(e.from)] == most && p.perAddr[e.from] == worst
	}, true, now)
}

// fromNetwork chooses the entry of network to evict for a newcomer of the same network: one of the
// address that holds most.
func (p *pool[K]) fromNetwork(network netip.Prefix, from netip.Addr, now time.Time) (evicted K, ok bool) {
	worst := 0
	for _, e := range p.entries {
		if networkOf(e.from) == network {
			worst = max(worst, p.perAddr[e.from])
		}
	}
	fewer := p.perAddr[from] < worst
	return p.oldest(func(e entry) bool {
		return networkOf(e.from) == network && p.perAddr[e.from] == worst
	}, fewer, now)
}

// oldest returns the oldest entry that matches. An entry within its grace is returned only if the
// newcomer holds fewer.
func (p *pool[K]) oldest(match func(entry) bool, fewer bool, now time.Time) (k K, found bool) {
	var first entry
	for key, e := range p.entries {
		if match(e) && (!found || e.order < first.order) {
			k, first, found = key, e, true
		}
	}
	if found && !fewer && now.Sub(first.since) < p.limits.Grace {
		var none K
		return none, false
	}
	return k, found
}

func (p *pool[K]) add(k K, from netip.Addr, now time.Time) {
	p.begun++
	p.entries[k] = entry{from: from, since: now, order: p.begun}
	p.perAddr[from]++
	p.perNet[networkOf(from)]++
}

func (p *pool[K]) remove(k K) {
	e, ok := p.entries[k]
	if !ok {
		return
	}
	delete(p.entries, k)
	if p.perAddr[e.from]--; p.perAddr[e.from] == 0 {
		delete(p.perAddr, e.from)
	}
	network := networkOf(e.from)
	if p.perNet[network]--; p.perNet[network] == 0 {
		delete(p.perNet, network)
	}
}
