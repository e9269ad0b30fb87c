//go:build !linux

package gateway

import "net"

// openToAll calls listen. The umask decides who may write to the socket file: it is that of
// the process, and other goroutines make files meanwhile.
func openToAll(listen func() (net.Listener, error)) (net.Listener, error) { return listen() }
