// Package segment bounds the segments of TCP connections, so that they pass a black hole of
// the path MTU, where full ones vanish without an error: a tunnel, for example, whose ICMP
// messages a filter drops.
package segment

import (
	"net"
	"syscall"
)

// Small is a bound in bytes that every way has room for: with the headers of either IP
// it fits the packets of 1280 bytes that IPv6 carries everywhere (RFC 8200, section 5).
const Small = 1220

// Dialer returns a dialer of connections with small segments in both directions: the
// answering host obeys the MSS in the SYN. For little traffic, that costs nothing.
func Dialer() *net.Dialer {
	d := &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		Bound(raw, Small)
		return nil
	}}
	d.SetMultipathTCP(false) // its segments cannot be bounded everywhere
	return d
}
