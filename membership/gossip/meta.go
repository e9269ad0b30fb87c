package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Limits of a Meta.
const (
	MetaVersion  = 1   // the version that Append writes and DecodeMeta reads
	MaxMeta      = 200 // bytes of an encoded Meta; memberlist allows 512
	MaxAddresses = 4
	MaxProviders = 8
	maxAddress   = 64 // bytes of one address
	maxProvider  = 16 // bytes of one provider's name
)

const (
	flagLeaving = 1 << 0
	flagHost    = 1 << 1
	flagServing = 1 << 2
	flagsKnown  = flagLeaving | flagHost | flagServing
)

// ErrMeta is in the chain of every error about metadata.
var ErrMeta = errors.New("gossip metadata")

// Meta is what a member says of itself to everyone. It is a claim: the lease
// table and the certificates say what is true.
//
//	 0         1       2          18     20           24     32
//	+---------+-------+----------+------+------------+------+----------+----------+
//	| version | flags | cluster  | node | generation | term | strings  | strings  |
//	+---------+-------+----------+------+------------+------+----------+----------+
//	                                                          addresses  providers
//
// Integers are big-endian. Strings are a count of one byte, then for each one
// byte of length and printable ASCII. Nothing follows.
type Meta struct {
	Cluster   addr.UUID
	Life      addr.Life // the zero Life while it has no lease
	Term      uint64    // highest host term it has accepted
	Host      bool      // it runs in the host role
	Serving   bool      // it is a host that has members
	Leaving   bool      // it said that it leaves
	Addresses []string  // where its providers accept sessions, at most MaxAddresses
	Providers []string  // at most MaxProviders
}

// Append appends m's encoding to b. It fails if a field is out of its limits or
// the encoding is longer than MaxMeta; b is then unchanged.
func (m Meta) Append(b []byte) ([]byte, error) {
	if err := checkStrings("address", m.Addresses, MaxAddresses, maxAddress); err != nil {
		return b, err
	}
	if err := checkStrings("provider", m.Providers, MaxProviders, maxProvider); err != nil {
		return b, err
	}
	var flags byte
	if m.Leaving {
		flags |= flagLeaving
	}
	if m.Host {
		flags |= flagHost
	}
	if m.Serving {
		flags |= flagServing
	}
	out := append(b, MetaVersion, flags)
	out = append(out, m.Cluster[:]...)
	out = binary.BigEndian.AppendUint16(out, uint16(m.Life.Node))
	out = binary.BigEndian.AppendUint32(out, uint32(m.Life.Generation))
	out = binary.BigEndian.AppendUint64(out, m.Term)
	out = appendStrings(out, m.Addresses)
	out = appendStrings(out, m.Providers)
	if n := len(out) - len(b); n > MaxMeta {
		return b, fmt.Errorf("%w: %d bytes, at most %d fit: use shorter or fewer addresses", ErrMeta, n, MaxMeta)
	}
	return out, nil
}

func checkStrings(what string, list []string, count, length int) error {
	if len(list) > count {
		return fmt.Errorf("%w: %d values for %s, at most %d", ErrMeta, len(list), what, count)
	}
	for _, s := range list {
		if len(s) == 0 || len(s) > length || !printable([]byte(s)) {
			return fmt.Errorf("%w: %s %q: want 1 to %d printable ASCII characters", ErrMeta, what, s, length)
		}
	}
	return nil
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, byte(len(list)))
	for _, s := range list {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return b
}

func printable(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// DecodeMeta decodes an encoding that fills b exactly. It keeps no reference
// to b.
func DecodeMeta(b []byte) (Meta, error) {
	if len(b) == 0 || len(b) > MaxMeta {
		return Meta{}, fmt.Errorf("%w: %d bytes", ErrMeta, len(b))
	}
	if b[0] != MetaVersion {
		return Meta{}, fmt.Errorf("%w: version %d, this fabricd reads %d", ErrMeta, b[0], MetaVersion)
	}
	if len(b) < 32 {
		return Meta{}, fmt.Errorf("%w: %d bytes are too few", ErrMeta, len(b))
	}
	if b[1]&^flagsKnown != 0 {
		return Meta{}, fmt.Errorf("%w: unknown flags %#x", ErrMeta, b[1])
	}
	m := Meta{
		Cluster: addr.UUID(b[2:18]),
		Life: addr.Life{
			Node:       addr.NodeID(binary.BigEndian.Uint16(b[18:])),
			Generation: addr.Generation(binary.BigEndian.Uint32(b[20:])),
		},
		Term:    binary.BigEndian.Uint64(b[24:]),
		Leaving: b[1]&flagLeaving != 0,
		Host:    b[1]&flagHost != 0,
		Serving: b[1]&flagServing != 0,
	}
	rest := b[32:]
	var ok bool
	if m.Addresses, rest, ok = takeStrings(rest, MaxAddresses, maxAddress); !ok {
		return Meta{}, fmt.Errorf("%w: malformed addresses", ErrMeta)
	}
	if m.Providers, rest, ok = takeStrings(rest, MaxProviders, maxProvider); !ok {
		return Meta{}, fmt.Errorf("%w: malformed providers", ErrMeta)
	}
	if len(rest) != 0 {
		return Meta{}, fmt.Errorf("%w: %d bytes after the end", ErrMeta, len(rest))
	}
	return m, nil
}

// takeStrings reads what appendStrings wrote and returns the bytes after it.
func takeStrings(b []byte, count, length int) (list []string, rest []byte, ok bool) {
	if len(b) == 0 || int(b[0]) > count {
		return nil, nil, false
	}
	n := int(b[0])
	b = b[1:]
	for range n {
		if len(b) == 0 {
			return nil, nil, false
		}
		l := int(b[0])
		if l == 0 || l > length || len(b) < 1+l || !printable(b[1:1+l]) {
			return nil, nil, false
		}
		list = append(list, string(b[1:1+l]))
		b = b[1+l:]
	}
	return list, b, true
}
