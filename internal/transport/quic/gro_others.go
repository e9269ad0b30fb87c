//go:build !linux || !(amd64 || arm64)

package quic

import "net"

// ReceiveOffload returns c: only Linux puts packets together.
func ReceiveOffload(c net.PacketConn) net.PacketConn { return c }
