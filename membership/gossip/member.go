package gossip

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Member is one start of one fabricd, as it describes itself.
type Member struct {
	UUID    addr.UUID
	Epoch   uint64
	Address netip.AddrPort // of its gossip
	Meta    Meta
}

// A Key names a member: no two starts of a fabricd have the same.
type Key struct {
	UUID  addr.UUID
	Epoch uint64
}

// Key returns the member's key.
func (m Member) Key() Key { return Key{m.UUID, m.Epoch} }

// String returns the name under which memberlist knows the member:
// "UUID.epoch", the epoch in decimal. [ParseKey] reads it.
func (k Key) String() string { return k.UUID.String() + "." + strconv.FormatUint(k.Epoch, 10) }

// ParseKey parses the form that [Key.String] returns, and only that form: two
// names never mean the same member.
func ParseKey(s string) (Key, error) {
	if len(s) > 36+1+20 { // too long to quote
		return Key{}, fmt.Errorf("parse member name of %d bytes: want UUID.epoch", len(s))
	}
	u, e, ok := strings.Cut(s, ".")
	if !ok {
		return Key{}, fmt.Errorf("parse member name %q: want UUID.epoch", s)
	}
	id, err := addr.ParseUUID(u)
	if err != nil {
		return Key{}, fmt.Errorf("parse member name: %w", err)
	}
	epoch, err := strconv.ParseUint(e, 10, 64)
	if err != nil {
		return Key{}, fmt.Errorf("parse member name %q: epoch: %w", s, err)
	}
	k := Key{id, epoch}
	if k.String() != s {
		return Key{}, fmt.Errorf("parse member name %q: want %s", s, k)
	}
	return k, nil
}

// A Kind is the content of a Change.
type Kind uint8

const (
	Seen    Kind = iota + 1 // a member speaks with it
	Gone                    // no member could reach it, or it left: see Meta.Leaving
	Updated                 // its Meta changed
)

// String returns the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Seen:
		return "seen"
	case Gone:
		return "gone"
	case Updated:
		return "updated"
	}
	return "unknown"
}

// A Change is a change of the gossip's opinion about a member.
type Change struct {
	Kind   Kind
	Member Member
}
