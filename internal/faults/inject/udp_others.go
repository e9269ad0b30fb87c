//go:build !linux

package inject

import "net"

// fastConn has nothing to add where QUIC does not read in batches.
func fastConn(c *packetConn) net.PacketConn { return c }
