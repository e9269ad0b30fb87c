package verdict

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A PartialPolicy says what becomes of two nodes that have lost only each
// other, or of a node that has lost only the host.
type PartialPolicy uint8

const (
	// PartialReset keeps both in the fabric; the pair's links stay down.
	PartialReset PartialPolicy = iota
	// PartialEvict removes, of two that complain about each other, the one that
	// more nodes complain about, of equals the one with the higher ID, never the
	// host; of two of which one complains, that one, unless many others agree.
	PartialEvict
)

// An Identity is what a node says of itself.
type Identity struct {
	UUID      addr.UUID // not zero
	Epoch     uint64    // of this start; differs between two starts
	Name      string    // at most MaxName bytes of UTF-8
	Addresses []string  // where its providers accept sessions
	Providers []string
}

// A HostConfig starts a Host. It must not be changed after it was passed.
type HostConfig struct {
	Self   Identity
	Term   uint64      // > 0, already raised and on disk, not above 2³²−2: it is node 0's generation too
	Leases []Lease     // as on disk
	Cursor addr.NodeID // as on disk
	// Floor is below every generation of an ID that Leases do not have: what a
	// table that was lost can have granted. 0: nothing was lost.
	Floor   addr.Generation
	Timing  Timing // zero fields: those of Fast
	Partial PartialPolicy
	// Networks are those in which members may say that they are reached; empty:
	// everywhere.
	Networks []netip.Prefix
}

// A MemberConfig starts a Member. It must not be changed after it was passed.
type MemberConfig struct {
	Self     Identity
	Previous addr.Life // from disk; the zero Life if none
	Lease    []byte    // from disk: the signed lease of Previous; empty if none
	Term     uint64    // from disk: the highest term ever accepted
	Timing   Timing    // zero fields: those of Fast
}

// check reports what of the identity breaks a bound. networks are those in which
// its addresses must lie, if there are any.
func (id Identity) check(networks []netip.Prefix) error {
	if id.UUID.IsZero() {
		return errors.New("the UUID is zero")
	}
	return CheckClaims(id.Name, id.Addresses, id.Providers, networks)
}

// CheckClaims reports what a node must not say of itself: no name, or one that is
// not 1 to [MaxName] letters, digits, '.', '-' and '_'; no address, or one that is
// not "host:port" with an IP address or a name of that form; a provider that is no
// word; more of them than fit. With networks, an address must be an IP address in
// one of them.
//
// It is asked where a claim comes in; behind that nobody looks again.
func CheckClaims(name string, addresses, providers []string, networks []netip.Prefix) error {
	switch {
	case !addr.ValidName(name):
		return fmt.Errorf("the name %q: want 1 to %d letters, digits, '.', '-' or '_'", clip(name), MaxName)
	case len(addresses) == 0:
		return errors.New("no address, at least one is needed")
	case len(addresses) > MaxAddresses:
		return fmt.Errorf("%d addresses, at most %d are allowed", len(addresses), MaxAddresses)
	case len(providers) > MaxProviders:
		return fmt.Errorf("%d providers, at most %d are allowed", len(providers), MaxProviders)
	}
	for _, a := range addresses {
		if err := checkAddress(a, networks); err != nil {
			return err
		}
	}
	for _, p := range providers {
		if len(p) > MaxProvider || !addr.ValidName(p) {
			return fmt.Errorf("the provider %q: want a word of at most %d bytes", clip(p), MaxProvider)
		}
	}
	return nil
}

func checkAddress(a string, networks []netip.Prefix) error {
	if len(a) > MaxAddress {
		return fmt.Errorf("an address has %d bytes, at most %d are allowed", len(a), MaxAddress)
	}
	at, err := netip.ParseAddrPort(a)
	if err != nil {
		return checkHostName(a, networks)
	}
	switch ip := at.Addr(); {
	case at.Port() == 0:
		return fmt.Errorf("the address %q: want a port from 1 to 65535", a)
	case ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast():
		return fmt.Errorf("the address %q: want one that a node can have", a)
	case len(networks) > 0 && !slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap()) }):
		return fmt.Errorf("the address %q is in none of the allowed networks", a)
	}
	return nil
}

// checkHostName checks an address that is no IP address with a port.
func checkHostName(a string, networks []netip.Prefix) error {
	i := strings.LastIndexByte(a, ':')
	if i < 0 || !addr.ValidHost(a[:i]) {
		return fmt.Errorf("the address %q: want host:port with an IP address or a host name", a)
	}
	if n, err := strconv.ParseUint(a[i+1:], 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the address %q: want a port from 1 to 65535", a)
	}
	if len(networks) > 0 {
		return fmt.Errorf("the address %q: want an IP address, which can be in an allowed network", a)
	}
	return nil
}

// clip shortens what an error quotes.
func clip(s string) string { return s[:min(len(s), MaxName)] }

// node returns the identity as an alive node that lives in life.
func (id Identity) node(life addr.Life) Node {
	return Node{Life: life, UUID: id.UUID, Epoch: id.Epoch, Name: id.Name, State: Alive,
		Addresses: id.Addresses, Providers: id.Providers}
}
