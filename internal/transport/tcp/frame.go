package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fabricd/fabricd/internal/transport"
)

// A frameType says what a frame is. The numbers are those of SPEC.md: never
// renumber or reuse one.
type frameType uint8

const (
	typeHello    frameType = 1  // the first frame of each side
	typeData     frameType = 2  // bytes of a lane
	typeReset    frameType = 3  // the sender dropped a lane
	typeStop     frameType = 4  // the reader dropped a lane
	typeCredit   frameType = 5  // the sender may send up to an offset
	typeLanes    frameType = 6  // the peer may open up to a number of lanes
	typeDatagram frameType = 7  // one datagram
	typeClose    frameType = 8  // the end of the session
	typeWant     frameType = 9  // the dialer asks for a token
	typeToken    frameType = 10 // the accepter gives one
	typeBound    frameType = 11 // the answer to a token, on the bulk connection
	typeAck      frameType = 12 // the sender has got the bytes of a bulk connection up to a position
	typeLost     frameType = 13 // the same, and it takes no more from there
)

// flagFin says that a lane ends after the bytes of the frame.
const flagFin = 1

// Sizes in bytes.
const (
	headerLen = 24
	maxSmall  = 16<<10 - headerLen // payload on the first connection: a frame fits a TLS record
	maxPiece  = 1 << 20            // payload on a bulk connection
	helloLen  = 16
	tokenLen  = 32
	maxReason = 256
	minWindow = 64 << 10
	maxWindow = 1 << 30
	maxLanes  = 1 << 16
	maxBulk   = 16
	maxNumber = 1 << 30 // of a bulk connection
	maxOffset = 1 << 62 // no offset and no limit is above: sums do not overflow
)

// errMalformed is in the error of everything that no honest peer sends.
var errMalformed = errors.New("malformed frame")

// A header begins every frame.
//
//	 0      1       2        4        8        16       24
//	+------+-------+--------+--------+--------+--------+
//	| type | flags | zero   | length | lane   | value  |
//	+------+-------+--------+--------+--------+--------+
//
// length bytes follow. lane is a lane's number, counted from 1 by who opened
// it, or that of a bulk connection; value is an offset, a limit, a position, a
// code or a session's number.
type header struct {
	kind   frameType
	flags  uint8
	length uint32
	lane   uint64
	value  uint64
}

func (h header) appendTo(b []byte) []byte {
	b = append(b, byte(h.kind), h.flags, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.length)
	b = binary.BigEndian.AppendUint64(b, h.lane)
	return binary.BigEndian.AppendUint64(b, h.value)
}

// setLength changes the length in the header at the start of b.
func setLength(b []byte, length uint32) { binary.BigEndian.PutUint32(b[4:], length) }

// parseHeader parses the header at the start of b, which has headerLen bytes or
// more. longest bounds the payload of data on this connection.
func parseHeader(b []byte, longest uint32) (header, error) {
	h := header{
		kind:   frameType(b[0]),
		flags:  b[1],
		length: binary.BigEndian.Uint32(b[4:]),
		lane:   binary.BigEndian.Uint64(b[8:]),
		value:  binary.BigEndian.Uint64(b[16:]),
	}
	if b[2] != 0 || b[3] != 0 || !h.wellFormed(longest) {
		return header{}, fmt.Errorf("%w: header % x", errMalformed, b[:headerLen])
	}
	return h, nil
}

// wellFormed reports whether the fields of h fit its type.
func (h header) wellFormed(longest uint32) bool {
	plain := h.flags == 0 && h.value <= maxOffset
	onLane := h.lane > 0 && h.lane <= maxOffset
	switch h.kind {
	case typeData:
		return h.flags&^flagFin == 0 && h.value <= maxOffset && onLane && h.length <= longest &&
			(h.length > 0 || h.flags == flagFin)
	case typeReset:
		return plain && onLane && h.length == 0
	case typeStop:
		return plain && onLane && h.length == 0 && h.value == 0
	case typeCredit:
		return plain && h.lane <= maxOffset && h.length == 0
	case typeLanes:
		return plain && h.lane == 0 && h.length == 0
	case typeHello:
		return plain && h.lane == 0 && h.value == 0 && h.length == helloLen
	case typeDatagram:
		return plain && h.lane == 0 && h.value == 0 && h.length <= transport.MaxDatagram
	case typeClose:
		return plain && h.lane == 0 && h.length <= maxReason
	case typeWant, typeBound:
		return plain && h.lane == 0 && h.value == 0 && h.length == 0
	case typeToken:
		return h.flags == 0 && h.lane > 0 && h.lane <= maxNumber && h.length == tokenLen
	case typeAck, typeLost:
		return plain && h.lane > 0 && h.lane <= maxNumber && h.length == 0
	}
	return false
}

// A hello says what one end allows the other.
//
//	 0       1       2      3      4             8                12       16
//	+-------+-------+------+------+-------------+----------------+--------+
//	| from  | to    |flags | bulk | lane window | session window | lanes  |
//	+-------+-------+------+------+-------------+----------------+--------+
//
// from and to are the versions of the protocol that the end speaks.
type hello struct {
	from, to      uint8
	plaintext     bool // flag 1: bulk connections go without TLS
	plainFirst    bool // flag 2: so does the first one, behind both hellos
	bulk          uint8
	laneWindow    uint32
	sessionWindow uint32
	lanes         uint32
}

// version is the only one that is spoken. Version 1 had no ACK and no LOST.
const version = 2

func (h hello) appendTo(b []byte) []byte {
	b = header{kind: typeHello, length: helloLen}.appendTo(b)
	flags := byte(0)
	if h.plaintext {
		flags |= 1
	}
	if h.plainFirst {
		flags |= 2
	}
	b = append(b, h.from, h.to, flags, h.bulk)
	b = binary.BigEndian.AppendUint32(b, h.laneWindow)
	b = binary.BigEndian.AppendUint32(b, h.sessionWindow)
	return binary.BigEndian.AppendUint32(b, h.lanes)
}

// parseHello parses the helloLen bytes of a hello's body. A later version may
// add flags: those that are not known are ignored.
func parseHello(b []byte) (hello, error) {
	h := hello{
		from: b[0], to: b[1], plaintext: b[2]&1 != 0, plainFirst: b[2]&2 != 0, bulk: min(b[3], maxBulk),
		laneWindow:    binary.BigEndian.Uint32(b[4:]),
		sessionWindow: binary.BigEndian.Uint32(b[8:]),
		lanes:         binary.BigEndian.Uint32(b[12:]),
	}
	within := func(v, low, high uint32) bool { return low <= v && v <= high }
	if h.from > h.to || h.from == 0 || !within(h.laneWindow, minWindow, maxWindow) ||
		!within(h.sessionWindow, minWindow, maxWindow) || !within(h.lanes, 1, maxLanes) {
		return hello{}, fmt.Errorf("%w: hello % x", errMalformed, b[:helloLen])
	}
	return h, nil
}

// A binding begins a bulk connection.
//
//	 0         8         16       48
//	+---------+---------+--------+
//	| magic   | session | token  |
//	+---------+---------+--------+
//
// The magic cannot begin a TLS connection.
type binding struct {
	session uint64
	token   [tokenLen]byte
}

const (
	magic      = "fabricTB"
	bindingLen = len(magic) + 8 + tokenLen
)

// PlaintextFirst is the first byte of a bulk connection without TLS, which no
// TLS connection begins with.
const PlaintextFirst = 'f'

func (b binding) appendTo(p []byte) []byte {
	p = append(p, magic...)
	p = binary.BigEndian.AppendUint64(p, b.session)
	return append(p, b.token[:]...)
}

// parseBinding parses p, which has bindingLen bytes.
func parseBinding(p []byte) (b binding, err error) {
	if string(p[:len(magic)]) != magic {
		return b, fmt.Errorf("%w: binding begins with %q", errMalformed, p[:len(magic)])
	}
	b.session = binary.BigEndian.Uint64(p[len(magic):])
	copy(b.token[:], p[len(magic)+8:])
	return b, nil
}
