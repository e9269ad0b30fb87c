// Package addr defines the small values that name things in a fabric: nodes,
// ports, addresses, generations and identities. They are comparable, can be map
// keys, and every other package may import them.
package addr

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A NodeID names a node of a cluster. IDs are leases granted by the host; the
// host itself is always [Host]. The IDs from [FirstReserved] up are never
// granted.
type NodeID uint16

const (
	// Host is the ID of the cluster's host, SCIF's management node.
	Host NodeID = 0
	// FirstReserved is the first ID that is never granted.
	FirstReserved NodeID = 0xFFF0
	// NoNode is the ID of no node.
	NoNode NodeID = 0xFFFF
)

// A Generation counts the incarnations of a node ID: each grant of the same ID has the
// next generation. Generation 0 is no generation.
type Generation uint32

// An Incarnation is one generation of one node ID. Two incarnations of the same ID never
// share a link, a connection or a window.
type Incarnation struct {
	Node       NodeID
	Generation Generation
}

// String returns the incarnation as "node.generation".
func (l Incarnation) String() string { return fmt.Sprintf("%d.%d", l.Node, l.Generation) }

// A Port is a port number on one node.
// Port 0 asks Bind to choose; nothing is ever bound to it.
type Port uint16

const (
	// AdminEnd is the first port that needs no privilege (SCIF_ADMIN_PORT_END).
	AdminEnd Port = 1024
	// ReservedEnd is the first port that Bind may choose (SCIF_PORT_RSVD).
	ReservedEnd Port = 1088
	// FirstEphemeral is the first port that Bind chooses. It chooses one below
	// only when all from here on are taken, so that servers find theirs free.
	FirstEphemeral Port = 32768
)

// Addr is the address of an endpoint (struct scif_portID).
type Addr struct {
	Node NodeID
	Port Port
}

// String returns the address as "node:port", the form that [Parse] accepts.
func (a Addr) String() string { return fmt.Sprintf("%d:%d", a.Node, a.Port) }

// Network returns "scif". With String it makes Addr a [net.Addr].
func (a Addr) Network() string { return "scif" }

var (
	errSyntax = errors.New("want node:port")
	errNumber = errors.New("want a number from 0 to 65535")
)

// Parse parses s, which has the form "node:port" with two decimal numbers of
// 16 bits.
func Parse(s string) (Addr, error) {
	node, port, ok := strings.Cut(s, ":")
	if !ok {
		return Addr{}, fmt.Errorf("parse address %q: %w", s, errSyntax)
	}
	n, err := strconv.ParseUint(node, 10, 16)
	if err != nil {
		return Addr{}, fmt.Errorf("parse address %q: node: %w", s, errNumber)
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Addr{}, fmt.Errorf("parse address %q: port: %w", s, errNumber)
	}
	return Addr{NodeID(n), Port(p)}, nil
}

// A UUID is a 128-bit identity: of a cluster, or of one fabricd's state
// directory. The zero UUID identifies nothing.
type UUID [16]byte

// IsZero reports whether u is the zero UUID.
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns u in the form 8-4-4-4-12 that [ParseUUID] accepts.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseUUID parses the form that [UUID.String] returns. Upper and lower case
// are accepted, other forms are not.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, fmt.Errorf("parse UUID %q: want the form 8-4-4-4-12", s)
	}
	h := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	if _, err := hex.Decode(u[:], []byte(h)); err != nil {
		return UUID{}, fmt.Errorf("parse UUID %q: %w", s, err)
	}
	return u, nil
}
