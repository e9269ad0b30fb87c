package quic

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	quicgo "github.com/quic-go/quic-go"
)

// recorded returns tails that write to a list.
func recorded() (t *tails, wrote *[][]byte) {
	wrote = new([][]byte)
	return &tails{of: make(map[netip.AddrPort]*tail), write: func(p, _ []byte, _ *net.UDPAddr) error {
		*wrote = append(*wrote, bytes.Clone(p))
		return nil
	}}, wrote
}

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// TestATailIsTheEndOfWhatWasSent: the resent packets are the newest sent ones, in their order, as
// many as the bounds allow.
func TestATailIsTheEndOfWhatWasSent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		ts, wrote := recorded()
		to := udpAddr(addrB)
		k := ts.follow(to)
		var sent [][]byte
		for range rng.IntN(50) {
			p := make([]byte, 20+rng.IntN(60))
			if rng.IntN(3) == 0 {
				p = make([]byte, 1200+rng.IntN(wholePacket-1200+1))
			}
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			p[0] &^= 0x80
			sent = append(sent, p)
			buf := bytes.Clone(p)
			ts.sent(buf, nil, to)
			clear(buf) // quic-go uses its buffers again
		}
		bytes := ts.again(k)
		n := len(*wrote)
		if !slices.EqualFunc(*wrote, sent[len(sent)-n:], slices.Equal) {
			t.Fatalf("%d packets, not the last ones that were sent", n)
		}
		total := 0
		for _, p := range *wrote {
			total += len(p)
		}
		full := n == tailPackets || n == len(sent) || total+len(sent[len(sent)-n-1]) > tailBytes
		if bytes != total || total > tailBytes || n > tailPackets || !full {
			t.Fatalf("%d of %d packets with %d bytes, said %d", n, len(sent), total, bytes)
		}
	}
}

// TestOnlyPacketsOfSessionsAreKept: a handshake, a batch and packets to an address without a
// session are not resent.
func TestOnlyPacketsOfSessionsAreKept(t *testing.T) {
	ts, wrote := recorded()
	to := udpAddr(addrB)
	k := ts.follow(to)
	if ts.follow(udpAddr(addrB)) != k {
		t.Error("two sessions with one address have two tails")
	}
	ts.sent([]byte{0xc0, 1}, nil, to)
	ts.sent(make([]byte, wholePacket+1), nil, to)
	ts.sent(nil, nil, to)
	ts.sent([]byte{0x40, 1}, nil, udpAddr(addrA))
	ts.sent([]byte{0x40, 1}, nil, &net.TCPAddr{IP: to.IP, Port: to.Port})
	if n := ts.again(k); n != 0 || len(*wrote) != 0 {
		t.Errorf("%d bytes were kept", n)
	}
	ts.sent([]byte{0x40, 1}, nil, to)
	ts.leave(k)
	if n := ts.again(k); n != 2 {
		t.Errorf("%d bytes after the first of two sessions has ended, want 2", n)
	}
	ts.leave(k)
	if len(ts.of) != 0 {
		t.Error("a tail is left of sessions that have ended")
	}
	ts.leave(nil)
	if ts.follow(&net.TCPAddr{}) != nil || ts.again(nil) != 0 {
		t.Error("an address that is not UDP's has a tail")
	}
}

// TestKernelSocketsStayFast: quic-go finds the socket's methods for batches and segmentation
// offload.
func TestKernelSocketsStayFast(t *testing.T) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ts, _ := recorded()
	s := newSocket(c, ts)
	defer s.Close()
	if _, ok := s.(quicgo.OOBCapablePacketConn); !ok {
		t.Error("no control messages")
	}
	if _, ok := s.(batchReader); !ok {
		t.Error("no batches")
	}
	if _, ok := s.(interface{ SetWriteBuffer(int) error }); !ok {
		t.Error("no write buffer")
	}
	if _, ok := newSocket(struct{ net.PacketConn }{c}, ts).(quicgo.OOBCapablePacketConn); ok {
		t.Error("a socket has what the one below does not have")
	}
}

// TestATailGoesOutAsItWas: over a kernel's socket, control messages included.
func TestATailGoesOutAsItWas(t *testing.T) {
	a, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ts := &tails{of: make(map[netip.AddrPort]*tail)}
	s := newSocket(a, ts).(*fastSocket)
	k := ts.follow(b.LocalAddr())
	if _, _, err := s.WriteMsgUDP([]byte("\x40one"), nil, b.LocalAddr().(*net.UDPAddr)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteTo([]byte("\x40two"), b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if n := ts.again(k); n != 8 {
		t.Errorf("sent %d bytes again, want 8", n)
	}
	for _, want := range []string{"\x40one", "\x40two", "\x40one", "\x40two"} {
		p := make([]byte, 100)
		n, err := b.Read(p)
		if err != nil || string(p[:n]) != want {
			t.Errorf("read %q, %v; want %q", p[:n], err, want)
		}
	}
}
