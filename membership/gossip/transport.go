package gossip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/wait"
)

// incoming bounds the streams that others have opened. A stream is one exchange,
// which takes an honest peer far less than Grace.
var incoming = admission.Limits{Total: 96, Reserved: 32, PerAddress: 24, PerNetwork: 48, Grace: 250 * time.Millisecond}

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

	sealer   *sealer
	maxFrame func() int            // bound of a frame that a peer sends unasked, in bytes
	known    func(netip.Addr) bool // see Config.Known
	dropped  *logbound.Summary
	indirect allowance // of the goroutine that reads packets

	mu       sync.Mutex // guards the fields below
	closed   bool
	streams  map[*stream]struct{}
	incoming *admission.Table[*stream] // those that others have opened
}

var _ memberlist.NodeAwareTransport = (*packetTransport)(nil)

func newPacketTransport(cfg *Config, packets net.PacketConn, listener net.Listener, advertise netip.AddrPort, sealer *sealer, maxFrame func() int) *packetTransport {
	t := &packetTransport{
		packets:   packets,
		listener:  listener,
		dial:      cfg.Dial,
		advertise: advertise,
		packetCh:  make(chan *memberlist.Packet),
		streamCh:  make(chan net.Conn),
		sealer:    sealer,
		maxFrame:  maxFrame,
		known:     cfg.Known,
		dropped:   logbound.New(cfg.Log, "gossip packets and streams were dropped"),
		streams:   make(map[*stream]struct{}),
		incoming:  admission.New[*stream](incoming),
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
	s := &stream{Conn: c, t: t, frame: frame{sealer: t.sealer, max: maxFrame}}
	if !t.track(s) {
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
	open := slices.Collect(maps.Keys(t.streams))
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
	t.dropped.Close()
	return err
}

// maxIndirect is how many requests to ping a third member are served in a second.
// Each is a packet to an address that the sender chooses and a goroutine that waits
// for the answer; a member asks three others when one does not answer.
const maxIndirect = 64

var errIndirect = errors.New("too many requests to ping others")

// An allowance bounds how often something is done: maxIndirect times a second, and as
// many at once.
type allowance struct {
	left float64
	at   time.Time
}

// take reports whether n more may be done.
func (a *allowance) take(n int, now time.Time) bool {
	if n == 0 {
		return true
	}
	a.left = min(maxIndirect, a.left+maxIndirect*now.Sub(a.at).Seconds())
	a.at = now
	if float64(n) > a.left {
		return false
	}
	a.left -= float64(n)
	return true
}

// failurePause keeps a loop from spinning on a socket that fails, for example for want of
// descriptors.
const failurePause = 10 * time.Millisecond

func (t *packetTransport) readPackets() {
	buf, scratch := make([]byte, 64<<10), make([]byte, 64<<10)
	for t.ctx.Err() == nil {
		n, from, err := t.packets.ReadFrom(buf)
		if err != nil {
			wait.For(t.ctx.Done(), failurePause)
			continue
		}
		indirect, err := t.sealer.checkPacket(scratch, buf[:n])
		if err == nil && !t.indirect.take(indirect, time.Now()) {
			err = errIndirect
		}
		if err != nil {
			t.dropped.Line(zerolog.InfoLevel, admission.AddressOf(from)).Stringer("remote", from).Err(err).Msg("gossip packet dropped")
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
			wait.For(t.ctx.Done(), failurePause)
			continue
		}
		s := &stream{Conn: c, t: t, frame: frame{sealer: t.sealer, header: t.sealer.header, max: t.maxFrame()}}
		if !t.admit(s) {
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

// admit takes a slot for a stream that a peer has opened, and ends the stream that
// loses its own for it. It closes s and reports false if there is none.
func (t *packetTransport) admit(s *stream) bool {
	from := admission.AddressOf(s.RemoteAddr())
	known := t.known != nil && t.known(from)
	t.mu.Lock()
	evicted, ok := t.incoming.Enter(s, from, known, time.Now())
	t.mu.Unlock()
	if evicted != nil {
		evicted.Close()
	}
	if !ok {
		s.Close()
		return false
	}
	return t.track(s)
}

// track takes charge of s. When the transport is shut down it closes s and reports
// false.
func (t *packetTransport) track(s *stream) bool {
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.streams[s] = struct{}{}
	}
	t.mu.Unlock()
	if closed {
		s.Close()
	}
	return !closed
}

// A stream is a connection that its transport counts, and from which nothing but one
// frame is read.
type stream struct {
	net.Conn
	t     *packetTransport
	frame frame
}

// Read reads from the frame that the peer sends. It logs why one that a peer has opened has none.
func (s *stream) Read(p []byte) (int, error) {
	opened := s.frame.header != nil && !s.frame.began
	n, err := s.frame.read(s.Conn, p)
	if opened && err != nil && err != io.EOF && s.t.ctx.Err() == nil {
		s.t.dropped.Line(zerolog.InfoLevel, admission.AddressOf(s.RemoteAddr())).Stringer("remote", s.RemoteAddr()).Err(err).Msg("gossip stream dropped")
	}
	return n, err
}

// Close closes the connection.
func (s *stream) Close() error {
	s.t.mu.Lock()
	delete(s.t.streams, s)
	s.t.incoming.Leave(s)
	s.t.mu.Unlock()
	return s.Conn.Close()
}
