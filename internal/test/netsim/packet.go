package netsim

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// inboxPackets bounds a PacketConn's queue, packets in flight included. Packets
// beyond it are dropped, as by a full socket buffer.
const inboxPackets = 8192

// A PacketConn is a UDP-like socket on one host. It implements net.PacketConn;
// its addresses are *net.UDPAddr.
type PacketConn struct {
	socket
	at    netip.AddrPort
	addr  *net.UDPAddr // at, shared with readers, never changed
	inbox []*packet    // the earliest first; the network's lock guards it
}

// ListenPacket opens a socket at address, "ip:port"; port 0 chooses one.
func (n *Network) ListenPacket(address string) (*PacketConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := n.place("udp", address, func(at netip.AddrPort) bool { return n.packets[at] != nil })
	if err != nil {
		return nil, err
	}
	c := &PacketConn{at: at, addr: net.UDPAddrFromAddrPort(at)}
	c.socket = socket{net: n, fail: c.fail}
	n.packets[at] = c
	return c, nil
}

// place returns the address of a new socket at address, "ip:port", whose port it chooses if that
// is 0. n.mu is held.
func (n *Network) place(network, address string, taken func(netip.AddrPort) bool) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil:
	case n.closed:
		err = net.ErrClosed
	case at.Port() == 0:
		at, err = n.freePort(at.Addr(), taken)
	case taken(at):
		err = os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	if err != nil {
		err = &net.OpError{Op: "listen", Net: network, Addr: net.TCPAddrFromAddrPort(at), Err: err}
	}
	return at, err
}

// ReadFrom returns the next packet that has arrived, cut off at len(p).
func (c *PacketConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		got, next, err := c.receive(time.Now())
		if err != nil {
			return 0, nil, c.fail("read", err)
		}
		if got != nil {
			return copy(p, got.data), got.from, nil
		}
		next.sleep()
	}
}

// receive takes the packet that is due at now, or returns the events to wait for.
func (c *PacketConn) receive(now time.Time) (*packet, wakeup, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	switch {
	case c.closed:
		return nil, wakeup{}, net.ErrClosed
	case wait.Passed(c.readDeadline, now):
		return nil, wakeup{}, os.ErrDeadlineExceeded
	}
	next := c.readDeadline
	if len(c.inbox) > 0 {
		if wait.Passed(c.inbox[0].due, now) {
			first := c.inbox[0]
			c.inbox = slices.Delete(c.inbox, 0, 1)
			return first, wakeup{}, nil
		}
		next = wait.Earlier(next, c.inbox[0].due)
	}
	return nil, wakeup{changed: c.changed.Next(), at: next}, nil
}

// WriteTo sends p to address, a *net.UDPAddr. As with UDP, a nil error does
// not mean that it arrives. It never blocks.
func (c *PacketConn) WriteTo(p []byte, address net.Addr) (int, error) {
	udp, ok := address.(*net.UDPAddr)
	if !ok {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: c.addr, Addr: address,
			Err: fmt.Errorf("netsim: %T is not an address of this network", address)}
	}
	to := udp.AddrPort()
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	c.net.captured(c.at, to, p)
	if err := c.send(p, to, time.Now()); err != nil {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: c.addr, Addr: address, Err: err}
	}
	return len(p), nil
}

// send draws the decision of p and puts its copies into the inbox of the
// receiver.
func (c *PacketConn) send(p []byte, to netip.AddrPort, now time.Time) error {
	n := c.net
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case c.closed:
		return net.ErrClosed
	case wait.Passed(c.writeDeadline, now):
		return os.ErrDeadlineExceeded
	}
	n.counters.Sent++
	way := pair{c.at.Addr().String(), to.Addr().String()}
	r := n.rulesFor(way)
	if r.Cut {
		n.counters.Cut++
		return nil
	}
	f := n.linkFor(way).packet(r)
	n.counters.count(f)
	dst := n.packets[to]
	if dst == nil {
		if f.n > 0 {
			n.counters.NoReceiver++
		}
		return nil
	}
	for _, d := range f.copies[:f.n] {
		left, ok := n.linkFor(way).turn(r, len(p), rateQueue, now)
		if !ok {
			n.counters.Overflow++
			continue
		}
		data := append([]byte(nil), p...)
		f.spoil(data)
		dst.arrive(&packet{due: left.Add(d), from: c.addr, data: data})
	}
	return nil
}

// count adds the decision of one packet.
func (k *Counters) count(f decision) {
	if f.n == 0 {
		k.Lost++
	}
	if f.n == 2 {
		k.Duplicated++
	}
	if f.reordered {
		k.Reordered++
	}
	if f.corrupted {
		k.Corrupted++
	}
}

// arrive queues p. The network's lock is held.
func (c *PacketConn) arrive(p *packet) {
	if len(c.inbox) >= inboxPackets {
		c.net.counters.Overflow++
		return
	}
	i, _ := slices.BinarySearchFunc(c.inbox, p.due, func(q *packet, due time.Time) int {
		if q.due.After(due) {
			return 1
		}
		return -1 // equal times keep their order
	})
	c.inbox = slices.Insert(c.inbox, i, p)
	if i == 0 { // else the reader waits for an earlier one
		c.changed.Fire()
	}
}

// Close frees the address and wakes readers with net.ErrClosed.
func (c *PacketConn) Close() error {
	return c.whileOpen("close", c.closeLocked)
}

func (c *PacketConn) closeLocked() {
	if c.closed {
		return
	}
	c.closed = true
	c.inbox = nil
	delete(c.net.packets, c.at)
	c.changed.Fire()
}

// LocalAddr returns the socket's address, a *net.UDPAddr.
func (c *PacketConn) LocalAddr() net.Addr { return c.addr }

// SetReadBuffer does nothing: the queue is bounded in packets, not in bytes.
func (c *PacketConn) SetReadBuffer(int) error { return nil }

// SetWriteBuffer does nothing: nothing waits at the sender.
func (c *PacketConn) SetWriteBuffer(int) error { return nil }

func (c *PacketConn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Addr: c.addr, Err: err}
}

// A packet is under way until due.
type packet struct {
	due  time.Time
	from *net.UDPAddr
	data []byte
}
