package inject

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
)

// PacketConn returns inner with its packets under the rules on the plane, which is Gossip or Link.
// If inner is a *net.UDPConn on Linux, or made of one by quic.ReceiveOffload, the result has all
// that QUIC uses to be fast. It closes inner.
func (l *Layer) PacketConn(inner net.PacketConn, on faults.Traffic) net.PacketConn {
	c := &packetConn{PacketConn: inner, layer: l, on: on, queue: newPacketQueue(l, queuedPackets)}
	return fastConn(c)
}

// A packetConn is a socket whose packets meet the rules.
type packetConn struct {
	net.PacketConn
	layer *Layer
	on    faults.Traffic
	queue *packetQueue

	mu     sync.Mutex // guards the fields below
	inbox  []*arrived // were delayed and are due
	poked  bool       // the deadline below was set to wake the reader
	until  time.Time  // the user's read deadline
	closed bool
}

// An arrived is a received packet that a rule has delayed.
type arrived struct {
	data  []byte
	oob   []byte
	flags int
	from  net.Addr
}

// inboxLimit bounds the packets that are due and not read.
const inboxLimit = 8192

// decide returns the decision of a packet of size bytes to or from a peer.
func (c *packetConn) decide(peer net.Addr, sending bool, size int) faults.Decision {
	var at netip.AddrPort
	if udp, ok := peer.(*net.UDPAddr); ok && udp != nil {
		at = udp.AddrPort()
	} else if peer != nil {
		at, _ = netip.ParseAddrPort(peer.String())
	}
	return c.layer.plane.Decide(faults.Meeting{
		Peer: c.layer.plane.Names.At(at), On: c.on, Carrier: faults.Packets, Sending: sending,
	}, size)
}

// WriteTo sends p, or applies the rules to it.
func (c *packetConn) WriteTo(p []byte, to net.Addr) (int, error) {
	if c.layer.plane.Idle() {
		return c.PacketConn.WriteTo(p, to)
	}
	return c.emit(p, c.decide(to, true, len(p)), func(p []byte) (int, error) { return c.PacketConn.WriteTo(p, to) })
}

// untouched reports whether a packet of this decision goes as it is, now and once.
func untouched(f faults.Decision) bool { return !f.Drop && !f.Corrupt && !f.Twice && f.Delay == 0 }

// emit sends one packet now, later, twice or never.
func (c *packetConn) emit(p []byte, f faults.Decision, send func([]byte) (int, error)) (int, error) {
	if f.Drop {
		return len(p), nil
	}
	if f.Corrupt || f.Twice || f.Delay > 0 {
		p = bytes.Clone(p) // the caller's buffer stays as it is
	}
	if f.Corrupt {
		corrupt(p, f)
	}
	lost := func() { _, _ = send(p) } // UDP: an error is a lost packet
	if !c.queue.schedule(f, len(p), f.Effects&faults.Held == 0, lost) {
		return len(p), nil
	}
	return send(p)
}

// corrupt changes one byte of p.
func corrupt(p []byte, f faults.Decision) {
	if len(p) > 0 {
		p[int(f.At)%len(p)] ^= f.Mask
	}
}

// ReadFrom returns the next packet that the rules let arrive.
func (c *packetConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		if a := c.takeOne(); a != nil {
			return copy(p, a.data), a.from, nil
		}
		n, from, err := c.PacketConn.ReadFrom(p)
		if err != nil {
			if c.wasPoked(err) {
				continue
			}
			return n, from, err
		}
		if c.layer.plane.Idle() || c.admit(&arrived{data: p[:n], from: from}) {
			return n, from, nil
		}
	}
}

// admit decides about a packet that has arrived, in a buffer that is the
// reader's. It reports whether it may be read now; else it is lost or comes
// later.
func (c *packetConn) admit(a *arrived) bool {
	f := c.decide(a.from, false, len(a.data))
	if f.Drop {
		return false
	}
	if f.Corrupt {
		corrupt(a.data, f)
	}
	if !f.Twice && f.Delay == 0 {
		return true
	}
	later := &arrived{data: bytes.Clone(a.data), oob: bytes.Clone(a.oob), flags: a.flags, from: a.from}
	return c.queue.schedule(f, len(a.data), false, func() { c.arrive(later) })
}

// arrive makes a readable and wakes the reader.
func (c *packetConn) arrive(a *arrived) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.inbox) >= inboxLimit {
		return
	}
	c.inbox = append(c.inbox, a)
	if !c.poked {
		c.poked = true
		c.PacketConn.SetReadDeadline(time.Unix(1, 0))
	}
}

// takeOne returns the next packet of the inbox, nil if there is none.
func (c *packetConn) takeOne() *arrived {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.inbox) == 0 {
		return nil
	}
	a := c.inbox[0]
	c.inbox = c.inbox[1:]
	return a
}

// wasPoked reports whether err only means that the reader was woken. It gives the
// socket the user's deadline back.
func (c *packetConn) wasPoked(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	poked := c.poked
	c.poked = false
	if poked && !c.closed {
		c.PacketConn.SetReadDeadline(c.until)
	}
	return poked && !c.closed
}

// SetReadDeadline is that of net.PacketConn.
func (c *packetConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	if c.poked { // the reader sets it when it has seen the poke
		return nil
	}
	return c.PacketConn.SetReadDeadline(t)
}

// SetDeadline is that of net.PacketConn.
func (c *packetConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.PacketConn.SetWriteDeadline(t))
}

// SetReadBuffer and SetWriteBuffer set the kernel's buffers, if there are any.
func (c *packetConn) SetReadBuffer(n int) error {
	if b, ok := c.PacketConn.(interface{ SetReadBuffer(int) error }); ok {
		return b.SetReadBuffer(n)
	}
	return nil
}

// SetWriteBuffer is like SetReadBuffer.
func (c *packetConn) SetWriteBuffer(n int) error {
	if b, ok := c.PacketConn.(interface{ SetWriteBuffer(int) error }); ok {
		return b.SetWriteBuffer(n)
	}
	return nil
}

// Close closes the socket. Packets that were sent and wait go at once: the
// network would still carry them.
func (c *packetConn) Close() error {
	c.mu.Lock()
	c.closed, c.inbox = true, nil
	c.mu.Unlock()
	c.queue.stop()
	return c.PacketConn.Close()
}
