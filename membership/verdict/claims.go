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

// Claims describe a node by its own statement: its name, the addresses at which its
// providers accept sessions, and the providers. Only [NewClaims] makes them, so that
// they are always valid. The zero Claims are empty: see [Claims.None].
//
// They are shared by all holders, and never changed.
type Claims struct {
	name      string
	addresses []string
	providers []string
}

// NewClaims returns these claims, or an error if no node can claim them: a name that is
// not 1 to [MaxName] letters, digits, '.', '-' and '_'; no address, or one that is
// not "host:port" with an IP address or a name of that form; a provider that is no
// word of at most [MaxProvider] bytes; more of them than [MaxAddresses] and
// [MaxProviders]. The caller must not change the slices afterwards.
func NewClaims(name string, addresses, providers []string) (Claims, error) {
	switch {
	case !addr.ValidName(name):
		return Claims{}, fmt.Errorf("the name %q: want 1 to %d letters, digits, '.', '-' or '_'", clip(name), MaxName)
	case len(addresses) == 0:
		return Claims{}, errors.New("no address, at least one is needed")
	case len(providers) > MaxProviders:
		return Claims{}, fmt.Errorf("%d providers, at most %d are allowed", len(providers), MaxProviders)
	}
	if err := checkAddresses(addresses); err != nil {
		return Claims{}, err
	}
	for _, p := range providers {
		if len(p) > MaxProvider || !addr.ValidName(p) {
			return Claims{}, fmt.Errorf("the provider %q: want a word of at most %d bytes", clip(p), MaxProvider)
		}
	}
	return Claims{name, addresses, providers}, nil
}

// Name returns the node's name, "" of no claims.
func (c Claims) Name() string { return c.name }

// Addresses returns where the node's providers accept sessions: "host:port". The
// slice must not be changed.
func (c Claims) Addresses() []string { return c.addresses }

// Providers returns the words for the node's providers. The slice must not be
// changed.
func (c Claims) Providers() []string { return c.providers }

// None reports whether these are no claims at all.
func (c Claims) None() bool { return c.name == "" }

// Equal reports whether both are the same.
func (c Claims) Equal(o Claims) bool {
	return c.name == o.name && slices.Equal(c.addresses, o.addresses) && slices.Equal(c.providers, o.providers)
}

// within reports which address is not an IP address in one of networks, if there
// are any.
func (c Claims) within(networks []netip.Prefix) error {
	for _, a := range c.addresses {
		at, err := netip.ParseAddrPort(a)
		in := func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap()) }
		switch {
		case len(networks) == 0:
		case err != nil:
			return fmt.Errorf("the address %q: want an IP address, which can be in an allowed network", a)
		case !slices.ContainsFunc(networks, in):
			return fmt.Errorf("the address %q is in none of the allowed networks", a)
		}
	}
	return nil
}

// A Contact is an incarnation and where to reach it. Its addresses are as checked as those
// of [Claims].
type Contact struct {
	Incarnation addr.Incarnation
	UUID        addr.UUID
	Epoch       uint64
	addresses   []string
}

// NewContact returns how to reach an incarnation, or an error if no node can have an address.
// The caller must not change the slice afterwards.
func NewContact(incarnation addr.Incarnation, uuid addr.UUID, epoch uint64, addresses []string) (Contact, error) {
	if err := checkAddresses(addresses); err != nil {
		return Contact{}, err
	}
	return Contact{incarnation, uuid, epoch, addresses}, nil
}

// Contact returns how to reach the node.
func (n Node) Contact() Contact { return Contact{n.Incarnation, n.UUID, n.Epoch, n.addresses} }

// Addresses returns where the incarnation is reached, "host:port"; none if that is not
// known. The slice must not be changed.
func (c Contact) Addresses() []string { return c.addresses }

func checkAddresses(addresses []string) error {
	if len(addresses) > MaxAddresses {
		return fmt.Errorf("%d addresses, at most %d are allowed", len(addresses), MaxAddresses)
	}
	for _, a := range addresses {
		if err := checkAddress(a); err != nil {
			return err
		}
	}
	return nil
}

func checkAddress(a string) error {
	if len(a) > MaxAddress {
		return fmt.Errorf("an address has %d bytes, at most %d are allowed", len(a), MaxAddress)
	}
	at, err := netip.ParseAddrPort(a)
	if err != nil {
		return checkHostName(a)
	}
	switch ip := at.Addr(); {
	case at.Port() == 0:
		return fmt.Errorf("the address %q: want a port from 1 to 65535", a)
	case ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast():
		return fmt.Errorf("the address %q: want one that a node can have", a)
	}
	return nil
}

// checkHostName checks an address that is no IP address with a port.
func checkHostName(a string) error {
	i := strings.LastIndexByte(a, ':')
	if i < 0 || !addr.ValidHost(a[:i]) {
		return fmt.Errorf("the address %q: want host:port with an IP address or a host name", a)
	}
	if n, err := strconv.ParseUint(a[i+1:], 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the address %q: want a port from 1 to 65535", a)
	}
	return nil
}

// clip shortens s for the text of an error.
func clip(s string) string { return s[:min(len(s), MaxName)] }
