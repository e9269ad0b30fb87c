// Package quic is the transport provider over QUIC: one UDP socket, one QUIC
// connection per session, one unidirectional stream per lane.
//
// A session exists only after both sides have verified each other. TLS 1.3
// alone does not give that: a client's handshake is complete before the server
// has looked at the client's certificate. Each side therefore opens a first
// stream of one byte, the confirmation, once it has accepted the other's
// identity, and waits for the other's.
//
// # Flow control and memory
//
// Lanes share the connection's window. The peer can make this side hold at
// most Config.ConnectionWindow bytes per session that nobody has read, and at
// most Config.StreamWindow in one lane that is never read: a stream's window
// grows, up to MaxStreamWindow, only as far as its reader reads. With the
// defaults 32 lanes may stand full and unread before they gate the others.
// The user of sessions keeps below that with credit of its own: it reads
// every lane into bounded buffers. Memory is used only for bytes that have
// arrived; a window is a promise, not an allocation.
//
// Lanes cost memory before any byte: one packet of the peer that names its last
// lane makes quic-go open all before it, less than 1 KiB each, and they stay
// until they were accepted and ended. With the default of Config.MaxLanes that
// is 32 MiB for one session with an authenticated peer, half of what
// Config.ConnectionWindow lets it hold anyway. The acceptor of lanes bounds what
// it spends on those that say nothing; the engine has 1024 of them.
//
// # A way that comes and goes
//
// QUIC probes a way that has fallen silent at intervals that double, and finds
// it open late. While a datagram of a session finds no answer, the provider
// sends the session's last packets again every 100 to 150 ms, at most 20 and
// 4 KiB of them, unchanged: a sender of datagrams on a silent session knows
// within that time, two round trips and 25 ms that the way is open. See tail.go.
package quic

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// ALPN is the protocol name in the TLS handshake.
const ALPN = "fabricd/1"

// Config configures a provider. ServerTLS, ClientTLS, Identify and one of
// PacketConn and Address are required; zero elsewhere means the default.
type Config struct {
	// PacketConn is the socket; the provider owns it and closes it. Nil: a UDP
	// socket is opened at Address, "ip:port".
	PacketConn net.PacketConn
	Address    string

	// ServerTLS and ClientTLS return the configuration of the next handshake,
	// so that certificates and authorities rotate. They must demand and verify
	// the peer's certificate. The provider copies what they return and sets
	// the protocol, TLS 1.3, and no session tickets. A ServerName goes over
	// the wire where anyone can decrypt it: verify by certificate instead.
	ServerTLS, ClientTLS func() *tls.Config

	// Identify says whom a verified certificate names, or why the peer is
	// refused. The peer gets the error's text, and its code if the error is a
	// *transport.CloseError, else CodeWrongCluster.
	Identify func(tls.ConnectionState) (transport.Identity, error)

	// StatelessResetKey lets the next life of this node tell its old peers
	// that their sessions are gone. Keep it on disk. Nil: they time out.
	StatelessResetKey *[32]byte

	HandshakeTimeout time.Duration // bounds Dial and an incoming handshake. 0: 2 s
	IdleTimeout      time.Duration // silence after which a session ends. 0: 5 s

	StreamWindow     uint64 // bytes that a lane takes before it is read. 0: 2 MiB
	MaxStreamWindow  uint64 // the same while it is read fast. 0: 8 MiB
	ConnectionWindow uint64 // bytes of all lanes together. 0: 64 MiB

	// MaxLanes bounds the open lanes that a peer has towards here, in one
	// session. A lane counts until it was read to its end or canceled. A
	// connection of the fabric takes two in each direction: the default has room
	// for 10,000, and for as many more that have not ended yet. 0: 32768.
	MaxLanes int

	// MaxHandshakes bounds the incoming handshakes under way, sessions that
	// wait for Accept included; further ones are refused. Beyond 16, or a quarter of
	// it, peers must first prove that their address is real. The strangers of one
	// address hold a quarter of it, those of one network (/24, /64) three eighths, and
	// Known peers have a share of their own. 0: 256.
	MaxHandshakes int
	// Known reports whether a member of the cluster is, or was, at an address. It
	// must not wait. Nil: none is known.
	Known func(netip.Addr) bool

	Log     zerolog.Logger   // refused peers are logged as warnings
	Refused func()           // is called for each of them; it must not wait. Nil: nobody counts
	Now     func() time.Time // for certificates. Nil: time.Now
}

// withDefaults checks c and returns it with every zero resolved.
func (c Config) withDefaults() (Config, error) {
	if c.ServerTLS == nil || c.ClientTLS == nil || c.Identify == nil {
		return c, errors.New("quic: ServerTLS, ClientTLS and Identify are required")
	}
	if c.PacketConn == nil && c.Address == "" {
		return c, errors.New("quic: PacketConn or Address is required")
	}
	if c.Refused == nil {
		c.Refused = func() {}
	}
	if c.Known == nil {
		c.Known = func(netip.Addr) bool { return false }
	}
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 2*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Second)
	c.StreamWindow = cmp.Or(c.StreamWindow, 2<<20)
	c.MaxStreamWindow = cmp.Or(c.MaxStreamWindow, max(8<<20, c.StreamWindow))
	c.ConnectionWindow = cmp.Or(c.ConnectionWindow, max(64<<20, c.MaxStreamWindow))
	c.MaxLanes = cmp.Or(c.MaxLanes, 32768)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 256)
	if c.HandshakeTimeout < 0 || c.IdleTimeout < 0 || c.MaxLanes < 1 || c.MaxHandshakes < 1 {
		return c, errors.New("quic: timeouts and limits must be positive")
	}
	return c, nil
}

// quicConfig returns the settings of every connection.
func (c *Config) quicConfig() *quicgo.Config {
	return &quicgo.Config{
		HandshakeIdleTimeout:           c.HandshakeTimeout,
		MaxIdleTimeout:                 c.IdleTimeout,
		InitialStreamReceiveWindow:     c.StreamWindow,
		MaxStreamReceiveWindow:         c.MaxStreamWindow,
		InitialConnectionReceiveWindow: c.ConnectionWindow,
		MaxConnectionReceiveWindow:     c.ConnectionWindow,
		MaxIncomingStreams:             -1, // lanes have one direction
		MaxIncomingUniStreams:          int64(c.MaxLanes),
		EnableDatagrams:                true,
		// No keep-alive: its packets are too small to be answered with a
		// stateless reset. Heartbeats are datagrams, sent from above.
	}
}

// tls returns how both ends of a session prove who they are. panicked may be nil.
func (c *Config) tls(panicked func(err error, stack []byte)) network.TLS {
	// quic-go verifies on a goroutine of its own.
	return network.TLS{Provider: "quic", ALPN: ALPN, Server: c.ServerTLS, Client: c.ClientTLS, Now: c.Now, Panicked: panicked}
}

// GrowBuffers asks the kernel for the receive and send buffers that a fast link
// needs. It gives what its limits allow, which [BufferWarning] judges.
func GrowBuffers(conn *net.UDPConn) {
	// Less than asked for is no error to the kernel, and none of ours.
	_ = conn.SetReadBuffer(wantedBuffer)
	_ = conn.SetWriteBuffer(wantedBuffer)
}

// BufferWarning returns a sentence for operators if the kernel gave conn less
// receive or send buffer than a fast link needs, else "".
func BufferWarning(conn *net.UDPConn) string {
	raw, err := conn.SyscallConn()
	if err != nil {
		return ""
	}
	recv, send, err := socketBuffers(raw)
	if err != nil || min(recv, send) >= wantedBuffer {
		return ""
	}
	return fmt.Sprintf("UDP buffers are %d KiB to receive and %d KiB to send; "+
		"set net.core.rmem_max and net.core.wmem_max to 7500000", recv>>10, send>>10)
}

// wantedBuffer is what quic-go asks the kernel for, in bytes.
const wantedBuffer = 7 << 20
