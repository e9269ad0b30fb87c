package gossip

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
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

// Meta is a member's description of itself for everyone. It is a claim: the lease table and the
// certificates prove the truth.
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
	Cluster     addr.UUID
	Incarnation addr.Incarnation // the zero Incarnation while it has no lease
	Term        uint64           // highest host term it has accepted
	Host        bool             // it runs in the host role
	Serving     bool             // it is a host that has members
	Leaving     bool             // it announced that it leaves
	Addresses   []string         // where its providers accept sessions, at most MaxAddresses
	Providers   []string         // at most MaxProviders
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
	e := codec.To(b)
	e.U8(MetaVersion)
	e.U8(flags)
	e.UUID(m.Cluster)
	e.Incarnation(m.Incarnation)
	e.U64(m.Term)
	putWords(&e, m.Addresses)
	putWords(&e, m.Providers)
	out := e.Encoded()
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

func putWords(e *codec.Encoder, list []string) {
	codec.Append(e, list, len(list), func(s string) {
		e.U8(uint8(len(s)))
		e.FixedText(s)
	})
}

func printable(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c <= ' ' || c > '~' })
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
	d := codec.From(b[1:])
	flags := d.U8()
	if flags&^flagsKnown != 0 {
		return Meta{}, fmt.Errorf("%w: unknown flags %#x", ErrMeta, flags)
	}
	m := Meta{
		Cluster:     d.UUID(),
		Incarnation: d.Incarnation(),
		Term:        d.U64(),
		Leaving:     flags&flagLeaving != 0,
		Host:        flags&flagHost != 0,
		Serving:     flags&flagServing != 0,
	}
	if !d.OK() {
		return Meta{}, fmt.Errorf("%w: %d bytes are too few", ErrMeta, len(b))
	}
	if m.Addresses = takeWords(&d, MaxAddresses, maxAddress); !d.OK() {
		return Meta{}, fmt.Errorf("%w: malformed addresses", ErrMeta)
	}
	if m.Providers = takeWords(&d, MaxProviders, maxProvider); !d.OK() {
		return Meta{}, fmt.Errorf("%w: malformed providers", ErrMeta)
	}
	if !d.Whole() {
		return Meta{}, fmt.Errorf("%w: %d bytes after the end", ErrMeta, d.Left())
	}
	return m, nil
}

// takeWords takes the strings that putWords has put.
func takeWords(d *codec.Decoder, count, length int) []string {
	return codec.List(d, count, func() string {
		p := d.Take(int(d.U8()))
		d.Require(len(p) > 0 && len(p) <= length && printable(p))
		return string(p)
	})
}
