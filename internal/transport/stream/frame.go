package stream

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// Frame types, numbers on the wire: never renumber or reuse one. HELLO, or CLOSE instead, comes
// before yamux; the others, and CLOSE, on the control stream.
const (
	typeHello    = 1 // version from and to, plaintext, bytes; number of streams the peer may have open, 4 bytes
	typeClose    = 2 // code, 8 bytes; the reason
	typeOver     = 3 // number of the peer's streams that are over, 8 bytes
	typeDatagram = 4 // one datagram
)

const (
	version     = 1
	helloLen    = 7
	frameHeader = 3 // type; length of the body, 2 bytes
	maxBody     = transport.MaxDatagram
)

// appendFrame appends a frame of the type to b.
func appendFrame(b []byte, kind byte, body []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	return append(b, body...)
}

// appendClose appends a CLOSE to b.
func appendClose(b []byte, why *transport.CloseError) []byte {
	return appendFrame(b, typeClose, append(number(why.Code), why.Reason...))
}

// number returns a body of one number.
func number(n uint64) []byte {
	e := codec.To(nil)
	e.U64(n)
	return e.Encoded()
}

// readFrame reads a frame into buf, which has room for the largest, and checks the
// length of its body.
func readFrame(r io.Reader, buf []byte) (kind byte, body []byte, err error) {
	if _, err := io.ReadFull(r, buf[:frameHeader]); err != nil {
		return 0, nil, err
	}
	kind = buf[0]
	n := int(binary.BigEndian.Uint16(buf[1:]))
	fits := false
	switch kind {
	case typeHello:
		fits = n == helloLen
	case typeClose:
		fits = n >= 8 && n <= 8+network.MaxReason
	case typeOver:
		fits = n == 8
	case typeDatagram:
		fits = n <= transport.MaxDatagram
	}
	if !fits {
		return 0, nil, violation("malformed frame: type %d with %d bytes", kind, n)
	}
	_, err = io.ReadFull(r, buf[:n])
	return kind, buf[:n], err
}

// parseClose returns the session's end in a peer's CLOSE.
func parseClose(body []byte) *transport.CloseError {
	d := codec.From(body)
	return &transport.CloseError{Remote: true, Code: d.U64(), Reason: network.Bounded(string(d.Rest(network.MaxReason)))}
}

// A hello is an end's parameters.
type hello struct {
	from, to  uint8 // supported versions
	plaintext bool
	streams   uint32 // streams that the peer may have open
}

func (h hello) appendTo(b []byte) []byte {
	e := codec.To(nil)
	e.U8(h.from)
	e.U8(h.to)
	e.Bool(h.plaintext)
	e.U32(h.streams)
	return appendFrame(b, typeHello, e.Encoded())
}

func parseHello(body []byte) (hello, error) {
	d := codec.From(body)
	h := hello{from: d.U8(), to: d.U8(), plaintext: d.Bool(), streams: d.U32()}
	d.Require(h.from <= h.to && h.streams > 0 && h.streams <= maxStreams)
	if !d.Whole() {
		return hello{}, fmt.Errorf("malformed HELLO % x", body)
	}
	return h, nil
}
