package quic

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// tailPackets is how many packets a tail holds. quic-go requests an acknowledgement with every
	// 20th packet in a row at the latest, so among 20 there is one that the peer acknowledges.
	tailPackets = 20

	// tailBytes bounds the bytes resent at once: at least two full packets, which is the size of
	// quic-go's probes, or 20 acknowledgements.
	tailBytes = 4 << 10

	// wholePacket is the length up to which a write is one packet. Longer writes are batches: their
	// packets are not kept, since quic-go always writes probes and acknowledgements alone.
	wholePacket = 1500
)

// tails are the last packets sent to each peer with a session.
//
// Why: while a congestion window is full, quic-go sends nothing but probes, and after every
// unacknowledged probe it waits twice as long for the next (RFC 9002, 6.2). On a flapping path,
// probes that fall into its gaps one after the other cause seconds of silence, although the path
// was open half of the time; and after a gap of any length it takes as long again until the peers
// receive from each other. Resending the last packets, as a network that duplicates packets would,
// makes the peer acknowledge those that it has not received: that opens the window and resets the
// timer. The peer drops duplicates. Packets are resent without decryption, encryption or new
// numbers.
type tails struct {
	write func(p, oob []byte, to *net.UDPAddr) error // to the network

	mu sync.RWMutex // guards of, and users of each tail
	of map[netip.AddrPort]*tail
}

// A tail is the last packets that were sent to one address.
type tail struct {
	to    *net.UDPAddr
	users int // sessions

	mu   sync.Mutex // guards the fields below
	ring [tailPackets]keptPacket
	next int // index of the oldest
}

// A keptPacket is a packet as it was sent; its buffers are reused.
type keptPacket struct{ data, oob []byte }

// follow starts to keep the packets sent to an address, which is a *net.UDPAddr of quic-go. It
// returns nil for any other.
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

// leave undoes follow.
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

// sent keeps p, which is about to be sent. Only packets of established connections to peers with a
// session are kept: no other host can make this node resend, or store, packets by sending to it.
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

// keep replaces the oldest packet by a copy of p.
func (k *tail) keep(p, oob []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := &k.ring[k.next]
	at.data, at.oob = append(at.data[:0], p...), append(at.oob[:0], oob...)
	k.next = (k.next + 1) % tailPackets
}

// again resends the newest packets of k, the oldest of them first, and returns their bytes. Resent
// packets are not added to a tail.
func (t *tails) again(k *tail) (bytes int) {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	first := 0 // number of newest packets that fit
	for ; first < tailPackets; first++ {
		p := k.back(first)
		if len(p.data) == 0 || bytes+len(p.data) > tailBytes {
			break
		}
		bytes += len(p.data)
	}
	for i := first - 1; i >= 0; i-- {
		p := k.back(i)
		// A packet that could not be sent counts as lost; other code sees the end of the socket.
		_ = t.write(p.data, p.oob, k.to)
	}
	return bytes
}

// back returns the packet that was sent i packets before the newest.
func (k *tail) back(i int) *keptPacket {
	return &k.ring[(k.next-1-i+2*tailPackets)%tailPackets]
}
