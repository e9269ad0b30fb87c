package wire

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/internal/status"
)

// ErrMalformed reports bytes that no conforming peer sends. The receiver
// closes the session with transport.CodeProtocol.
var ErrMalformed = errors.New("malformed frame")

// order is the byte order of every integer on the wire.
var order = binary.BigEndian

// begin appends a header whose body length is not known yet; [end] sets it.
func begin(b []byte, t Type, flags uint8) []byte {
	return append(b, byte(t), flags, 0, 0, 0, 0, 0, 0)
}

// end sets the body length of the frame that begins at b[start].
func end(b []byte, start int) []byte {
	order.PutUint32(b[start+4:], uint32(len(b)-start-HeaderLen))
	return b
}

func flag(on bool, bit uint8) uint8 {
	if on {
		return bit
	}
	return 0
}

// A field is an integer of a body.
type field struct {
	value  uint64
	length int // in bytes
}

func u8(v uint8) field   { return field{uint64(v), 1} }
func u16(v uint16) field { return field{uint64(v), 2} }
func u32(v uint32) field { return field{uint64(v), 4} }
func u64(v uint64) field { return field{v, 8} }

// appendFrame appends a frame whose body is integers.
func appendFrame(b []byte, t Type, flags uint8, body ...field) []byte {
	start := len(b)
	b = begin(b, t, flags)
	for _, f := range body {
		b = appendField(b, f)
	}
	return end(b, start)
}

func appendField(b []byte, f field) []byte {
	var p [8]byte
	order.PutUint64(p[:], f.value)
	return append(b, p[len(p)-f.length:]...)
}

// appendTextFrame appends a frame whose body is integers and a reason.
func appendTextFrame(b []byte, t Type, flags uint8, reason string, body ...field) []byte {
	start := len(b)
	b = appendReason(appendFrame(b, t, flags, body...), reason)
	return end(b, start)
}

func appendIncarnation(b []byte, l addr.Incarnation) []byte {
	b = order.AppendUint16(b, uint16(l.Node))
	return order.AppendUint32(b, uint32(l.Generation))
}

// appendReason appends a length of two bytes and s, made valid UTF-8 and cut
// to MaxReason bytes without splitting a character.
func appendReason(b []byte, s string) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > MaxReason {
		n := MaxReason
		for !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	b = order.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// A decoder takes the fields of a body.
type decoder struct{ codec.Decoder }

// decode starts a body whose header may carry the flags in allowed.
func decode(body []byte, flags, allowed uint8) decoder {
	d := decoder{codec.From(body)}
	d.Require(flags&^allowed == 0)
	return d
}

func (d *decoder) port() addr.Port { return addr.Port(d.U16()) }

func (d *decoder) connID() ConnID { return ConnID(d.U64()) }

// code reads the status of an answer that may be status.OK.
func (d *decoder) code() status.Code { return status.Code(d.U16()) }

// failure reads the status of a refusal, which is never status.OK.
func (d *decoder) failure() status.Code {
	c := d.code()
	d.Require(c != status.OK)
	return c
}

// payload reads the length of a payload, which is never empty.
func (d *decoder) payload() uint32 {
	n := d.U32()
	d.Require(0 < n && n <= MaxPayload)
	return n
}

// reason takes a text that appendReason has encoded.
func (d *decoder) reason() string { return d.Text(MaxReason) }

// finish returns nil if every field was well formed and no bytes are left.
func (d *decoder) finish() error {
	if !d.Whole() {
		return ErrMalformed
	}
	return nil
}

// Apply parses the body of a frame and calls do with the result, if the body is well formed.
func Apply[F any](h Header, body []byte, parse func(flags uint8, body []byte) (F, error), do func(F) error) error {
	f, err := parse(h.Flags, body)
	if err != nil {
		return err
	}
	return do(f)
}

// result returns f if the body was well formed, else the zero F.
func result[F any](d *decoder, f F) (F, error) {
	if err := d.finish(); err != nil {
		var zero F
		return zero, err
	}
	return f, nil
}
