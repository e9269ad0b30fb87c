// Package admission limits the connections and handshakes that unauthenticated peers, here called
// strangers, can make a node hold open.
//
// A [Table] has a fixed number of slots. A share of them is reserved for the addresses of known
// members, so that strangers cannot block members. The others are divided by fairness: one address
// holds at most PerAddress of them, one network (/24 of IPv4, /64 of IPv6) at most PerNetwork, and
// when all are in use a newcomer evicts the oldest entry of the network that holds most, if its own
// network holds fewer. So many silent connections from a few networks block no other network, and
// many networks block a peer for at most Grace.
//
// Nodes on one machine share its loopback address, which is exempt from PerAddress and PerNetwork
// but not from the fairness.
package admission

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Limits are the bounds of a Table. All of them must be positive; only Reserved may be 0.
type Limits struct {
	Total      int // slots in all, the reserved ones included
	Reserved   int // slots only for known members
	PerAddress int // slots for strangers of one address, at most
	PerNetwork int // slots for strangers of one network, at most
	// Grace is how long an entry is safe from newcomers whose address or network holds as many. In
	// this time a correct peer authenticates.
	Grace time.Duration
}

// A Table assigns slots to keys that the caller chooses. It is not safe for concurrent use, and has
// no clock of its own.
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

// Enter takes a slot for k, which is not in the table, from the address from. known: a known member
// is at that address. If ok, k has a slot, and evicted, unless it is the zero K, has lost its own:
// the caller closes it and need not call Leave. Otherwise the table is unchanged, and k is refused.
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

// Leave releases the slot of k. It does nothing if k has none.
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

// Len returns the number of slots in use.
func (t *Table[K]) Len() int { return len(t.strangers.entries) + len(t.members.entries) }

// Keys returns all keys with a slot, in no order.
func (t *Table[K]) Keys() []K {
	return slices.AppendSeq(slices.Collect(maps.Keys(t.strangers.entries)), maps.Keys(t.members.entries))
}

// AddressOf returns the IP address in a, the zero Addr if there is none. All peers without one
// count as one address of one network.
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
