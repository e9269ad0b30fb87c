//go:build !linux || !(amd64 || arm64)

package quic

import "net"

// ReceiveOffload returns c: only Linux coalesces packets.
func ReceiveOffload(c net.PacketConn) net.PacketConn { return c }
