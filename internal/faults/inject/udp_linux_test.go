package inject

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
)

// A fastPath has the methods that QUIC asks of a socket before it reads in batches and hands over
// several packets at once. Reads go around a wrapper that has all of it but ReadBatch.
type fastPath interface {
	net.PacketConn
	SyscallConn() (syscall.RawConn, error)
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
	ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
	WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
}

func udp(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// udpPair returns two wrapped UDP sockets of nodes 1 and 2, which know each
// other by their ports.
func udpPair(t testing.TB) (layers [2]*Layer, conns [2]fastPath) {
	return udpPairOn(t, func(c net.PacketConn) net.PacketConn { return c })
}

// udpPairOn puts something between the sockets and their wrappers.
func udpPairOn(t testing.TB, between func(net.PacketConn) net.PacketConn) (layers [2]*Layer, conns [2]fastPath) {
	raw := [2]*net.UDPConn{udp(t), udp(t)}
	for i := range raw {
		layers[i] = layer(t, addr.NodeID(i+1))
		for j, node := range []addr.UUID{idA.Node, idB.Node} {
			layers[i].plane.Names.SetPlace(node, raw[j].LocalAddr().String())
		}
		wrapped, ok := layers[i].PacketConn(between(raw[i]), faults.Link).(fastPath)
		if !ok {
			t.Fatal("a wrapped UDP socket is slow for QUIC")
		}
		conns[i] = wrapped
		t.Cleanup(func() { wrapped.Close() })
	}
	return layers, conns
}

// segmentSize is the control message that makes the kernel send several packets
// of a length from one buffer.
func segmentSize(n int) []byte {
	b := make([]byte, syscall.CmsgSpace(2))
	binary.NativeEndian.PutUint64(b, uint64(syscall.CmsgLen(2)))
	binary.NativeEndian.PutUint32(b[8:], syscall.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(b[12:], udpSegment)
	binary.NativeEndian.PutUint16(b[16:], uint16(n))
	return b
}

// TestBatchesMeetRulesPacketByPacket hands ten packets over at once, to a socket
// that gives the reader one by one, and to one that reads them at once, too.
func TestBatchesMeetRulesPacketByPacket(t *testing.T) {
	for name, between := range map[string]func(net.PacketConn) net.PacketConn{
		"one by one": func(c net.PacketConn) net.PacketConn { return c },
		"at once":    quic.ReceiveOffload,
	} {
		t.Run(name, func(t *testing.T) {
			layers, conns := udpPairOn(t, between)
			batchesMeetRules(t, layers, conns)
		})
	}
}

func batchesMeetRules(t *testing.T, layers [2]*Layer, conns [2]fastPath) {
	var sent []byte
	for i := range 10 {
		sent = append(sent, bytes.Repeat([]byte{byte(i)}, 100)...)
	}
	sent = sent[:950] // the last one is shorter
	to := conns[1].LocalAddr().(*net.UDPAddr)
	for _, tt := range []struct {
		name  string
		rules []faults.Rule
		at    int
		want  func(n int) bool
	}{
		{"no rules", nil, 0, func(n int) bool { return n == 10 }},
		{"rules for others", []faults.Rule{{On: faults.Link, To: faults.Nodes{9}, Cut: true}}, 0, func(n int) bool { return n == 10 }},
		{"mtu", []faults.Rule{{On: faults.Link, MTU: 99}}, 0, func(n int) bool { return n == 1 }},
		{"mtu at the receiver", []faults.Rule{{On: faults.Link, MTU: 99}}, 1, func(n int) bool { return n == 1 }},
		{"loss", []faults.Rule{{On: faults.Link, Drop: .5, Seed: 5}}, 0, func(n int) bool { return n > 0 && n < 10 }},
		{"duplicates at the receiver", []faults.Rule{{On: faults.Link, Duplicate: 1}}, 1, func(n int) bool { return n == 20 }},
		{"delay at the receiver", []faults.Rule{{On: faults.Link, Delay: 30 * ms}}, 1, func(n int) bool { return n == 10 }},
		{"delay", []faults.Rule{{On: faults.Link, Delay: 30 * ms}}, 0, func(n int) bool { return n == 10 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plane := layers[tt.at].plane
			plane.Clear()
			if len(tt.rules) > 0 {
				if _, err := plane.AddAll(tt.rules); err != nil {
					t.Fatal(err)
				}
			}
			defer plane.Clear()
			start := time.Now()
			n, _, err := conns[0].WriteMsgUDP(sent, segmentSize(100), to)
			if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EINVAL) {
				t.Fatal("this kernel does not take segments")
			}
			if n != len(sent) || err != nil {
				t.Fatalf("sent %d bytes, %v", n, err)
			}
			ms := make([]ipv4.Message, 8)
			for i := range ms {
				ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1500)}, make([]byte, 64)
			}
			got := 0
			conns[1].SetReadDeadline(start.Add(250 * time.Millisecond))
			for {
				k, err := conns[1].ReadBatch(ms, 0)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range ms[:k] {
					p := m.Buffers[0][:m.N]
					if m.N != 100 && !(m.N == 50 && p[0] == 9) || !bytes.Equal(p, bytes.Repeat(p[:1], m.N)) || m.Addr.String() != conns[0].LocalAddr().String() {
						t.Errorf("packet of %d bytes from %v: % x…", m.N, m.Addr, p[:4])
					}
				}
				got += k
				if len(tt.rules) > 0 && tt.rules[0].Delay > 0 && time.Since(start) < 30*time.Millisecond {
					t.Errorf("%d packets arrived after %v", k, time.Since(start))
				}
			}
			if !tt.want(got) {
				t.Errorf("%d packets arrived", got)
			}
			if len(tt.rules) > 0 && tt.rules[0].To == nil && plane.List(false)[0].Counts.Fired() == 0 {
				t.Error("the rule did not fire")
			}
		})
	}
}

// TestUntouchedPacketsGoTogether loses some of ten packets that are handed over at once. A receiver
// that gets packets sent together as one reads one piece of each run between them.
func TestUntouchedPacketsGoTogether(t *testing.T) {
	const udpGRO = 104 // of linux/udp.h
	layers, conns := udpPair(t)
	there := udp(t)
	raw, err := there.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	if err := raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpGRO, 1)
	}); err != nil || refused != nil {
		t.Fatal(err, refused)
	}
	layers[0].plane.Names.SetPlace(idB.Node, there.LocalAddr().String())
	add(t, layers[0], faults.Rule{On: faults.Link, Drop: .3, Seed: 5})
	var sent []byte
	for i := range 10 {
		sent = append(sent, bytes.Repeat([]byte{byte(i)}, 100)...)
	}
	if n, _, err := conns[0].WriteMsgUDP(sent, segmentSize(100), there.LocalAddr().(*net.UDPAddr)); n != len(sent) || err != nil {
		t.Fatalf("sent %d bytes, %v", n, err)
	}
	lost := layers[0].plane.List(false)[0].Counts.Dropped
	if lost < 2 || lost > 8 {
		t.Fatalf("%d of 10 packets lost: the seed shows nothing", lost)
	}
	buf := make([]byte, 64<<10)
	last := byte(255)
	for left := 10 - int(lost); left > 0; {
		there.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := there.Read(buf)
		if err != nil || n%100 != 0 {
			t.Fatalf("%d bytes, %v, with %d packets to come", n, err, left)
		}
		if last != 255 && buf[0] == last+1 {
			t.Errorf("packets %d and %d came apart", last, buf[0])
		}
		for at := 100; at < n; at += 100 {
			if buf[at] != buf[at-100]+1 {
				t.Errorf("packet %d follows %d", buf[at], buf[at-100])
			}
		}
		last = buf[n-100]
		left -= n / 100
	}
}

// certificate returns a certificate that only names a node.
func certificate(t testing.TB, id transport.Identity) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: id.Node.String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// quicPair returns two QUIC providers whose packets and streams meet rules. They
// believe every certificate.
func quicPair(t testing.TB, streams int, rules ...faults.Rule) (layers [2]*Layer, providers [2]transport.Provider) {
	t.Helper()
	layers, conns := udpPairOn(t, quic.ReceiveOffload)
	for _, l := range layers {
		if len(rules) > 0 {
			if _, err := l.plane.AddAll(rules); err != nil {
				t.Fatal(err)
			}
		}
	}
	return layers, quicOn(t, layers, [2]net.PacketConn{conns[0], conns[1]}, streams)
}

// quicOn returns QUIC providers on sockets.
func quicOn(t testing.TB, layers [2]*Layer, conns [2]net.PacketConn, streams int) (providers [2]transport.Provider) {
	t.Helper()
	identities := []transport.Identity{idA, idB}
	for i, id := range identities {
		cert := certificate(t, id)
		config := func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true,
				VerifyConnection: func(tls.ConnectionState) error { return nil }}
		}
		p, err := quic.New(quic.Config{PacketConn: conns[i], Config: network.Config{ServerTLS: config, ClientTLS: config, MaxStreams: streams,
			Identify: func(cs tls.ConnectionState) (transport.Identity, error) {
				for _, id := range identities {
					if cs.PeerCertificates[0].Subject.CommonName == id.Node.String() {
						return id, nil
					}
				}
				return transport.Identity{}, errors.New("unknown")
			}}})
		if err != nil {
			t.Fatal(err)
		}
		providers[i] = layers[i].Provider(p, true)
	}
	return providers
}

// TestQUICConformance holds QUIC to the contract of providers below a Layer, on a
// network in memory: without rules, and while its packets are lost, doubled,
// broken, late and in disorder.
func TestQUICConformance(t *testing.T) {
	for name, rules := range map[string][]faults.Rule{
		"no rules":  nil,
		"bad links": {{On: faults.Link, At: faults.AtFrom, Drop: .02, Duplicate: .05, Corrupt: .01, Reorder: .1, Jitter: 2 * ms, Seed: 7}},
		"late":      {{On: faults.All, Delay: ms}, {On: faults.Messages, Delay: ms}, {On: faults.RMA, Delay: ms}},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T) transporttest.Pair {
				s := openSockets(t)
				for i, l := range s.layers {
					s.conns[i] = l.PacketConn(s.conns[i].(*packetConn).PacketConn, faults.Link)
					if len(rules) == 0 {
						continue
					}
					if _, err := l.plane.AddAll(rules); err != nil {
						t.Fatal(err)
					}
				}
				p := quicOn(t, s.layers, s.conns, 16)
				return transporttest.Pair{A: p[0], B: p[1], IDA: idA, IDB: idB, MaxStreams: 16, Nowhere: "10.0.0.3:7000"}
			})
		})
	}
}

// TestQUICOverBadSockets sends in bulk over sockets whose packets are lost,
// doubled, broken, late and in disorder.
func TestQUICOverBadSockets(t *testing.T) {
	layers, p := quicPair(t, 16, faults.Rule{On: faults.Link, Drop: .01, Duplicate: .05, Corrupt: .01, Reorder: .05, Jitter: 2 * ms})
	defer p[0].Close()
	defer p[1].Close()
	accepted := make(chan transport.Session, 1)
	go func() {
		s, _ := p[1].Accept(t.Context())
		accepted <- s
	}()
	near, err := p[0].Dial(t.Context(), p[1].Addr())
	if err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	out, err := near.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = pattern(i)
	}
	go func() {
		_, _ = out.Write(sent) // the reader says whether it came
		out.Close()
	}()
	in, err := far.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, as sent: %v, %v", len(got), bytes.Equal(got, sent), err)
	}
	for i, l := range layers {
		c := l.plane.List(false)[0].Counts
		if c.Dropped == 0 || c.Delayed == 0 || i == 0 && (c.Duplicated == 0 || c.Corrupted == 0 || c.Reordered == 0) {
			t.Errorf("node %d: %+v", i+1, c)
		}
	}
}

// TestQUICMeetsEachFaultByItself has one fault of packets act on a session over sockets, of a link
// and of everything: it is counted, by its own name only, and data sent both ways meanwhile arrives
// as it was sent.
func TestQUICMeetsEachFaultByItself(t *testing.T) {
	kinds := []struct {
		name    string
		r       faults.Rule
		effects func(faults.Counters) uint64
	}{
		{"drop", faults.Rule{Drop: .05}, func(c faults.Counters) uint64 { return c.Dropped }},
		{"duplicate", faults.Rule{Duplicate: .1}, func(c faults.Counters) uint64 { return c.Duplicated }},
		{"reorder", faults.Rule{Reorder: .1}, func(c faults.Counters) uint64 { return c.Reordered }},
		{"corrupt", faults.Rule{Corrupt: .05}, func(c faults.Counters) uint64 { return c.Corrupted }},
	}
	for _, on := range []faults.Traffic{faults.Link, faults.All} {
		for _, k := range kinds {
			t.Run(string(on)+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				r := k.r
				r.On, r.At, r.Seed = on, faults.AtFrom, 3
				layers, p := quicPair(t, 16, r)
				s := connected(t, p)
				for i := 0; i < 2 || i < 50 && (k.effects(listed(t, layers[0])) == 0 || k.effects(listed(t, layers[1])) == 0); i++ {
					exact(t, s[0], s[1], 128<<10)
					exact(t, s[1], s[0], 128<<10)
				}
				for i, l := range layers {
					c := listed(t, l)
					if n := k.effects(c); n == 0 || n >= c.Seen || n != c.Fired() {
						t.Errorf("node %d: %+v, want nothing but %s, of some packets", i+1, c, k.name)
					}
				}
			})
		}
	}
}

// TestQUICAcrossAHalfOpenLink stops a session without ending it, and refuses the next one at once.
// Data sent meanwhile arrives as it was sent when the link is whole again.
func TestQUICAcrossAHalfOpenLink(t *testing.T) {
	for _, on := range []faults.Traffic{faults.Link, faults.All} {
		t.Run(string(on), func(t *testing.T) {
			t.Parallel()
			layers, p := quicPair(t, 16)
			s := connected(t, p)
			exact(t, s[0], s[1], 64<<10)
			counts := add(t, layers[0], faults.Rule{On: on, HalfOpen: true})
			if _, err := p[0].Dial(t.Context(), p[1].Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial: %v, want ECONNREFUSED", err)
			}
			arrived := make(chan bool, 1)
			go func() { arrived <- exact(t, s[0], s[1], 64<<10) }()
			select {
			case <-arrived:
				t.Error("bytes passed")
			case <-time.After(300 * time.Millisecond):
			}
			if c := counts(); c.Refused != 1 || c.Stopped == 0 || c.Fired() != c.Refused+c.Stopped {
				t.Errorf("%+v, want one refusal, and packets that were stopped", c)
			}
			layers[0].plane.Clear()
			if !<-arrived {
				t.Error("what was sent meanwhile has not arrived")
			}
			again := connected(t, p)
			exact(t, again[1], again[0], 64<<10)
		})
	}
}

// connected dials a session and returns its two ends.
func connected(t *testing.T, p [2]transport.Provider) (ends [2]transport.Session) {
	t.Helper()
	t.Cleanup(func() { p[0].Close(); p[1].Close() })
	accepted := make(chan transport.Session, 1)
	go func() {
		s, _ := p[1].Accept(t.Context()) // the dial says why there is none
		accepted <- s
	}()
	var err error
	if ends[0], err = p[0].Dial(t.Context(), p[1].Addr()); err != nil {
		t.Fatal(err)
	}
	if ends[1] = <-accepted; ends[1] == nil {
		t.Fatal("not accepted")
	}
	return ends
}

// exact sends n bytes on a stream of their own and reports whether just these came.
func exact(t *testing.T, from, to transport.Session, n int) bool {
	t.Helper()
	sent := make([]byte, n)
	for i := range sent {
		sent[i] = pattern(i)
	}
	out, err := from.OpenStream(t.Context())
	if err != nil {
		t.Errorf("open a stream: %v", err)
		return false
	}
	go func() {
		_, _ = out.Write(sent) // the reader says whether it came
		out.Close()
	}()
	in, err := to.AcceptStream(t.Context())
	if err != nil {
		t.Errorf("accept a stream: %v", err)
		return false
	}
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, as sent: %v, %v", len(got), n, bytes.Equal(got, sent), err)
		return false
	}
	return true
}

// listed returns the effects of the one rule of a layer, as a list of the rules shows them.
func listed(t *testing.T, l *Layer) faults.Counters {
	t.Helper()
	all := l.plane.List(false)
	if len(all) != 1 {
		t.Fatalf("%d rules, want one", len(all))
	}
	return all[0].Counts
}

// BenchmarkPackets sends and receives packets over the loopback interface: on
// the socket itself, below a Layer without rules, and with a rule for another
// node. Each operation is one packet of 1200 bytes there and back.
func BenchmarkPackets(b *testing.B) {
	for _, kind := range []string{"socket", "idle", "rule for another"} {
		b.Run(kind, func(b *testing.B) {
			var conns [2]fastPath
			if kind == "socket" {
				for i := range conns {
					c := udp(b)
					conns[i] = &udpConn{&packetConn{PacketConn: c}, c, ipv4.NewPacketConn(c)}
				}
				benchmarkPackets(b, plainPath{conns[0].(*udpConn)}, plainPath{conns[1].(*udpConn)})
				return
			}
			layers, conns := udpPair(b)
			if kind != "idle" {
				for _, l := range layers {
					add(b, l, faults.Rule{On: faults.Link, To: faults.Nodes{9}, Cut: true})
				}
			}
			benchmarkPackets(b, conns[0], conns[1])
		})
	}
}

// A plainPath is the socket of a udpConn without the parts that the Layer adds.
type plainPath struct{ c *udpConn }

func (p plainPath) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	return p.c.batch.ReadBatch(ms, flags)
}

func (p plainPath) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error) {
	return p.c.udp.WriteMsgUDP(b, oob, to)
}

func (p plainPath) LocalAddr() net.Addr { return p.c.udp.LocalAddr() }

// A path has the methods of a fastPath that the benchmark needs.
type path interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error)
	LocalAddr() net.Addr
}

func benchmarkPackets(b *testing.B, near, far path) {
	packet := make([]byte, 1200)
	ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 1500)}, OOB: make([]byte, 64)}}
	pass := func(from, to path) {
		if _, _, err := from.WriteMsgUDP(packet, nil, to.LocalAddr().(*net.UDPAddr)); err != nil {
			b.Fatal(err)
		}
		if n, err := to.ReadBatch(ms, 0); n != 1 || err != nil {
			b.Fatal(fmt.Errorf("%d messages: %w", n, err))
		}
	}
	b.SetBytes(2 * 1200)
	for b.Loop() {
		pass(near, far)
		pass(far, near)
	}
}

// A counting socket counts the packets handed to the kernel in one call.
type counting struct {
	fastPath
	packets, batches atomic.Int64
}

func (c *counting) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error) {
	c.packets.Add(1)
	if size, _ := segments(oob); size > 0 && len(b) > size {
		c.batches.Add(1)
	}
	return c.fastPath.WriteMsgUDP(b, oob, to)
}

// TestQUICKeepsItsBatchesBelowALayer sends in bulk without rules: QUIC hands over
// many packets in one call, as it does to a socket.
func TestQUICKeepsItsBatchesBelowALayer(t *testing.T) {
	layers, conns := udpPair(t)
	sockets := [2]*counting{{fastPath: conns[0]}, {fastPath: conns[1]}}
	p := quicOn(t, layers, [2]net.PacketConn{sockets[0], sockets[1]}, 16)
	defer p[0].Close()
	defer p[1].Close()
	accepted := make(chan transport.Session, 1)
	go func() {
		s, _ := p[1].Accept(t.Context())
		accepted <- s
	}()
	near, err := p[0].Dial(t.Context(), conns[1].LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	out, err := near.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const total = 4 << 20
	go func() {
		_, _ = out.Write(make([]byte, total)) // the reader says whether it came
		out.Close()
	}()
	in, err := far.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, in); n != total || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if calls, batches := sockets[0].packets.Load(), sockets[0].batches.Load(); batches == 0 || calls > total/1200 {
		t.Errorf("%d bytes took %d calls, %d of them of several packets", total, calls, batches)
	}
}
