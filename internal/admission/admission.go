// Package admission bounds what strangers can make a node hold open: connections
// and handshakes whose other end has not shown yet who it is.
//
// A [Table] has a fixed number of slots. A share of them is reserved for the
// addresses of known members, so that strangers never keep a member out. The
// others are divided by fairness: one address holds at most PerAddress of them, one
// network (/24 of IPv4, /64 of IPv6) at most PerNetwork, and when all are taken the
// oldest of the network that holds most is evicted for a newcomer whose network
// holds fewer. So many silent connections from a few networks keep out no other
// network, and many networks keep out nobody for longer than Grace.
//
// Nodes on one machine share its loopback address, for which PerAddress and
// PerNetwork do not count. The fairness does.
package admission

import (
	"net"
	"net/netip"
	"time"
)

// Limits are the bounds of a Table. All of them must be positive but Reserved,
// which may be 0.
type Limits struct {
	Total      int // slots in all, the reserved ones included
	Reserved   int // of them only for known members
	PerAddress int // that strangers of one address hold at most
	PerNetwork int // that strangers of one network hold at most
	// Grace is how long an entry is safe from newcomers that hold as many as its
	// owner does. In this time an honest peer shows who it is.
	Grace time.Duration
}

// A Table knows who holds which slot, each under a key of its owner's choice. It
// is not safe for concurrent use, and has no clock of its own.
type Table[K comparable] struct {
	strangers pool[K]
	members   pool[K]
}

// New returns an empty table.
func New[K comparable](l Limits) *Table[K] {
	if l.Total <= l.Reserved || l.Reserved < 0 || l.PerAddress < 1 || l.PerNetwork < 1 {
		panic("BUG: admission: impossible limits")
	}
	return &Table[K]{
		strangers: newPool[K](Limits{Total: l.Total - l.Reserved, PerAddress: l.PerAddress, PerNetwork: l.PerNetwork, Grace: l.Grace}),
		members:   newPool[K](Limits{Total: l.Reserved, PerAddress: l.Reserved, PerNetwork: l.Reserved, Grace: l.Grace}),
	}
}

// Enter takes a slot for k, which is not in the table, from the address from. known
// says that a known member is at that address. If ok, k has a slot, and evicted,
// unless it is the zero K, has lost its own: the caller ends it and need not call
// Leave. Else the table is as before, and k is refused.
func (t *Table[K]) Enter(k K, from netip.Addr, known bool, now time.Time) (evicted K, ok bool) {
	from = from.Unmap().WithZone("")
	if known && len(t.members.entries) < t.members.limits.Total {
		t.members.add(k, from, now)
		return evicted, true
	}
	if known {
		if evicted, ok = t.members.enter(k, from, now); ok {
			return evicted, true
		}
	}
	return t.strangers.enter(k, from, now)
}

// Leave gives the slot of k back. It does nothing if k has none.
func (t *Table[K]) Leave(k K) {
	t.strangers.remove(k)
	t.members.remove(k)
}

// Has reports whether k has a slot.
func (t *Table[K]) Has(k K) bool {
	_, stranger := t.strangers.entries[k]
	_, member := t.members.entries[k]
	return stranger || member
}

// Len returns how many slots are taken.
func (t *Table[K]) Len() int { return len(t.strangers.entries) + len(t.members.entries) }

// Keys returns all that have a slot, in no order.
func (t *Table[K]) Keys() []K {
	out := make([]K, 0, t.Len())
	for k := range t.strangers.entries {
		out = append(out, k)
	}
	for k := range t.members.entries {
		out = append(out, k)
	}
	return out
}

// AddressOf returns the IP address in a, the zero Addr if there is none. All that
// have none count as one address of one network.
func AddressOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	case nil:
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}
