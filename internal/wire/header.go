package wire

import (
	"errors"
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
)

// ErrUnknownType reports a frame of a type that this version does not know.
// Lengths alone do not make such a frame safe to skip, since payload may
// follow it: the receiver closes the session with transport.CodeProtocol.
var ErrUnknownType = errors.New("unknown frame type")

// A Header begins every frame.
type Header struct {
	Type  Type
	Flags uint8
	Len   uint32 // of the body, in bytes
}

// A format is the set of valid headers of a type's frames.
type format struct {
	name     string
	flags    uint8  // that may be set
	min, max uint32 // length of the body
}

func fixed(name string, flags uint8, n uint32) format { return format{name, flags, n, n} }

// formats describes every known type; the name of an unknown one is empty.
var formats = [256]format{
	TypeHello:        fixed("Hello", flagAnswer|flagBeside, 64),
	TypeConnect:      {"Connect", flagService, 24, 24 + 1 + addr.MaxService},
	TypeAccept:       fixed("Accept", 0, 24),
	TypeStream:       fixed("Stream", 0, 8),
	TypeHelloRefuse:  {"HelloRefuse", 0, 8, 8 + MaxReason},
	TypeRefuse:       fixed("Refuse", 0, 10),
	TypeProbe:        fixed("Probe", 0, 20),
	TypeProbeAck:     fixed("ProbeAck", 0, 20),
	TypeBye:          {"Bye", 0, 2, 2 + MaxReason},
	TypeByeAck:       fixed("ByeAck", 0, 0),
	TypeLease:        fixed("Lease", 0, 4),
	TypeCredit:       fixed("Credit", 0, 8),
	TypeClose:        {"Close", flagReset, 8, 8 + 2 + MaxReason},
	TypeRegister:     fixed("Register", 0, 17),
	TypeRegistered:   fixed("Registered", 0, 8),
	TypeUnregister:   fixed("Unregister", 0, 16),
	TypeUnregistered: fixed("Unregistered", 0, 8),
	TypeEnd:          fixed("End", 0, 8),
	TypePath:         fixed("Path", flagPlaintext, 48),
	TypeNoPath:       {"NoPath", flagPassing, 2, 2 + MaxReason},
	TypeRMAPath:      fixed("RMAPath", flagPlaintext|flagApplies, 48),
	TypeNoRMAPath:    {"NoRMAPath", flagApplies | flagPassing, 2, 2 + MaxReason},
	TypeRMAPassed:    fixed("RMAPassed", 0, 8),
	TypeWrite:        fixed("Write", flagLast|flagOrdered, 20),
	TypeRead:         fixed("Read", 0, 24),
	TypeReadData:     fixed("ReadData", flagLast, 12),
	TypeDone:         fixed("Done", 0, 8),
	TypeFail:         fixed("Fail", 0, 10),
	TypeSignal:       fixed("Signal", 0, 24),
	TypeAtomic:       fixed("Atomic", flagPosted, 34),
	TypeResult:       fixed("Result", 0, 16),
	TypeMark:         fixed("Mark", 0, 8),
	TypeMarked:       fixed("Marked", 0, 16),
	TypeWait:         fixed("Wait", 0, 16),
	TypeWaited:       fixed("Waited", 0, 10),
	TypePeerSignal:   fixed("PeerSignal", 0, 41),
	TypePeerSignaled: fixed("PeerSignaled", 0, 10),
	TypeHeartbeat:    fixed("Heartbeat", 0, HeartbeatLen-HeaderLen),
	TypeHeartbeatAck: fixed("HeartbeatAck", 0, HeartbeatLen-HeaderLen),
	TypeAsk:          fixed("Ask", 0, 14),
	TypeAnswer:       {"Answer", flagAllowed | flagListening, 14, 14 + MaxReason},
	TypeAskLinks:     fixed("AskLinks", 0, 8),
	TypeLinks:        {"Links", 0, 9, 9 + MaxLinkRows*linkRowLen},
}

// Known reports whether this version knows frames of type t.
func (t Type) Known() bool { return formats[t].name != "" }

// String returns the name of the type's Go struct, "Type(n)" for an unknown n.
func (t Type) String() string {
	if t.Known() {
		return formats[t].name
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// TypeOf returns the type of the frame that begins at b[0]. It reports false if b is empty; it does
// not check whether the type is known.
func TypeOf(b []byte) (Type, bool) {
	if len(b) == 0 {
		return 0, false
	}
	return Type(b[0]), true
}

// ParseHeader parses the header at the front of b. Its error is ErrUnknownType
// if this version does not know the type, else ErrMalformed if b is too short,
// a flag or reserved byte is set that must be zero, or a frame of that type
// cannot have a body of that length. Len is at most MaxBody.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, ErrMalformed
	}
	h := Header{Type: Type(b[0]), Flags: b[1], Len: order.Uint32(b[4:])}
	f := &formats[h.Type]
	switch {
	case f.name == "":
		return Header{}, fmt.Errorf("%w %d", ErrUnknownType, b[0])
	case order.Uint16(b[2:]) != 0 || h.Flags&^f.flags != 0:
		return Header{}, fmt.Errorf("%w: reserved bits of a %v", ErrMalformed, h.Type)
	case h.Len < f.min || h.Len > f.max:
		return Header{}, fmt.Errorf("%w: %v with a body of %d bytes", ErrMalformed, h.Type, h.Len)
	}
	return h, nil
}
