package inject

import (
	"encoding/binary"
	"net"
	"syscall"

	"golang.org/x/net/ipv4"

	"github.com/fabricd/fabricd/internal/faults"
)

// A udpConn is a packetConn on a UDP socket of the kernel. It has the methods
// for which QUIC looks to read packets in batches, and to hand over many in one
// call that the kernel takes apart.
type udpConn struct {
	*packetConn
	udp   udpSocket
	batch batchReader
}

// A udpSocket has the methods of a *net.UDPConn, and of a wrapper of one.
type udpSocket interface {
	net.PacketConn
	net.Conn // without it, ipv4.NewPacketConn panics
	SyscallConn() (syscall.RawConn, error)
	WriteMsgUDP(p, oob []byte, to *net.UDPAddr) (n, oobn int, err error)
}

// A batchReader reads several packets in one call.
type batchReader interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
}

// fastConn returns c with the methods of its socket; c if that is no UDP socket.
func fastConn(c *packetConn) net.PacketConn {
	udp, ok := c.PacketConn.(udpSocket)
	if !ok {
		return c
	}
	if batch, ok := udp.(batchReader); ok { // which the socket itself has not
		return &udpConn{c, udp, batch}
	}
	return &udpConn{c, udp, ipv4.NewPacketConn(udp)}
}

// SyscallConn is for options of the socket. To read there would go around the
// rules.
func (c *udpConn) SyscallConn() (syscall.RawConn, error) { return c.udp.SyscallConn() }

// ReadBatch is that of ipv4.PacketConn.
func (c *udpConn) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		if n := c.takeBatch(ms); n > 0 {
			return n, nil
		}
		n, err := c.batch.ReadBatch(ms, flags)
		if err != nil {
			if c.wasPoked(err) {
				continue
			}
			return n, err
		}
		if c.layer.plane.Idle() {
			return n, nil
		}
		if n = c.admitBatch(ms[:n]); n > 0 {
			return n, nil
		}
	}
}

// takeBatch moves packets from the inbox to ms.
func (c *udpConn) takeBatch(ms []ipv4.Message) int {
	for i := range ms {
		a := c.takeOne()
		if a == nil {
			return i
		}
		fill(&ms[i], a.data, a.oob, a.flags, a.from)
	}
	return len(ms)
}

// admitBatch decides about each packet in ms and moves those that may be read to the front. The
// buffers stay where they are: the reader knows them by their place.
func (c *udpConn) admitBatch(ms []ipv4.Message) (kept int) {
	for i := range ms {
		m := &ms[i]
		a := arrived{data: m.Buffers[0][:m.N], oob: m.OOB[:m.NN], flags: m.Flags, from: m.Addr}
		if !c.admit(&a) {
			continue
		}
		if kept != i {
			fill(&ms[kept], a.data, a.oob, a.flags, a.from)
		}
		kept++
	}
	return kept
}

// fill makes m a message with copies of data and oob.
func fill(m *ipv4.Message, data, oob []byte, flags int, from net.Addr) {
	m.N, m.NN = copy(m.Buffers[0], data), copy(m.OOB, oob)
	m.Flags, m.Addr = flags, from
}

// ReadMsgUDP is that of net.UDPConn.
func (c *udpConn) ReadMsgUDP(p, oob []byte) (n, oobn, flags int, from *net.UDPAddr, err error) {
	ms := []ipv4.Message{{Buffers: [][]byte{p}, OOB: oob}}
	if _, err := c.ReadBatch(ms, 0); err != nil {
		return 0, 0, 0, nil, err
	}
	from, _ = ms[0].Addr.(*net.UDPAddr)
	return ms[0].N, ms[0].NN, ms[0].Flags, from, nil
}

// WriteMsgUDP sends p, which may be several packets in one, or applies the rules to each of them.
// Those that follow each other untouched still go in one call: a link that loses one packet of a
// hundred is not to be slower for the number of its calls.
func (c *udpConn) WriteMsgUDP(p, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	if c.layer.plane.Idle() {
		return c.udp.WriteMsgUDP(p, oob, to)
	}
	size, rest := segments(oob)
	if size == 0 {
		size = max(len(p), 1)
	}
	together := 0 // p[together:n] is untouched and not sent yet
	for n < len(p) {
		end := min(n+size, len(p))
		f := c.decide(to, true, end-n)
		if untouched(f) {
			n = end
			continue
		}
		if err := c.writeRun(p[together:n], size, oob, rest, to); err != nil {
			return together, 0, err
		}
		if err := c.emitOne(p[n:end], f, rest, to); err != nil {
			return n, 0, err
		}
		n, together = end, end
	}
	if err := c.writeRun(p[together:], size, oob, rest, to); err != nil {
		return together, 0, err
	}
	return n, len(oob), nil
}

// writeRun sends packets of size bytes, the last one of at most as many: with oob,
// which means that they are several, or with rest, which does not.
func (c *udpConn) writeRun(p []byte, size int, oob, rest []byte, to *net.UDPAddr) error {
	if len(p) == 0 {
		return nil
	}
	if len(p) <= size {
		oob = rest
	}
	_, _, err := c.udp.WriteMsgUDP(p, oob, to)
	return err
}

// emitOne sends one packet to which something happens.
func (c *udpConn) emitOne(p []byte, f faults.Decision, rest []byte, to *net.UDPAddr) error {
	rest = append([]byte(nil), rest...) // it may be sent later
	_, err := c.emit(p, f, func(p []byte) (int, error) {
		sent, _, err := c.udp.WriteMsgUDP(p, rest, to)
		return sent, err
	})
	return err
}

// udpSegment is the control message of how long the packets in a buffer
// are (UDP_SEGMENT of linux/udp.h).
const udpSegment = 103

// segments returns the length of the packets in oob, 0 if there is none, and oob without that
// message.
func segments(oob []byte) (size int, rest []byte) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, oob
	}
	at := 0
	for _, m := range messages {
		end := min(at+syscall.CmsgSpace(len(m.Data)), len(oob))
		if m.Header.Level == syscall.IPPROTO_UDP && m.Header.Type == udpSegment && len(m.Data) >= 2 {
			size = int(binary.NativeEndian.Uint16(m.Data))
		} else {
			rest = append(rest, oob[at:end]...)
		}
		at = end
	}
	return size, rest
}
