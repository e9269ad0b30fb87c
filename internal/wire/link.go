package wire

import "github.com/fabricd/fabricd/fabric/addr"

// This file holds the frames of the control stream and the first frames of streams.

const (
	flagAnswer  uint8 = 1 << 0 // Hello
	flagService uint8 = 1 << 0 // Connect
	flagBeside  uint8 = 1 << 1 // Hello
	flagLast    uint8 = 1 << 0 // Write, ReadData
	flagOrdered uint8 = 1 << 1 // Write
	flagPosted  uint8 = 1 << 0 // Atomic
	flagReset   uint8 = 1 << 0 // Close
)

// AppendTo appends the encoded frame to b.
//
//	 0          2          4       20    28    34        50         58  64
//	+----------+----------+-------+-----+-----+---------+----------+----+
//	| ver. min | ver. max |cluster| term| from|from UUID|from epoch| to |
//	+----------+----------+-------+-----+-----+---------+----------+----+
//
// An incarnation (from, to) is a node of two bytes and a generation of four.
func (f Hello) AppendTo(b []byte) []byte {
	start := len(b)
	b = appendFrame(b, TypeHello, flag(f.Answer, flagAnswer)|flag(f.Beside, flagBeside), u16(f.VersionMin), u16(f.VersionMax))
	b = append(b, f.Cluster[:]...)
	b = order.AppendUint64(b, f.Term)
	b = appendIncarnation(b, f.From)
	b = append(b, f.FromUUID[:]...)
	b = order.AppendUint64(b, f.FromEpoch)
	b = appendIncarnation(b, f.To)
	return end(b, start)
}

// ParseHello parses a Hello that fills body exactly.
func ParseHello(flags uint8, body []byte) (Hello, error) {
	d := decode(body, flags, flagAnswer|flagBeside)
	f := Hello{
		VersionMin: d.U16(),
		VersionMax: d.U16(),
		Cluster:    d.UUID(),
		Term:       d.U64(),
		From:       d.Incarnation(),
		FromUUID:   d.UUID(),
		FromEpoch:  d.U64(),
		To:         d.Incarnation(),
		Answer:     flags&flagAnswer != 0,
		Beside:     flags&flagBeside != 0,
	}
	d.Require(f.VersionMin <= f.VersionMax)
	d.Require(!f.Answer || !f.Beside)
	d.Require(!f.Answer || f.VersionMin == f.VersionMax)
	return result(&d, f)
}

// AppendTo appends the encoded frame, without its payload, to b.
//
//	 0        4
//	+--------+
//	| length |
//	+--------+
func (f Lease) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeLease, 0, u32(f.Length))
}

// ParseLease parses a Lease that fills body exactly.
func ParseLease(flags uint8, body []byte) (Lease, error) {
	d := decode(body, flags, 0)
	f := Lease{Length: d.U32()}
	d.Require(f.Length <= MaxLease)
	return result(&d, f)
}

// AppendTo appends the encoded frame to b. A longer Reason is cut.
//
//	 0      2          4          6        8
//	+------+----------+----------+--------+------------+
//	| code | ver. min | ver. max | length | reason ... |
//	+------+----------+----------+--------+------------+
func (f HelloRefuse) AppendTo(b []byte) []byte {
	return appendTextFrame(b, TypeHelloRefuse, 0, f.Reason, u16(uint16(f.Code)), u16(f.VersionMin), u16(f.VersionMax))
}

// ParseHelloRefuse parses a HelloRefuse that fills body exactly.
func ParseHelloRefuse(flags uint8, body []byte) (HelloRefuse, error) {
	d := decode(body, flags, 0)
	f := HelloRefuse{
		Code:       d.failure(),
		VersionMin: d.U16(),
		VersionMax: d.U16(),
		Reason:     d.reason(),
	}
	d.Require(f.VersionMin <= f.VersionMax)
	return result(&d, f)
}

// AppendTo appends the encoded frame to b.
//
//	 0      8      10   12      20    24       25
//	+------+------+----+-------+-----+--------+-------------+
//	| conn | from | to | limit | uid | length | service ... |
//	+------+------+----+-------+-----+--------+-------------+
//
// Length and service are present only with a service.
func (f Connect) AppendTo(b []byte) []byte {
	start := len(b)
	b = appendFrame(b, TypeConnect, flag(f.Service != "", flagService),
		u64(uint64(f.Conn)), u16(uint16(f.From)), u16(uint16(f.To)), u64(f.Limit), u32(f.UID))
	if f.Service != "" {
		b = append(b, uint8(len(f.Service)))
		b = append(b, f.Service...)
	}
	return end(b, start)
}

// ParseConnect parses a Connect that fills body exactly. No port is 0, and the service's
// name is valid.
func ParseConnect(flags uint8, body []byte) (Connect, error) {
	d := decode(body, flags, flagService)
	f := Connect{
		Conn:  d.connID(),
		From:  d.port(),
		To:    d.port(),
		Limit: d.U64(),
		UID:   d.U32(),
	}
	if flags&flagService != 0 {
		f.Service = string(d.Take(int(d.U8())))
		d.Require(addr.ValidService(f.Service))
	}
	d.Require(f.From != 0 && f.To != 0)
	return result(&d, f)
}

// AppendTo appends the encoded frame to b.
//
//	 0      8      16      24
//	+------+------+-------+
//	| peer | conn | limit |
//	+------+------+-------+
func (f Accept) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeAccept, 0, u64(uint64(f.Peer)), u64(uint64(f.Conn)), u64(f.Limit))
}

// ParseAccept parses an Accept that fills body exactly.
func ParseAccept(flags uint8, body []byte) (Accept, error) {
	d := decode(body, flags, 0)
	return result(&d, Accept{Peer: d.connID(), Conn: d.connID(), Limit: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0      8
//	+------+
//	| peer |
//	+------+
func (f Stream) AppendTo(b []byte) []byte { return appendFrame(b, TypeStream, 0, u64(uint64(f.Peer))) }

// ParseStream parses a Stream that fills body exactly.
func ParseStream(flags uint8, body []byte) (Stream, error) {
	d := decode(body, flags, 0)
	return result(&d, Stream{Peer: d.connID()})
}

// AppendTo appends the encoded frame to b.
//
//	 0      8      10
//	+------+------+
//	| peer | code |
//	+------+------+
func (f Refuse) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeRefuse, 0, u64(uint64(f.Peer)), u16(uint16(f.Code)))
}

// ParseRefuse parses a Refuse that fills body exactly.
func ParseRefuse(flags uint8, body []byte) (Refuse, error) {
	d := decode(body, flags, 0)
	return result(&d, Refuse{Peer: d.connID(), Code: d.failure()})
}

// AppendTo appends the encoded frame to b.
//
//	 0       8      14   20
//	+-------+------+----+
//	| nonce | from | to |
//	+-------+------+----+
func (f Probe) AppendTo(b []byte) []byte { return appendProbe(b, TypeProbe, f) }

// ParseProbe parses a Probe that fills body exactly.
func ParseProbe(flags uint8, body []byte) (Probe, error) {
	d := decode(body, flags, 0)
	return result(&d, Probe{Nonce: d.U64(), From: d.Incarnation(), To: d.Incarnation()})
}

// AppendTo appends the encoded frame to b; it is laid out like a Probe.
func (f ProbeAck) AppendTo(b []byte) []byte { return appendProbe(b, TypeProbeAck, Probe(f)) }

func appendProbe(b []byte, t Type, f Probe) []byte {
	start := len(b)
	b = appendFrame(b, t, 0, u64(f.Nonce))
	b = appendIncarnation(b, f.From)
	b = appendIncarnation(b, f.To)
	return end(b, start)
}

// AppendTo appends the encoded frame to b. A longer Reason is cut.
//
//	 0        2
//	+--------+------------+
//	| length | reason ... |
//	+--------+------------+
func (f Bye) AppendTo(b []byte) []byte { return appendTextFrame(b, TypeBye, 0, f.Reason) }

// ParseBye parses a Bye that fills body exactly.
func ParseBye(flags uint8, body []byte) (Bye, error) {
	d := decode(body, flags, 0)
	return result(&d, Bye{Reason: d.reason()})
}

// AppendTo appends the encoded frame, which has no body, to b.
func (f ByeAck) AppendTo(b []byte) []byte { return begin(b, TypeByeAck, 0) }

// HeartbeatLen is the length of a Heartbeat and of a HeartbeatAck in bytes,
// header included. A datagram that carries one carries nothing else.
const HeartbeatLen = 64

const heartbeatReserved = HeartbeatLen - HeaderLen - 8 - 8 - 6 - 6

// AppendTo appends the encoded datagram, HeartbeatLen bytes, to b.
//
//	 0     8      16     22   28             56
//	+-----+------+------+----+--------------+
//	| seq | sent | from | to | reserved, 0  |
//	+-----+------+------+----+--------------+
func (f Heartbeat) AppendTo(b []byte) []byte { return appendHeartbeat(b, TypeHeartbeat, f) }

// ParseHeartbeat parses a whole datagram, header included, which is exactly
// one Heartbeat.
func ParseHeartbeat(datagram []byte) (Heartbeat, error) {
	return parseHeartbeat(TypeHeartbeat, datagram)
}

// AppendTo appends the encoded datagram to b; it is laid out like a Heartbeat.
func (f HeartbeatAck) AppendTo(b []byte) []byte {
	return appendHeartbeat(b, TypeHeartbeatAck, Heartbeat(f))
}

// ParseHeartbeatAck parses a whole datagram, header included, which is exactly
// one HeartbeatAck.
func ParseHeartbeatAck(datagram []byte) (HeartbeatAck, error) {
	f, err := parseHeartbeat(TypeHeartbeatAck, datagram)
	return HeartbeatAck(f), err
}

func appendHeartbeat(b []byte, t Type, f Heartbeat) []byte {
	start := len(b)
	b = appendFrame(b, t, 0, u64(f.Seq), u64(f.Sent))
	b = appendIncarnation(b, f.From)
	b = appendIncarnation(b, f.To)
	b = append(b, make([]byte, heartbeatReserved)...)
	return end(b, start)
}

func parseHeartbeat(t Type, datagram []byte) (Heartbeat, error) {
	h, err := ParseHeader(datagram)
	if err != nil {
		return Heartbeat{}, err
	}
	if h.Type != t || len(datagram) != HeartbeatLen {
		return Heartbeat{}, ErrMalformed
	}
	d := decode(datagram[HeaderLen:], h.Flags, 0)
	f := Heartbeat{Seq: d.U64(), Sent: d.U64(), From: d.Incarnation(), To: d.Incarnation()}
	d.Reserved(heartbeatReserved)
	return result(&d, f)
}
