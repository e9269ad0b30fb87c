package quic

import (
	"errors"
	"net"
	"syscall"

	quicgo "github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
)

// newSocket returns c for quic-go, with everything written to it shown to t.
// What quic-go looks for to be fast, it finds if c has it.
func newSocket(c net.PacketConn, t *tails) net.PacketConn {
	s := socket{PacketConn: c, tails: t}
	t.write = func(p, _ []byte, to *net.UDPAddr) error {
		_, err := c.WriteTo(p, to)
		return err
	}
	inner, ok := c.(quicgo.OOBCapablePacketConn)
	if !ok {
		return &s
	}
	batch, ok := c.(batchReader)
	if !ok {
		if _, ok := c.(net.Conn); !ok {
			return &s
		}
		batch = ipv4.NewPacketConn(c) // as quic-go does it; it is for IPv6, too
	}
	t.write = func(p, oob []byte, to *net.UDPAddr) error {
		_, _, err := inner.WriteMsgUDP(p, oob, to)
		return err
	}
	return &fastSocket{s, inner, batch}
}

// A socket is a net.PacketConn whose packets out the tails see.
type socket struct {
	net.PacketConn
	tails *tails
}

// WriteTo is that of net.PacketConn. A packet that could not be sent is a lost one.
func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	s.tails.sent(p, nil, to)
	n, err := s.PacketConn.WriteTo(p, to)
	if isLoss(err) {
		return len(p), nil
	}
	return n, err
}

// isLoss reports whether err, of a write, concerns that packet only: an interface
// that is down, a missing route or address, a firewall, a full queue. quic-go would
// end the connection for any of them, and they pass. It handles a packet that is too
// large, and a segment offload that the device lacks (EIO), by itself.
func isLoss(err error) bool {
	no, ok := errors.AsType[syscall.Errno](err)
	return ok && no != syscall.EMSGSIZE && no != syscall.EIO && no != syscall.EBADF
}

// SetReadBuffer and SetWriteBuffer set the kernel's buffers, if there are any.
func (s *socket) SetReadBuffer(n int) error {
	if b, ok := s.PacketConn.(interface{ SetReadBuffer(int) error }); ok {
		return b.SetReadBuffer(n)
	}
	return nil
}

// SetWriteBuffer is like SetReadBuffer.
func (s *socket) SetWriteBuffer(n int) error {
	if b, ok := s.PacketConn.(interface{ SetWriteBuffer(int) error }); ok {
		return b.SetWriteBuffer(n)
	}
	return nil
}

// A batchReader reads several packets in one call.
type batchReader interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
}

// A fastSocket is a socket that reads packets in batches, and hands over many
// in one call that the kernel takes apart.
type fastSocket struct {
	socket
	inner quicgo.OOBCapablePacketConn
	batch batchReader
}

// SyscallConn, ReadMsgUDP and ReadBatch are those of the socket below.
func (s *fastSocket) SyscallConn() (syscall.RawConn, error) { return s.inner.SyscallConn() }

// ReadMsgUDP is that of net.UDPConn.
func (s *fastSocket) ReadMsgUDP(p, oob []byte) (n, oobn, flags int, from *net.UDPAddr, err error) {
	return s.inner.ReadMsgUDP(p, oob)
}

// ReadBatch is that of ipv4.PacketConn.
func (s *fastSocket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	return s.batch.ReadBatch(ms, flags)
}

// WriteMsgUDP is that of net.UDPConn, with the losses of WriteTo.
func (s *fastSocket) WriteMsgUDP(p, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	s.tails.sent(p, oob, to)
	n, oobn, err = s.inner.WriteMsgUDP(p, oob, to)
	if isLoss(err) {
		return len(p), len(oob), nil
	}
	return n, oobn, err
}
