package verdict

import (
	"errors"
	"net/netip"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A PartialPolicy decides about two nodes that have lost only each other, and
// about a node that has lost only the host.
type PartialPolicy uint8

const (
	// PartialReset keeps both in the fabric; the pair's links stay down.
	PartialReset PartialPolicy = iota
	// PartialEvict removes, of two that complain about each other, the one that
	// more nodes complain about, of equals the one with the higher ID, never the
	// host; of two of which one complains, that one, unless many others agree.
	PartialEvict
)

// An Identity is a node's own statement about itself.
type Identity struct {
	UUID   addr.UUID // not zero
	Epoch  uint64    // of this start of its fabricd; differs between two starts
	Claims           // not none
}

// A HostConfig starts a Host. It must not be changed after it was passed.
type HostConfig struct {
	Self   Identity
	Term   uint64      // > 0, already raised and on disk, not above 2³²−2: it is node 0's generation too
	Leases []Lease     // as on disk
	Cursor addr.NodeID // as on disk
	// Floor is the highest generation that a table that was lost, or restored from
	// a backup, can have granted. Every incarnation begins above it. 0: neither.
	Floor   addr.Generation
	Timing  Timing // zero fields: those of Fast
	Partial PartialPolicy
	// Networks are those in which members may announce addresses; empty:
	// everywhere.
	Networks []netip.Prefix
}

// A MemberConfig starts a Member. It must not be changed after it was passed.
type MemberConfig struct {
	Self     Identity
	Previous addr.Incarnation // from disk; the zero Incarnation if none
	Lease    []byte           // from disk: the signed lease of Previous; empty if none
	Term     uint64           // from disk: the highest term ever accepted
	// Want is the only ID that the node takes, as its operator has set it; 0: any.
	Want   addr.NodeID
	Timing Timing // zero fields: those of Fast
}

// check returns an error if the identity lacks a field that it must have.
func (id Identity) check() error {
	switch {
	case id.UUID.IsZero():
		return errors.New("the UUID is zero")
	case id.Claims.None():
		return errors.New("it makes no claims")
	}
	return nil
}

// node returns the identity as an alive node that lives in incarnation.
func (id Identity) node(incarnation addr.Incarnation) Node {
	return Node{Incarnation: incarnation, Identity: id, State: Alive}
}
