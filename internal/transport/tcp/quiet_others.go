//go:build !linux

package tcp

import (
	"net"
	"syscall"
)

func quiet(c net.Conn) net.Conn { return c }

func sightOf(raw syscall.RawConn) syscall.RawConn { return raw }
