package wire

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
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

func appendLife(b []byte, l addr.Life) []byte {
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

// A decoder reads fields from the front of b. Once a read has failed, every
// later read returns zero, so callers check once, at the end.
type decoder struct {
	b   []byte
	bad bool
}

// decode starts a body whose header may carry the flags in allowed.
func decode(body []byte, flags, allowed uint8) decoder {
	return decoder{b: body, bad: flags&^allowed != 0}
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint8() uint8 {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) uint16() uint16 {
	if v := d.take(2); v != nil {
		return order.Uint16(v)
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	if v := d.take(4); v != nil {
		return order.Uint32(v)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if v := d.take(8); v != nil {
		return order.Uint64(v)
	}
	return 0
}

func (d *decoder) uuid() (u addr.UUID) {
	copy(u[:], d.take(len(u)))
	return u
}

func (d *decoder) life() addr.Life {
	return addr.Life{Node: addr.NodeID(d.uint16()), Generation: addr.Generation(d.uint32())}
}

func (d *decoder) port() addr.Port { return addr.Port(d.uint16()) }

func (d *decoder) connID() ConnID { return ConnID(d.uint64()) }

// code reads the status of an answer that may be status.OK.
func (d *decoder) code() status.Code { return status.Code(d.uint16()) }

// failure reads the status of a refusal, which is never status.OK.
func (d *decoder) failure() status.Code {
	c := d.code()
	d.require(c != status.OK)
	return c
}

// payload reads the length of a payload, which is never empty.
func (d *decoder) payload() uint32 {
	n := d.uint32()
	d.require(0 < n && n <= MaxPayload)
	return n
}

// reason reads what appendReason wrote.
func (d *decoder) reason() string {
	n := d.uint16()
	d.require(n <= MaxReason)
	s := d.take(int(n))
	d.require(utf8.Valid(s))
	return string(s)
}

// reserved reads n bytes that are zero in this version.
func (d *decoder) reserved(n int) {
	for _, v := range d.take(n) {
		d.require(v == 0)
	}
}

// require makes the frame malformed unless ok.
func (d *decoder) require(ok bool) {
	if !ok {
		d.bad = true
	}
}

// finish returns nil if every read succeeded and nothing is left over.
func (d *decoder) finish() error {
	if d.bad || len(d.b) != 0 {
		return ErrMalformed
	}
	return nil
}

// result returns f if the body was well formed, else the zero F.
func result[F any](d *decoder, f F) (F, error) {
	if err := d.finish(); err != nil {
		var zero F
		return zero, err
	}
	return f, nil
}
