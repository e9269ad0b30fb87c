package fabrictest

import (
	"errors"
	"net"
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/quic"
)

// A loopback is QUIC over the loopback interface.
type loopback struct {
	authority *authority

	// mu guards the fields below and those of every socket. A socket takes it
	// before it sends and after it has received, so that the race detector,
	// which knows nothing of packets, learns their order.
	mu      sync.Mutex
	sockets map[addr.UUID]*socket // of each node's latest incarnation
}

func newLoopback() (*loopback, error) {
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	return &loopback{authority: a, sockets: make(map[addr.UUID]*socket)}, nil
}

func (l *loopback) join(id transport.Identity, layer *inject.Layer) ([]transport.Provider, error) {
	p, err := l.open(id, layer, 0)
	if err != nil {
		return nil, err
	}
	return []transport.Provider{p}, nil
}

// open returns a node's provider at a port, 0 for any that is free.
func (l *loopback) open(id transport.Identity, layer *inject.Layer, port int) (transport.Provider, error) {
	cfg, err := l.authority.config(id)
	if err != nil {
		return nil, err
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return nil, err
	}
	s := &socket{PacketConn: conn, udp: conn, net: l, cut: make(map[string]bool)}
	switch {
	case layer != nil:
		cfg.PacketConn = layer.PacketConn(s, faults.Link)
	case raced:
		cfg.PacketConn = s // which has a lock that it knows
	default:
		cfg.PacketConn = conn
	}
	p, err := quic.New(cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sockets[id.Node] = s
	return through(layer, p, true), nil
}

func (l *loopback) crash(id transport.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sockets[id.Node]; s != nil {
		s.dead = true
	}
}

func (l *loopback) cut(a, b transport.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sa, sb := l.sockets[a.Node], l.sockets[b.Node]
	if sa != nil && sb != nil {
		sa.cut[sb.LocalAddr().String()] = true
		sb.cut[sa.LocalAddr().String()] = true
	}
}

func (l *loopback) mend(a, b transport.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sa, sb := l.sockets[a.Node], l.sockets[b.Node]
	if sa != nil && sb != nil {
		delete(sa.cut, sb.LocalAddr().String())
		delete(sb.cut, sa.LocalAddr().String())
	}
}

// close checks that the nodes have closed their sockets.
func (l *loopback) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open error
	for _, s := range l.sockets {
		if err := s.PacketConn.Close(); err == nil {
			open = errors.Join(open, errors.New("a node left its socket open: "+s.LocalAddr().String()))
		}
	}
	return open
}

// A socket is a node's UDP socket, which can fall silent.
type socket struct {
	net.PacketConn // udp, without the methods that would go around silent
	udp            *net.UDPConn
	net            *loopback

	dead bool            // nothing passes any more; guarded by net.mu
	cut  map[string]bool // addresses that nothing passes to or from; guarded by net.mu
}

// silent reports whether a packet to or from peer is lost.
func (s *socket) silent(peer net.Addr) bool {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	return s.dead || len(s.cut) > 0 && s.cut[peer.String()]
}

// SetReadBuffer and SetWriteBuffer set the kernel's buffers.
func (s *socket) SetReadBuffer(n int) error  { return s.udp.SetReadBuffer(n) }
func (s *socket) SetWriteBuffer(n int) error { return s.udp.SetWriteBuffer(n) }

// WriteTo sends p, or loses it.
func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	if s.silent(to) {
		return len(p), nil
	}
	return s.PacketConn.WriteTo(p, to)
}

// ReadFrom returns the next packet that is not lost.
func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := s.PacketConn.ReadFrom(p)
		if err != nil || !s.silent(from) {
			return n, from, err
		}
	}
}
