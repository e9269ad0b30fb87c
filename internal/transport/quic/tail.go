package quic

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// tailPackets is how many packets a tail holds. quic-go asks for an
	// acknowledgement with every 20th packet in a row at the latest, so among
	// 20 there is one that the peer answers.
	tailPackets = 20

	// tailBytes bounds what is sent again at once: two full packets at least,
	// which is what quic-go probes with, or 20 acknowledgements.
	tailBytes = 4 << 10

	// wholePacket is the length up to which what is written is one packet.
	// Longer writes are batches: their packets are not kept, since what
	// quic-go probes and acknowledges with is always written alone.
	wholePacket = 1500
)

// tails are the ends of what was sent to each peer with a session.
//
// Why: while a congestion window is full, quic-go sends nothing but
// probes, and after every probe without an acknowledgement it waits twice as
// long for the next (RFC 9002, 6.2). On a way that comes and goes, probes that
// meet its gaps one after the other make seconds of silence, although the way
// was open half of the time; and after a gap of any length it takes as long
// again until the peers hear of each other. The last packets sent again, as a
// network that duplicates would do it, make the peer acknowledge what it has
// not seen yet: that opens the window and forgets the waiting. The peer drops
// what it has seen. Nothing is decrypted, encrypted or numbered anew.
type tails struct {
	write func(p, oob []byte, to *net.UDPAddr) error // to the network

	mu sync.RWMutex // guards of and the tails' users
	of map[netip.AddrPort]*tail
}

// A tail is the last packets that were sent to one address.
type tail struct {
	to    *net.UDPAddr
	users int // sessions

	mu   sync.Mutex // guards the fields below
	ring [tailPackets]keptPacket
	next int // place of the oldest
}

// A keptPacket is a packet as it went out; its buffers are used again.
type keptPacket struct{ data, oob []byte }

// follow begins to keep what is sent to an address, which is a *net.UDPAddr of
// quic-go. It is nil for any other.
func (t *tails) follow(address net.Addr) *tail {
	to, ok := address.(*net.UDPAddr)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.of[to.AddrPort()]
	if k == nil {
		k = &tail{to: to}
		t.of[to.AddrPort()] = k
	}
	k.users++
	return k
}

// leave ends what follow began.
func (t *tails) leave(k *tail) {
	if k == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(t.of, k.to.AddrPort())
	}
}

// sent keeps p, which is about to be sent. Only packets of established
// connections are kept, and only for peers with a session: nobody makes this
// node send twice, or remember, by writing to it.
func (t *tails) sent(p, oob []byte, address net.Addr) {
	const longHeader = 0x80
	if len(p) == 0 || len(p) > wholePacket || p[0]&longHeader != 0 {
		return
	}
	to, ok := address.(*net.UDPAddr)
	if !ok {
		return
	}
	t.mu.RLock()
	k := t.of[to.AddrPort()]
	t.mu.RUnlock()
	if k != nil {
		k.keep(p, oob)
	}
}

// keep puts a copy of p in the place of the oldest packet.
func (k *tail) keep(p, oob []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := &k.ring[k.next]
	at.data, at.oob = append(at.data[:0], p...), append(at.oob[:0], oob...)
	k.next = (k.next + 1) % tailPackets
}

// again sends the end of k once more, the oldest packet first, and returns how
// many bytes that were. What it writes does not become part of a tail.
func (t *tails) again(k *tail) (bytes int) {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	first := 0 // that fits, counted back from the newest
	for ; first < tailPackets; first++ {
		p := k.back(first)
		if len(p.data) == 0 || bytes+len(p.data) > tailBytes {
			break
		}
		bytes += len(p.data)
	}
	for i := first - 1; i >= 0; i-- {
		p := k.back(i)
		// A packet that could not be sent is a lost one; the end of the socket
		// is seen by others.
		_ = t.write(p.data, p.oob, k.to)
	}
	return bytes
}

// back returns the packet that was sent i packets before the newest.
func (k *tail) back(i int) *keptPacket {
	return &k.ring[(k.next-1-i+2*tailPackets)%tailPackets]
}
