package gossip

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Bounds of what strangers can make us hold open. Members on one machine share
// its address, so the bound per address is generous.
const (
	maxStreams        = 64
	maxStreamsPerAddr = 32
)

// A packetTransport carries memberlist's packets and streams over any packet
// socket, listener and dial function: real sockets in a fabricd, simulated ones
// in a bubble. memberlist's own NetTransport binds sockets itself and allocates
// 64 KiB for every packet that it receives.
//
// It knows every stream of memberlist, incoming and outgoing, and ends them in
// Shutdown: memberlist itself would wait for their timeouts.
type packetTransport struct {
	packets   net.PacketConn
	listener  net.Listener
	dial      func(ctx context.Context, address string) (net.Conn, error)
	advertise netip.AddrPort

	packetCh chan *memberlist.Packet
	streamCh chan net.Conn

	ctx    context.Context // ends at Shutdown
	cancel context.CancelFunc
	wg     sync.WaitGroup // the two loops

	mu      sync.Mutex // guards the fields below
	closed  bool
	streams map[*stream]struct{}
	perAddr map[string]int // incoming streams by the peer's address
}

var _ memberlist.NodeAwareTransport = (*packetTransport)(nil)

func newPacketTransport(cfg *Config, packets net.PacketConn, listener net.Listener, advertise netip.AddrPort) *packetTransport {
	t := &packetTransport{
		packets:   packets,
		listener:  listener,
		dial:      cfg.Dial,
		advertise: advertise,
		packetCh:  make(chan *memberlist.Packet),
		streamCh:  make(chan net.Conn),
		streams:   make(map[*stream]struct{}),
		perAddr:   make(map[string]int),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.wg.Go(t.readPackets)
	t.wg.Go(t.acceptStreams)
	return t
}

// FinalAdvertiseAddr returns the address that was chosen at Start.
func (t *packetTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().AsSlice(), int(t.advertise.Port()), nil
}

// WriteTo sends b to address, "ip:port".
func (t *packetTransport) WriteTo(b []byte, address string) (time.Time, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return time.Time{}, fmt.Errorf("gossip packet to %q: %w", address, err)
	}
	_, err = t.packets.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return time.Now(), err
}

// WriteToAddress is WriteTo.
func (t *packetTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// PacketCh returns the channel of received packets.
func (t *packetTransport) PacketCh() <-chan *memberlist.Packet { return t.packetCh }

// StreamCh returns the channel of accepted streams.
func (t *packetTransport) StreamCh() <-chan net.Conn { return t.streamCh }

// DialTimeout opens a stream.
func (t *packetTransport) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	c, err := t.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	s, ok := t.track(c, "")
	if !ok {
		return nil, net.ErrClosed
	}
	return s, nil
}

// DialAddressTimeout is DialTimeout.
func (t *packetTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// Shutdown closes the sockets and every stream, and waits for the two loops.
func (t *packetTransport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	open := make([]*stream, 0, len(t.streams))
	for s := range t.streams {
		open = append(open, s)
	}
	t.mu.Unlock()

	t.cancel()
	err := t.packets.Close()
	if e := t.listener.Close(); err == nil {
		err = e
	}
	for _, s := range open {
		s.Close()
	}
	t.wg.Wait()
	return err
}

func (t *packetTransport) readPackets() {
	buf := make([]byte, 64<<10)
	for t.ctx.Err() == nil {
		n, from, err := t.packets.ReadFrom(buf)
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		if n == 0 {
			continue
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		select {
		case t.packetCh <- p:
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *packetTransport) acceptStreams() {
	for t.ctx.Err() == nil {
		c, err := t.listener.Accept()
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		s, ok := t.track(c, host(c.RemoteAddr()))
		if !ok {
			continue
		}
		select {
		case t.streamCh <- s:
		case <-t.ctx.Done():
			s.Close()
			return
		}
	}
}

// pause keeps a loop from spinning on a socket that fails, for example for want
// of descriptors. It reports false when the transport is shut down.
func (t *packetTransport) pause() bool {
	select {
	case <-t.ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

func host(a net.Addr) string {
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return h
}

// track takes charge of c. from is the peer's host for an incoming stream, else
// empty. When a bound is reached or the transport is shut down it closes c and
// reports false.
func (t *packetTransport) track(c net.Conn, from string) (*stream, bool) {
	s := &stream{Conn: c, t: t, from: from}
	t.mu.Lock()
	refuse := t.closed
	if from != "" && (len(t.streams) >= maxStreams || t.perAddr[from] >= maxStreamsPerAddr) {
		refuse = true
	}
	if !refuse {
		t.streams[s] = struct{}{}
		if from != "" {
			t.perAddr[from]++
		}
	}
	t.mu.Unlock()
	if refuse {
		c.Close()
		return nil, false
	}
	return s, true
}

// A stream is a connection that its transport counts.
type stream struct {
	net.Conn
	t    *packetTransport
	from string
	once sync.Once
}

// Close closes the connection.
func (s *stream) Close() error {
	s.once.Do(func() {
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		delete(s.t.streams, s)
		if s.from == "" {
			return
		}
		if s.t.perAddr[s.from]--; s.t.perAddr[s.from] == 0 {
			delete(s.t.perAddr, s.from)
		}
	})
	return s.Conn.Close()
}
