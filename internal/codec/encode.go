package codec

import (
	"encoding/binary"
	"time"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
)

// An Encoder appends fields. A field that exceeds its limit makes the whole body bad.
type Encoder struct {
	b      []byte
	little bool
	bad    bool
}

// To returns an Encoder that appends to b, integers big-endian.
func To(b []byte) Encoder { return Encoder{b: b} }

// ToLittle is To for little-endian integers.
func ToLittle(b []byte) Encoder { return Encoder{b: b, little: true} }

// Encoded returns the bytes given to To, and all bytes appended so far.
func (e *Encoder) Encoded() []byte { return e.b }

// OK reports whether all fields so far were within their limits.
func (e *Encoder) OK() bool { return !e.bad }

// Require makes the body bad unless ok.
func (e *Encoder) Require(ok bool) {
	if !ok {
		e.bad = true
	}
}

// Fixed appends bytes of a length that both ends know.
func (e *Encoder) Fixed(p []byte) { e.b = append(e.b, p...) }

// FixedText is Fixed for the bytes of a text.
func (e *Encoder) FixedText(s string) { e.b = append(e.b, s...) }

// U8 appends one byte.
func (e *Encoder) U8(v uint8) { e.b = append(e.b, v) }

// U16 appends two bytes.
func (e *Encoder) U16(v uint16) {
	if e.little {
		e.b = binary.LittleEndian.AppendUint16(e.b, v)
		return
	}
	e.b = binary.BigEndian.AppendUint16(e.b, v)
}

// U32 appends four bytes.
func (e *Encoder) U32(v uint32) {
	if e.little {
		e.b = binary.LittleEndian.AppendUint32(e.b, v)
		return
	}
	e.b = binary.BigEndian.AppendUint32(e.b, v)
}

// U64 appends eight bytes.
func (e *Encoder) U64(v uint64) {
	if e.little {
		e.b = binary.LittleEndian.AppendUint64(e.b, v)
		return
	}
	e.b = binary.BigEndian.AppendUint64(e.b, v)
}

// Bool appends 0 or 1.
func (e *Encoder) Bool(v bool) {
	if v {
		e.U8(1)
		return
	}
	e.U8(0)
}

// Reserved appends n zeros.
func (e *Encoder) Reserved(n int) { e.b = append(e.b, make([]byte, n)...) }

// UUID appends an identity.
func (e *Encoder) UUID(u addr.UUID) { e.Fixed(u[:]) }

// Incarnation appends a node ID and a generation.
func (e *Encoder) Incarnation(l addr.Incarnation) {
	e.U16(uint16(l.Node))
	e.U32(uint32(l.Generation))
}

// Time appends t in Unix nanoseconds, 0 for the zero time.
func (e *Encoder) Time(t time.Time) {
	if t.IsZero() {
		e.U64(0)
		return
	}
	e.U64(uint64(t.UnixNano()))
}

// Count appends a count of at most limit, which is below 256.
func (e *Encoder) Count(n, limit int) {
	e.Require(n <= limit)
	e.U8(uint8(n))
}

// Bytes appends a length of two bytes and at most limit bytes.
func (e *Encoder) Bytes(p []byte, limit int) {
	e.Require(len(p) <= limit)
	e.U16(uint16(len(p)))
	e.Fixed(p)
}

// Text is Bytes of UTF-8.
func (e *Encoder) Text(s string, limit int) {
	e.Require(len(s) <= limit && utf8.ValidString(s))
	e.U16(uint16(len(s)))
	e.FixedText(s)
}

// Append appends the count of list, at most limit, and each of its values by one call of
// put.
func Append[T any](e *Encoder, list []T, limit int, put func(T)) {
	e.Count(len(list), limit)
	for _, v := range list {
		put(v)
	}
}
