package control

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
)

var (
	// ErrMalformed is the error for every frame that does not decode.
	ErrMalformed = errors.New("malformed control frame")
	// ErrTooLarge is the error for values that do not fit in their field.
	ErrTooLarge = errors.New("value does not fit in a control frame")
)

// An encoder appends the fields of frames.
type encoder struct{ codec.Encoder }

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

func (e *encoder) texts(list []string, count, limit int) {
	codec.Append(&e.Encoder, list, count, func(s string) { e.Text(s, limit) })
}

func (e *encoder) blobs(list [][]byte, count, limit int) {
	codec.Append(&e.Encoder, list, count, func(b []byte) { e.Bytes(b, limit) })
}

// A decoder takes the fields of frames.
type decoder struct {
	codec.Decoder
	why error // the value that cannot be, if that is the error
}

func from(b []byte) decoder { return decoder{Decoder: codec.From(b)} }

// fault makes the frame malformed because of err, if there is one.
func (d *decoder) fault(err error) {
	if err != nil && d.OK() {
		d.why = err
		d.Require(false)
	}
}

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

func (d *decoder) uuids(limit int) []addr.UUID { return codec.List(&d.Decoder, limit, d.UUID) }

func (d *decoder) texts(count, limit int) []string {
	return codec.List(&d.Decoder, count, func() string { return d.Text(limit) })
}

func (d *decoder) blobs(count, limit int) [][]byte {
	return codec.List(&d.Decoder, count, func() []byte { return d.Bytes(limit) })
}
