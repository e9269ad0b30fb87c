package path

import (
	"encoding/binary"
	"errors"
)

// An RMA path carries the operations of one end of a connection to the node of the
// other end, which applies them to the windows there, and the answers back. Behind the
// bindings and the starts of a path, which are 0, there are requests one way and answers
// the other. Every integer is in big-endian order.

// An RMAKind is the operation of a request, or the kind of an answer.
type RMAKind uint8

const (
	RMANop    RMAKind = 1 // with RMAWantAnswer: asks for the result of Length requests from number Offset on
	RMAWrite  RMAKind = 2 // Length bytes follow, which go to Offset
	RMARead   RMAKind = 3 // Length bytes at Offset are asked for
	RMAAtomic RMAKind = 4 // rma.Atomic, Length its operand
	RMASignal RMAKind = 5 // the word at Offset becomes Length, behind all before

	RMADone RMAKind = 16 // the request has been applied, or refused with Code; Value is an atomic's old word
	RMAData RMAKind = 17 // Value bytes that were read follow
)

// The flags of a request.
const (
	RMAWantAnswer = 1 // an answer is wanted; a read always has one
	RMAOrdered    = 2 // of a write: the last line last
	RMABehind     = 4 // of a signal: it is refused if the request before it was
)

// RMALast is the flag of an answer behind which no other one comes to its request.
const RMALast = 1

// The lengths of a request and of an answer, in bytes, without the data behind them.
const (
	RMARequestLen = 40
	RMAAnswerLen  = 32
)

// An RMARequest is one operation. They are numbered from 1, without a gap.
type RMARequest struct {
	Kind    RMAKind
	Flags   uint8 // RMAWantAnswer, RMAOrdered, RMABehind
	Op      uint8 // of an atomic: rma.AtomicOp, else 0
	Width   uint8 // of an atomic: of its word, in bytes, else 0
	Number  uint64
	Offset  uint64 // in the windows of the node that applies it
	Length  uint64 // bytes; an atomic's operand, a signal's value
	Compare uint64 // of an atomic, else 0
}

// WantsAnswer reports whether the request has an answer.
func (r *RMARequest) WantsAnswer() bool { return r.Flags&RMAWantAnswer != 0 || r.Kind == RMARead }

// An RMAAnswer is the answer to a request, in the order of the requests.
type RMAAnswer struct {
	Kind    RMAKind
	Flags   uint8  // RMALast
	Code    uint16 // of the request: 0, or why it was refused
	BadCode uint16 // why the request Bad has failed
	Number  uint64 // of the request: those before it have ended too
	Value   uint64 // an atomic's old word; bytes of data
	Bad     uint64 // the first request of the path whose memory could not be used, 0: none
}

// ErrRMA reports bytes that break the protocol.
var ErrRMA = errors.New("malformed on the RMA path")

// AppendTo appends the encoded request to b.
//
//	 0      1       2    3       4   8        16       24       32
//	+------+-------+----+-------+---+--------+--------+--------+---------+
//	| kind | flags | op | width | 0 | number | offset | length | compare |
//	+------+-------+----+-------+---+--------+--------+--------+---------+
func (r *RMARequest) AppendTo(b []byte) []byte {
	b = append(b, byte(r.Kind), r.Flags, r.Op, r.Width, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, r.Number)
	b = binary.BigEndian.AppendUint64(b, r.Offset)
	b = binary.BigEndian.AppendUint64(b, r.Length)
	return binary.BigEndian.AppendUint64(b, r.Compare)
}

// ParseRMARequest parses a request. Its offset and length may be any numbers, and so may
// an atomic's operation.
func ParseRMARequest(b *[RMARequestLen]byte) (RMARequest, error) {
	r := RMARequest{
		Kind: RMAKind(b[0]), Flags: b[1], Op: b[2], Width: b[3],
		Number: binary.BigEndian.Uint64(b[8:]), Offset: binary.BigEndian.Uint64(b[16:]),
		Length: binary.BigEndian.Uint64(b[24:]), Compare: binary.BigEndian.Uint64(b[32:]),
	}
	flags := uint8(RMAWantAnswer)
	switch r.Kind {
	case RMAWrite:
		flags |= RMAOrdered
	case RMASignal:
		flags |= RMABehind
	}
	atomic := r.Kind == RMAAtomic
	switch {
	case r.Kind < RMANop || r.Kind > RMASignal, r.Flags&^flags != 0, binary.BigEndian.Uint32(b[4:]) != 0,
		!atomic && (r.Op != 0 || r.Width != 0 || r.Compare != 0),
		r.Kind == RMANop && (r.Offset == 0) != (r.Length == 0):
		return RMARequest{}, ErrRMA
	}
	return r, nil
}

// AppendTo appends the encoded answer to b.
//
//	 0      1       2      4          6   8        16      24    32
//	+------+-------+------+----------+---+--------+-------+-----+
//	| kind | flags | code | bad code | 0 | number | value | bad |
//	+------+-------+------+----------+---+--------+-------+-----+
func (a *RMAAnswer) AppendTo(b []byte) []byte {
	b = append(b, byte(a.Kind), a.Flags)
	b = binary.BigEndian.AppendUint16(b, a.Code)
	b = binary.BigEndian.AppendUint16(b, a.BadCode)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint64(b, a.Number)
	b = binary.BigEndian.AppendUint64(b, a.Value)
	return binary.BigEndian.AppendUint64(b, a.Bad)
}

// ParseRMAAnswer parses an answer.
func ParseRMAAnswer(b *[RMAAnswerLen]byte) (RMAAnswer, error) {
	a := RMAAnswer{
		Kind: RMAKind(b[0]), Flags: b[1], Code: binary.BigEndian.Uint16(b[2:]), BadCode: binary.BigEndian.Uint16(b[4:]),
		Number: binary.BigEndian.Uint64(b[8:]), Value: binary.BigEndian.Uint64(b[16:]), Bad: binary.BigEndian.Uint64(b[24:]),
	}
	switch {
	case a.Flags&^RMALast != 0, b[6] != 0, b[7] != 0,
		a.Kind != RMADone && a.Kind != RMAData,
		a.Kind == RMADone && a.Flags != RMALast,
		a.Kind == RMAData && (a.Code != 0 || a.Value == 0),
		(a.Bad == 0) != (a.BadCode == 0), a.Bad > a.Number:
		return RMAAnswer{}, ErrRMA
	}
	return a, nil
}
