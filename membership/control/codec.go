package control

import (
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/membership/verdict"
)

var (
	// ErrMalformed is the error for every frame that does not decode.
	ErrMalformed = errors.New("malformed control frame")
	// ErrTooLarge is the error for values that do not fit in their field.
	ErrTooLarge = errors.New("value does not fit in a control frame")
)

// An encoder appends the fields of frames.
type encoder struct{ codec.Encoder }

func to(b []byte) encoder { return encoder{codec.To(b)} }

// words appends a text for people. Characters that do not print were a peer's, or a file name's,
// and are replaced; a text that is too long is cut.
func (e *encoder) words(s string, limit int) {
	s = printable(s)
	for len(s) > limit {
		_, n := utf8.DecodeLastRuneInString(s[:limit+1])
		s = s[:min(limit, limit+1-n)]
	}
	e.Text(s, limit)
}

// A decoder takes the fields of frames.
type decoder struct {
	codec.Decoder
	why error // the value that cannot be, if that is the error
}

func from(b []byte) decoder { return decoder{Decoder: codec.From(b)} }

// words reads a text for people, all of which prints: its reader need not check.
func (d *decoder) words(limit int) string {
	s := d.Text(limit)
	d.Require(s == printable(s))
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

// A coder writes fields with e, or reads them with d. So the order and the limits of the fields of a
// frame are in one place.
type coder struct {
	e     *encoder
	d     *decoder
	reads bool
}

func writer(e *encoder) coder { return coder{e: e, d: new(decoder)} }
func reader(d *decoder) coder { return coder{e: new(encoder), d: d, reads: true} }

// field writes or reads one field.
func field[T any](c coder, v *T, put func(T), take func() T) {
	if c.reads {
		*v = take()
	} else {
		put(*v)
	}
}

func u8[T ~uint8](c coder, v *T) {
	field(c, v, func(v T) { c.e.U8(uint8(v)) }, func() T { return T(c.d.U8()) })
}

func u16[T ~uint16](c coder, v *T) {
	field(c, v, func(v T) { c.e.U16(uint16(v)) }, func() T { return T(c.d.U16()) })
}

func u32[T ~uint32](c coder, v *T) {
	field(c, v, func(v T) { c.e.U32(uint32(v)) }, func() T { return T(c.d.U32()) })
}

func (c coder) u64(v *uint64)                   { field(c, v, c.e.U64, c.d.U64) }
func (c coder) flag(v *bool)                    { field(c, v, c.e.Bool, c.d.Bool) }
func (c coder) uuid(v *addr.UUID)               { field(c, v, c.e.UUID, c.d.UUID) }
func (c coder) incarnation(v *addr.Incarnation) { field(c, v, c.e.Incarnation, c.d.Incarnation) }
func (c coder) time(v *time.Time)               { field(c, v, c.e.Time, c.d.Time) }

// fixed is all of p.
func (c coder) fixed(p []byte) {
	field(c, &p, c.e.Fixed, func() []byte {
		copy(p, c.d.Take(len(p)))
		return p
	})
}

func (c coder) bytes(v *[]byte, limit int) {
	field(c, v, func(b []byte) { c.e.Bytes(b, limit) }, func() []byte { return c.d.Bytes(limit) })
}

func (c coder) text(v *string, limit int) {
	field(c, v, func(s string) { c.e.Text(s, limit) }, func() string { return c.d.Text(limit) })
}

// words is a text for people.
func (c coder) words(v *string, limit int) {
	field(c, v, func(s string) { c.e.words(s, limit) }, func() string { return c.d.words(limit) })
}

func (c coder) reason(v *verdict.Reason) {
	field(c, v, func(r verdict.Reason) { c.e.Text(string(r), verdict.MaxReason) },
		func() verdict.Reason { return verdict.Reason(c.d.words(verdict.MaxReason)) })
}

// list is a list whose elements one writes or reads.
func list[T any](c coder, v *[]T, limit int, one func(*T)) {
	if c.reads {
		var x *T // of all elements: it escapes
		*v = codec.List(&c.d.Decoder, limit, func() T {
			if x == nil {
				x = new(T)
			}
			var zero T
			*x = zero
			one(x)
			return *x
		})
		return
	}
	c.e.Count(len(*v), limit)
	for i := range *v {
		one(&(*v)[i])
	}
}

func (c coder) texts(v *[]string, count, limit int) {
	field(c, v, func(all []string) { codec.Append(&c.e.Encoder, all, count, func(s string) { c.e.Text(s, limit) }) },
		func() []string { return codec.List(&c.d.Decoder, count, func() string { return c.d.Text(limit) }) })
}

func (c coder) blobs(v *[][]byte, count, limit int) {
	list(c, v, count, func(b *[]byte) { c.bytes(b, limit) })
}

// check makes a frame that is read malformed because of an error in its values.
func (c coder) check(values func() error) {
	if !c.reads {
		return
	}
	if err := values(); err != nil && c.d.OK() {
		c.d.why = err
		c.d.Require(false)
	}
}
