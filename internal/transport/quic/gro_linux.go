//go:build amd64 || arm64

package quic

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
)

const (
	udpGRO = 104 // of linux/udp.h: socket option and control message
	// largestRead is the largest batch of the kernel, in bytes.
	largestRead = 64 << 10
	// oobLen is the space for the control messages of one read, in bytes.
	oobLen = 128
)

// A groConn lets the kernel coalesce packets of one sender, size and header (UDP_GRO), so that a
// call reads up to 64 KiB of them, and splits them. quic-go uses a connection's ReadBatch if there
// is one. One goroutine reads.
type groConn struct {
	*net.UDPConn

	buf  []byte
	oob  [oobLen]byte
	rest []byte // of buf, not yet returned
	size int    // of each packet in rest but the last
	oobn int    // bytes of oob, which belong to all of rest
	from *net.UDPAddr
	last netip.AddrPort // from
}

// ReceiveOffload returns c, or a wrapper that reads larger batches if the kernel supports that. New
// applies it to a socket; code that wraps a socket for a Provider applies it to the socket itself.
// The result owns c.
func ReceiveOffload(c net.PacketConn) net.PacketConn {
	udp, ok := c.(*net.UDPConn)
	if !ok {
		return c
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return c
	}
	refused := error(nil)
	err = raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpGRO, 1)
	})
	if err != nil || refused != nil {
		return c
	}
	return &groConn{UDPConn: udp, buf: make([]byte, largestRead)}
}

// ReadBatch fills ms with packets, at least one, and returns their number. They come from one read
// of the socket.
func (c *groConn) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	for len(c.rest) == 0 {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(c.buf, c.oob[:])
		if err != nil {
			return 0, err
		}
		if from != c.last || c.from == nil {
			c.last, c.from = from, net.UDPAddrFromAddrPort(from)
		}
		c.rest, c.oobn, c.size = c.buf[:n], oobn, segmentSize(c.oob[:oobn], n)
	}
	for i := range ms {
		if len(c.rest) == 0 {
			return i, nil
		}
		m, k := &ms[i], min(c.size, len(c.rest))
		m.N, m.NN = copy(m.Buffers[0], c.rest[:k]), copy(m.OOB, c.oob[:c.oobn])
		m.Addr, m.Flags = c.from, 0
		c.rest = c.rest[k:]
	}
	return len(ms), nil
}

// segmentSize returns the length of the packets in n bytes according to a control message; n
// without one.
func segmentSize(oob []byte, n int) int {
	const alignment = 8
	for len(oob) >= syscall.SizeofCmsghdr {
		length := int(binary.NativeEndian.Uint64(oob))
		level, kind := binary.NativeEndian.Uint32(oob[8:]), binary.NativeEndian.Uint32(oob[12:])
		if length < syscall.SizeofCmsghdr || length > len(oob) {
			break
		}
		body := oob[syscall.SizeofCmsghdr:length]
		if level == syscall.IPPROTO_UDP && kind == udpGRO && len(body) >= 4 {
			if size := int(binary.NativeEndian.Uint32(body)); size > 0 && size < n {
				return size
			}
			break
		}
		oob = oob[min((length+alignment-1)&^(alignment-1), len(oob)):]
	}
	return n
}
