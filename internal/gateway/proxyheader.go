package gateway

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/fabricd/fabricd/fabric"
)

// Values of a header of the PROXY protocol, version 2, that describe the caller. They are of
// the types that the protocol leaves to applications (PP2_TYPE_MIN_CUSTOM and up).
const (
	proxyNodeName    = 0xe0 // name of the caller's node
	proxyIncarnation = 0xe1 // its incarnation, "node.generation" in decimal
	proxyUser        = 0xe2 // user ID that the caller's node vouches for, in decimal; absent: not known
)

// proxySignature begins a header.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// callerHeader returns the header for a connection of a peer:
//
//	 0           12   13   14       16
//	+-----------+----+----+--------+------------------------------+
//	| signature | 21 | 00 | length | type, length of 2 B, value...|
//	+-----------+----+----+--------+------------------------------+
//
// A connection of the fabric has no addresses of IP: the family is unspecified, and a
// receiver keeps those of its own socket.
func callerHeader(p fabric.Peer) []byte {
	var values []byte
	add := func(kind byte, value string) {
		values = append(values, kind)
		values = binary.BigEndian.AppendUint16(values, uint16(len(value)))
		values = append(values, value...)
	}
	add(proxyNodeName, p.Name)
	add(proxyIncarnation, fmt.Sprintf("%d.%d", p.Node, p.Generation))
	if p.UID >= 0 {
		add(proxyUser, strconv.FormatInt(p.UID, 10))
	}
	header := append([]byte(proxySignature), 0x21, 0x00) // version 2, PROXY; unspecified
	header = binary.BigEndian.AppendUint16(header, uint16(len(values)))
	return append(header, values...)
}
