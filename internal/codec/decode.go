package codec

import (
	"encoding/binary"
	"time"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Decoder takes fields from the front of a body. After a field that is missing or exceeds its
// limit every field is zero: the caller checks once, at the end.
type Decoder struct {
	b      []byte
	little bool
	bad    bool
}

// From returns a Decoder of b, whose integers are big-endian. Results of Take and Rest are part of
// b; all others are copies.
func From(b []byte) Decoder { return Decoder{b: b} }

// FromLittle is From for little-endian integers.
func FromLittle(b []byte) Decoder { return Decoder{b: b, little: true} }

// Require makes the body malformed unless ok.
func (d *Decoder) Require(ok bool) {
	if !ok {
		d.bad = true
	}
}

// OK reports whether all fields so far were present and within their limits.
func (d *Decoder) OK() bool { return !d.bad }

// Whole reports OK, and that no bytes are left.
func (d *Decoder) Whole() bool { return !d.bad && len(d.b) == 0 }

// Left returns how many bytes are left.
func (d *Decoder) Left() int { return len(d.b) }

// Take takes n bytes, nil if there are fewer.
func (d *Decoder) Take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

// Rest takes all remaining bytes, at most limit.
func (d *Decoder) Rest(limit int) []byte {
	d.Require(len(d.b) <= limit)
	return d.Take(len(d.b))
}

// U8 takes one byte.
func (d *Decoder) U8() uint8 {
	if p := d.Take(1); p != nil {
		return p[0]
	}
	return 0
}

// U16 takes two bytes.
func (d *Decoder) U16() uint16 {
	p := d.Take(2)
	switch {
	case p == nil:
		return 0
	case d.little:
		return binary.LittleEndian.Uint16(p)
	}
	return binary.BigEndian.Uint16(p)
}

// U32 takes four bytes.
func (d *Decoder) U32() uint32 {
	p := d.Take(4)
	switch {
	case p == nil:
		return 0
	case d.little:
		return binary.LittleEndian.Uint32(p)
	}
	return binary.BigEndian.Uint32(p)
}

// U64 takes eight bytes.
func (d *Decoder) U64() uint64 {
	p := d.Take(8)
	switch {
	case p == nil:
		return 0
	case d.little:
		return binary.LittleEndian.Uint64(p)
	}
	return binary.BigEndian.Uint64(p)
}

// Bool takes a byte that is 0 or 1.
func (d *Decoder) Bool() bool {
	v := d.U8()
	d.Require(v <= 1)
	return v == 1
}

// Reserved takes n bytes that are zero.
func (d *Decoder) Reserved(n int) {
	for _, v := range d.Take(n) {
		d.Require(v == 0)
	}
}

// UUID takes an identity.
func (d *Decoder) UUID() (u addr.UUID) {
	copy(u[:], d.Take(len(u)))
	return u
}

// Incarnation takes a node ID of two bytes and a generation of four.
func (d *Decoder) Incarnation() addr.Incarnation {
	return addr.Incarnation{Node: addr.NodeID(d.U16()), Generation: addr.Generation(d.U32())}
}

// Time takes Unix nanoseconds, 0 for the zero time.
func (d *Decoder) Time() time.Time {
	n := int64(d.U64())
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// Count takes a count of one byte, at most limit.
func (d *Decoder) Count(limit int) int {
	n := int(d.U8())
	if n > limit {
		d.bad = true
		return 0
	}
	return n
}

// Bytes takes a length of two bytes, at most limit, and that many bytes; nil if there are none.
func (d *Decoder) Bytes(limit int) []byte {
	p := d.sized(limit)
	if len(p) == 0 {
		return nil
	}
	return append([]byte(nil), p...)
}

// Text is Bytes that are UTF-8.
func (d *Decoder) Text(limit int) string {
	p := d.sized(limit)
	if !utf8.Valid(p) {
		d.bad = true
		return ""
	}
	return string(p)
}

func (d *Decoder) sized(limit int) []byte {
	n := int(d.U16())
	d.Require(n <= limit)
	return d.Take(n)
}

// List takes a count of one byte, at most limit, and that many values, each by one call of take. It
// stops at the first malformed one.
func List[T any](d *Decoder, limit int, take func() T) (list []T) {
	for range d.Count(limit) {
		v := take()
		if d.bad {
			break
		}
		list = append(list, v)
	}
	return list
}
