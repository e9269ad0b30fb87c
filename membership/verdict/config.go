package verdict

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A PartialPolicy says what becomes of two nodes that have lost only each
// other, or of a node that has lost only the host.
type PartialPolicy uint8

const (
	// PartialReset keeps both in the fabric; the pair's links stay down.
	PartialReset PartialPolicy = iota
	// PartialEvict removes the one that more nodes complain about, of equals
	// the one with the higher ID, never the host.
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
}

// A MemberConfig starts a Member. It must not be changed after it was passed.
type MemberConfig struct {
	Self     Identity
	Previous addr.Life // from disk; the zero Life if none
	Lease    []byte    // from disk: the signed lease of Previous; empty if none
	Term     uint64    // from disk: the highest term ever accepted
	Timing   Timing    // zero fields: those of Fast
}

// check reports what of the identity breaks a bound.
func (id Identity) check() error {
	switch {
	case id.UUID.IsZero():
		return errors.New("the UUID is zero")
	case len(id.Name) > MaxName:
		return fmt.Errorf("the name has %d bytes, at most %d are allowed", len(id.Name), MaxName)
	case !utf8.ValidString(id.Name):
		return errors.New("the name is not UTF-8")
	case len(id.Addresses) > MaxAddresses:
		return fmt.Errorf("%d addresses, at most %d are allowed", len(id.Addresses), MaxAddresses)
	case len(id.Providers) > MaxProviders:
		return fmt.Errorf("%d providers, at most %d are allowed", len(id.Providers), MaxProviders)
	}
	for _, a := range id.Addresses {
		if len(a) > MaxAddress {
			return fmt.Errorf("an address has %d bytes, at most %d are allowed", len(a), MaxAddress)
		}
	}
	for _, p := range id.Providers {
		if len(p) > MaxProvider {
			return fmt.Errorf("a provider's name has %d bytes, at most %d are allowed", len(p), MaxProvider)
		}
	}
	return nil
}

// node returns the identity as an alive node that lives in life.
func (id Identity) node(life addr.Life) Node {
	return Node{Life: life, UUID: id.UUID, Epoch: id.Epoch, Name: id.Name, State: Alive,
		Addresses: id.Addresses, Providers: id.Providers}
}
