// Package wire encodes and decodes the frames that two fabricds exchange over a link: frames on
// streams and heartbeats in datagrams. It does no I/O. SPEC.md in this folder is the specification;
// deployed peers depend on the golden vectors in testdata.
package wire

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// The protocol versions that this implementation supports.
const (
	VersionMin uint16 = 2
	VersionMax uint16 = 7
)

// Limits of the format.
const (
	HeaderLen  = 8       // bytes before every frame's body
	MaxBody    = 1 << 12 // a body, in bytes, without the payload that Write and ReadData announce
	MaxPayload = 1 << 18 // payload bytes after one Write or ReadData
	MaxReason  = 256     // bytes of a reason's text
	MaxLease   = 1 << 15 // bytes of a signed lease; membership's bound
)

// A Type is a frame's first byte. Numbers are never reused.
type Type uint8

// Every frame is header and body; Lease, Write and ReadData are followed by payload.
//
//	 0      1       2          4            8
//	+------+-------+----------+------------+---------+-------------+
//	| type | flags | reserved | body length| body ...| payload ... |
//	+------+-------+----------+------------+---------+-------------+
const (
	// The first frame of a stream determines its purpose.
	TypeHello   Type = 1 // the link's control stream; see Hello
	TypeConnect Type = 2 // a connection's operations stream, connector's side
	TypeAccept  Type = 3 // a connection's operations stream, acceptor's side
	TypeStream  Type = 4 // a connection's message stream: raw bytes follow the frame

	// Control stream.
	TypeHelloRefuse Type = 16
	TypeRefuse      Type = 17
	TypeProbe       Type = 18
	TypeProbeAck    Type = 19
	TypeBye         Type = 20
	TypeByeAck      Type = 21
	TypeLease       Type = 22

	// Operations stream.
	TypeCredit       Type = 32
	TypeClose        Type = 33
	TypeRegister     Type = 34
	TypeRegistered   Type = 35
	TypeUnregister   Type = 36
	TypeUnregistered Type = 37
	TypeEnd          Type = 38
	TypePath         Type = 40
	TypeNoPath       Type = 41
	TypeRMAPath      Type = 44
	TypeNoRMAPath    Type = 45
	TypeRMAPassed    Type = 46
	TypeWrite        Type = 48
	TypeRead         Type = 49
	TypeReadData     Type = 50
	TypeDone         Type = 51
	TypeFail         Type = 52
	TypeSignal       Type = 53
	TypeAtomic       Type = 54
	TypeResult       Type = 55
	TypeMark         Type = 64
	TypeMarked       Type = 65
	TypeWait         Type = 66
	TypeWaited       Type = 67
	TypePeerSignal   Type = 68
	TypePeerSignaled Type = 69

	// Datagrams.
	TypeHeartbeat    Type = 96
	TypeHeartbeatAck Type = 97
)

// A ConnID names one connection on a link, chosen by the side that receives with it; it is never
// used twice on a link.
type ConnID uint64

// Hello opens a link, on the first stream of each direction. The answer is a Hello or a HelloRefuse.
// Both fence the two incarnations that the link joins.
type Hello struct {
	VersionMin, VersionMax uint16 // in an answer both are the chosen version
	Cluster                addr.UUID
	Term                   uint64 // highest host term the sender has accepted
	From                   addr.Incarnation
	FromUUID               addr.UUID
	FromEpoch              uint64
	To                     addr.Incarnation
	Answer                 bool // flag bit 0 of the header
	Beside                 bool // flag bit 1: the dialer keeps its existing link
}

// Lease follows the Hello of either side. Length bytes follow the frame: the signed lease of the
// incarnation that sent the Hello. They are payload because a lease may be larger than a body, and
// not part of Hello because the layout of Hello is the same in every version.
type Lease struct {
	Length uint32 // ≤ MaxLease; 0: the sender has none
}

// HelloRefuse refuses a link, with the refusing side's versions.
type HelloRefuse struct {
	Code                   status.Code
	VersionMin, VersionMax uint16
	Reason                 string // at most MaxReason bytes, UTF-8
}

// Connect asks for a connection. Its stream becomes the operations stream from the
// connector to the acceptor. A connector that gives up cancels or ends the stream.
type Connect struct {
	Conn     ConnID // the connector's
	From, To addr.Port
	Limit    uint64 // message bytes that the acceptor may send so far
	UID      uint32 // the application's user, vouched for by the connector's node; 2^32-1: unknown
	// Service is the name that the endpoint at To has to serve; empty: any or none. Versions before
	// 5 do not know it. A valid service's name.
	Service string
}

// Accept grants a connection. Its stream becomes the operations stream from the
// acceptor to the connector.
type Accept struct {
	Peer  ConnID // the connector's, from Connect
	Conn  ConnID // the acceptor's
	Limit uint64 // message bytes that the connector may send so far
}

// Stream opens the message stream of one direction, before its first byte.
type Stream struct {
	Peer ConnID // the receiver's
}

// Refuse answers a Connect on the control stream.
type Refuse struct {
	Peer ConnID
	Code status.Code
}

// Probe and ProbeAck are the fresh round trip that both ends need after a silence. They name both
// incarnations.
type Probe struct {
	Nonce    uint64
	From, To addr.Incarnation
}

// ProbeAck answers a Probe with its nonce.
type ProbeAck struct {
	Nonce    uint64
	From, To addr.Incarnation
}

// Bye announces that the sender opens nothing more and closes its connections; ByeAck that the peer
// has received every frame sent before it.
type Bye struct{ Reason string }

// ByeAck answers Bye.
type ByeAck struct{}

// Credit raises the number of message bytes that the peer may send on the
// connection, counted from its beginning.
type Credit struct{ Limit uint64 }

// End ends the sender's direction of the message stream, but not the connection. Sent is the total
// number of message bytes. End is sent at most once.
type End struct{ Sent uint64 }

// Close ends the connection. Sent is the total number of message bytes. With Reset, which versions
// before 3 do not know, the sender's application has not closed it: the stream is cut off after
// those bytes.
type Close struct {
	Sent  uint64
	Reset bool   // flag bit 0
	Cause string // of a reset, for operators; at most MaxReason bytes, UTF-8
}

// Register announces a window; Registered answers in order.
type Register struct {
	Offset uint64
	Length uint64
	Prot   uint8
}

// Registered answers a Register.
type Registered struct{ Offset uint64 }

// Unregister withdraws a window; after Unregistered the sender of Unregister
// gets no more operations on it.
type Unregister struct{ Offset, Length uint64 }

// Unregistered answers an Unregister.
type Unregistered struct{ Offset uint64 }

// Write stores Length payload bytes, which follow the frame, at Offset of the
// receiver's space. An operation of several Writes has Last on the last one.
type Write struct {
	Op      uint64 // the operation's number, counted per sender from 1
	Offset  uint64
	Length  uint32 // ≤ MaxPayload
	Last    bool   // flag bit 0
	Ordered bool   // flag bit 1: SCIF_RMA_ORDERED
}

// Read asks for Length bytes at Offset of the receiver's space.
type Read struct {
	Op     uint64
	Offset uint64
	Length uint64
}

// ReadData carries Length bytes of a Read's answer, in order; they follow the
// frame. Last ends the operation.
type ReadData struct {
	Op     uint64
	Length uint32
	Last   bool // flag bit 0
}

// Done reports that every operation up to Op has been applied.
type Done struct{ Op uint64 }

// Fail reports that operation Op was refused.
type Fail struct {
	Op   uint64
	Code status.Code
}

// Signal stores Value at Offset of the receiver's space. It is an operation, and ordered as one.
type Signal struct {
	Op     uint64
	Offset uint64
	Value  uint64
}

// Atomic is an rma.Atomic on the receiver's space; Result answers it. A posted
// one has no result: Done covers it as it covers a Write.
type Atomic struct {
	Op      uint64
	Kind    uint8
	Width   uint8
	Offset  uint64
	Operand uint64
	Compare uint64
	Posted  bool // flag bit 0
}

// Result is the old value of an Atomic's word.
type Result struct {
	Op    uint64
	Value uint64
}

// Mark asks how many operations the receiver has begun; Marked answers.
type Mark struct{ Request uint64 }

// Marked answers a Mark.
type Marked struct{ Request, Seq uint64 }

// Wait asks for a Waited once the receiver's operations up to Seq have completed.
type Wait struct{ Request, Seq uint64 }

// Waited answers a Wait.
type Waited struct {
	Request uint64
	Code    status.Code
}

// PeerSignal is a fence signal over the receiver's operations
// (SCIF_FENCE_INIT_PEER). Offsets and values are seen from the receiver: Local
// is in the receiver's space.
type PeerSignal struct {
	Request      uint64
	Where        uint8 // fence.Where, roles already swapped
	LocalOffset  uint64
	LocalValue   uint64
	RemoteOffset uint64
	RemoteValue  uint64
}

// PeerSignaled answers a PeerSignal once it is accepted or refused.
type PeerSignaled struct {
	Request uint64
	Code    status.Code
}

// Heartbeat is sent in a datagram; it is 64 bytes long, so that a peer which
// has lost its state answers with a stateless reset. HeartbeatAck echoes Seq
// and Sent.
type Heartbeat struct {
	Seq      uint64
	Sent     uint64 // the sender's clock, any unit; echoed
	From, To addr.Incarnation
}

// HeartbeatAck answers a Heartbeat.
type HeartbeatAck struct {
	Seq      uint64
	Sent     uint64
	From, To addr.Incarnation
}
