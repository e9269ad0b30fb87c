package control

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
)

var (
	// ErrMalformed is the error for every frame that does not decode.
	ErrMalformed = errors.New("malformed control frame")
	// ErrTooLarge is the error for values that do not fit in their field.
	ErrTooLarge = errors.New("value does not fit in a control frame")
)

// An encoder appends fields to b. A value beyond its limit makes all of it fail.
type encoder struct {
	b   []byte
	bad bool
}

func (e *encoder) u8(v uint8)       { e.b = append(e.b, v) }
func (e *encoder) u16(v uint16)     { e.b = binary.BigEndian.AppendUint16(e.b, v) }
func (e *encoder) u32(v uint32)     { e.b = binary.BigEndian.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64)     { e.b = binary.BigEndian.AppendUint64(e.b, v) }
func (e *encoder) fixed(v []byte)   { e.b = append(e.b, v...) }
func (e *encoder) uuid(u addr.UUID) { e.fixed(u[:]) }

func (e *encoder) bool(v bool) {
	if v {
		e.u8(1)
		return
	}
	e.u8(0)
}

func (e *encoder) life(l addr.Life) {
	e.u16(uint16(l.Node))
	e.u32(uint32(l.Generation))
}

// bytes appends a length of 16 bits and v.
func (e *encoder) bytes(v []byte, limit int) {
	if len(v) > limit {
		e.bad = true
		return
	}
	e.u16(uint16(len(v)))
	e.fixed(v)
}

func (e *encoder) text(s string, limit int) {
	if len(s) > limit || !utf8.ValidString(s) {
		e.bad = true
		return
	}
	e.u16(uint16(len(s)))
	e.b = append(e.b, s...)
}

// words appends a text for people. What does not print in it was a peer's, or a
// file's name, and is replaced; what is too long is cut.
func (e *encoder) words(s string, limit int) {
	s = printable(s)
	for len(s) > limit {
		_, n := utf8.DecodeLastRuneInString(s[:limit+1])
		s = s[:min(limit, limit+1-n)]
	}
	e.text(s, limit)
}

func (e *encoder) count(n, limit int) {
	if n > limit {
		e.bad = true
	}
	e.u8(uint8(n))
}

func (e *encoder) texts(list []string, count, limit int) {
	e.count(len(list), count)
	for _, s := range list {
		e.text(s, limit)
	}
}

func (e *encoder) blobs(list [][]byte, count, limit int) {
	e.count(len(list), count)
	for _, b := range list {
		e.bytes(b, limit)
	}
}

// time appends t in Unix nanoseconds, 0 for the zero time.
func (e *encoder) time(t time.Time) {
	if t.IsZero() {
		e.u64(0)
		return
	}
	e.u64(uint64(t.UnixNano()))
}

// A decoder reads fields from b. After a failed read every read returns zero;
// finished tells at the end whether all went well and b was used up.
type decoder struct {
	b   []byte
	bad bool
	why error // what of the values cannot be, if that is what is bad
}

// fault makes the frame malformed because of err, if there is one.
func (d *decoder) fault(err error) {
	if err != nil && !d.bad {
		d.bad, d.why = true, err
	}
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) bool() bool {
	v := d.u8()
	if v > 1 {
		d.bad = true
	}
	return v == 1
}

func (d *decoder) uuid() (u addr.UUID) {
	copy(u[:], d.take(len(u)))
	return u
}

func (d *decoder) life() addr.Life {
	return addr.Life{Node: addr.NodeID(d.u16()), Generation: addr.Generation(d.u32())}
}

// bytes returns a copy, nil if empty.
func (d *decoder) bytes(limit int) []byte {
	n := int(d.u16())
	if n > limit {
		d.bad = true
	}
	p := d.take(n)
	if len(p) == 0 {
		return nil
	}
	return append([]byte(nil), p...)
}

func (d *decoder) text(limit int) string {
	n := int(d.u16())
	if n > limit {
		d.bad = true
	}
	p := d.take(n)
	if !utf8.Valid(p) {
		d.bad = true
		return ""
	}
	return string(p)
}

// words reads a text for people, all of which prints: nobody who shows it has to
// look.
func (d *decoder) words(limit int) string {
	s := d.text(limit)
	if s != printable(s) {
		d.bad = true
	}
	return s
}

// printable returns s with a question mark for everything that does not print.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

func (d *decoder) uuids(limit int) (list []addr.UUID) {
	for range d.count(limit) {
		if d.bad {
			break
		}
		list = append(list, d.uuid())
	}
	return list
}

func (d *decoder) count(limit int) int {
	n := int(d.u8())
	if n > limit {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) texts(count, limit int) (list []string) {
	for range d.count(count) {
		if d.bad {
			break
		}
		list = append(list, d.text(limit))
	}
	return list
}

func (d *decoder) blobs(count, limit int) (list [][]byte) {
	for range d.count(count) {
		if d.bad {
			break
		}
		list = append(list, d.bytes(limit))
	}
	return list
}

func (d *decoder) time() time.Time {
	n := int64(d.u64())
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func (d *decoder) finished() bool { return !d.bad && len(d.b) == 0 }
