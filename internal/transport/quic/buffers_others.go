//go:build !linux

package quic

import (
	"errors"
	"syscall"
)

// socketBuffers is supported on Linux only.
func socketBuffers(syscall.RawConn) (recv, send int, err error) {
	return 0, 0, errors.ErrUnsupported
}
