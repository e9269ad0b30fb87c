package quic

import "syscall"

// socketBuffers returns the usable sizes of the receive and send buffers.
func socketBuffers(raw syscall.RawConn) (recv, send int, err error) {
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		if recv, sockErr = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF); sockErr == nil {
			send, sockErr = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF)
		}
	})
	if err == nil {
		err = sockErr
	}
	return recv, send, err
}
