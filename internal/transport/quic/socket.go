package quic

import (
	"errors"
	"net"
	"syscall"

	quicgo "github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
)

// newSocket wraps c for quic-go, and passes every written packet to t. The wrapper keeps the
// optional methods of c that make quic-go fast.
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
		batch = ipv4.NewPacketConn(c) // as quic-go does; it serves IPv6, too
	}
	t.write = func(p, oob []byte, to *net.UDPAddr) error {
		_, _, err := inner.WriteMsgUDP(p, oob, to)
		return err
	}
	return &fastSocket{s, inner, batch}
}

// A socket is a net.PacketConn that passes sent packets to the tails.
type socket struct {
	net.PacketConn
	tails *tails
}

// WriteTo implements net.PacketConn. A packet that could not be sent counts as lost.
func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	s.tails.sent(p, nil, to)
	n, err := s.PacketConn.WriteTo(p, to)
	if isLoss(err) {
		return len(p), nil
	}
	return n, err
}

// isLoss reports whether err, of a write, concerns only that packet: an interface that is down, a
// missing route or address, a firewall, a full queue. They are transient, but quic-go would end the
// connection for any of them. It handles a packet that is too large, and a segment offload that the
// device lacks (EIO), by itself.
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

// A fastSocket is a socket that reads packets in batches, and sends many with one call, for the
// kernel to split.
type fastSocket struct {
	socket
	inner quicgo.OOBCapablePacketConn
	batch batchReader
}

// SyscallConn, ReadMsgUDP and ReadBatch are those of the inner socket.
func (s *fastSocket) SyscallConn() (syscall.RawConn, error) { return s.inner.SyscallConn() }

// ReadMsgUDP is net.UDPConn's.
func (s *fastSocket) ReadMsgUDP(p, oob []byte) (n, oobn, flags int, from *net.UDPAddr, err error) {
	return s.inner.ReadMsgUDP(p, oob)
}

// ReadBatch is ipv4.PacketConn's.
func (s *fastSocket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	return s.batch.ReadBatch(ms, flags)
}

// WriteMsgUDP is net.UDPConn's, with the losses of WriteTo.
func (s *fastSocket) WriteMsgUDP(p, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	s.tails.sent(p, oob, to)
	n, oobn, err = s.inner.WriteMsgUDP(p, oob, to)
	if isLoss(err) {
		return len(p), len(oob), nil
	}
	return n, oobn, err
}
