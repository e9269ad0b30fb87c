//go:build !linux

package tcp

import (
	"net"
	"syscall"
	"time"
)

// tune leaves the kernel's defaults.
func tune(net.Conn, time.Duration, bool) {}

// infoOf knows nothing.
func infoOf(net.Conn) (way, bool) { return way{}, false }

// rawConn returns nil: a goroutine writes.
func rawConn(net.Conn) syscall.RawConn { return nil }

// writeNow is never called: there is no rawConn.
func writeNow(uintptr, []byte) (int, error) { return 0, syscall.ENOTSUP }

// readNow and lookNow are never called, as writeNow.
func readNow(uintptr, []byte) (int, error)      { return 0, syscall.ENOTSUP }
func lookNow(uintptr, []byte, int) (int, error) { return 0, syscall.ENOTSUP }

// A pollSet is never made, as writeNow is never called.
type pollSet struct{}

func newPollSet() *pollSet                        { return nil }
func (*pollSet) add(uintptr, uint64) bool         { return false }
func (*pollSet) readable(*[mostRoused]uint64) int { return 0 }
