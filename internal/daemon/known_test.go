package daemon

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/verdict"
)

func TestAddressesOfMembersAreKnown(t *testing.T) {
	k := newKnownAddresses()
	tell := func(kind membership.EventKind, node uint32, addresses ...string) {
		var u addr.UUID
		binary.BigEndian.PutUint32(u[:], node)
		id := verdict.Identity{UUID: u}
		if len(addresses) > 0 {
			id.Claims = testClaims("n", addresses...)
		}
		k.meet(membership.Event{Kind: kind, Node: membership.Node{Identity: id}})
	}
	want := func(a string, known bool) {
		t.Helper()
		if k.has(netip.MustParseAddr(a)) != known {
			t.Errorf("%s: known %v, want %v", a, !known, known)
		}
	}
	tell(membership.EventAdded, 1, "192.0.2.1:7770", "[2001:db8::1]:7770", "web-1:7770")
	tell(membership.EventAdded, 2, "192.0.2.1:7771")
	want("192.0.2.1", true)
	want("2001:db8::1", true)
	want("192.0.2.2", false)
	tell(membership.EventUpdated, 1, "192.0.2.2:7770")
	want("192.0.2.1", true) // of node 2
	want("2001:db8::1", false)
	want("192.0.2.2", true)
	tell(membership.EventRemoved, 1)
	want("192.0.2.2", true)
	tell(membership.EventHost, 9, "192.0.2.9:1")
	want("192.0.2.9", false)
	for i := range uint32(maxKnown) {
		tell(membership.EventAdded, 100+i, "198.51.100.1:1")
	}
	want("192.0.2.2", false)
	want("198.51.100.1", true)
	if len(k.of) != maxKnown || len(k.order) != maxKnown || len(k.nodes) != 1 {
		t.Errorf("%d nodes in order of %d at %d addresses", len(k.of), len(k.order), len(k.nodes))
	}
}
