package fabrictest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/transport"
	providers "github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/transport/stream"
)

// A loopback is QUIC, TCP, or both at one address of each node as of fabricd, over the
// loopback interface. With both, the dialing node decides: nodes with an odd ID prefer QUIC,
// the others TCP.
type loopback struct {
	authority            *testca.Authority
	quic, tcp, plaintext bool

	mu      sync.Mutex // guards sockets
	sockets []io.Closer
}

func newLoopback(o options) *loopback {
	return &loopback{authority: testca.New(), quic: o.quic, tcp: o.tcp, plaintext: o.plaintext}
}

// portTries bounds how often a port that is free for TCP may be taken for UDP.
const portTries = 16

func (l *loopback) join(id transport.Identity, layer *inject.Layer) (all []transport.Provider, err error) {
	for range portTries {
		if all, err = l.open(id, layer); err == nil {
			break
		}
	}
	return all, err
}

// open returns a node's providers.
func (l *loopback) open(id transport.Identity, layer *inject.Layer) (all []transport.Provider, err error) {
	config := l.authority.TLS(l.authority.Issue(id, testca.Forever))
	peers := providers.Config{ServerTLS: config, ClientTLS: config, Identify: testca.Identify}
	at := netip.MustParseAddrPort("127.0.0.1:0")
	if l.tcp {
		p, err := l.openTCP(peers)
		if err != nil {
			return nil, err
		}
		all = append(all, through(layer, p, false))
		at = netip.MustParseAddrPort(p.Addr())
	}
	if l.quic {
		p, err := l.openQUIC(peers, layer, at)
		if err != nil {
			for _, p := range all {
				err = errors.Join(err, p.Close())
			}
			return nil, err
		}
		all = append(all, through(layer, p, true))
	}
	if len(all) == 2 && id.Node[15]%2 == 1 {
		all[0], all[1] = all[1], all[0]
	}
	return all, nil
}

func (l *loopback) openTCP(peers providers.Config) (transport.Provider, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.opened(listener)
	return stream.New(stream.Config{Config: peers, Listener: listener, Plaintext: l.plaintext})
}

func (l *loopback) openQUIC(peers providers.Config, layer *inject.Layer, at netip.AddrPort) (transport.Provider, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	l.opened(conn)
	cfg := quic.Config{Config: peers, PacketConn: conn}
	if raced {
		cfg.PacketConn = &socket{PacketConn: conn, udp: conn, net: l}
	}
	if layer != nil {
		cfg.PacketConn = layer.PacketConn(cfg.PacketConn, faults.Link)
	}
	return quic.New(cfg)
}

func (l *loopback) opened(s io.Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sockets = append(l.sockets, s)
}

// close checks that the nodes have closed their sockets.
func (l *loopback) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sockets {
		if err := s.Close(); err == nil {
			return errors.New("a node left a socket open")
		}
	}
	return nil
}

// A socket takes the network's lock before it sends and after it has received, so that the
// race detector, which knows nothing of packets, learns their order.
type socket struct {
	net.PacketConn // udp, without the methods that would go around the lock
	udp            *net.UDPConn
	net            *loopback
}

func (s *socket) pass() {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
}

// SetReadBuffer and SetWriteBuffer set the kernel's buffers.
func (s *socket) SetReadBuffer(n int) error  { return s.udp.SetReadBuffer(n) }
func (s *socket) SetWriteBuffer(n int) error { return s.udp.SetWriteBuffer(n) }

// WriteTo implements net.PacketConn.
func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	s.pass()
	return s.PacketConn.WriteTo(p, to)
}

// ReadFrom implements net.PacketConn.
func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	defer s.pass()
	return s.PacketConn.ReadFrom(p)
}
