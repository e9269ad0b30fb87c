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
// it spends on those that say nothing; the driver has 1024 of them.
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
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/transport"
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

	panics *logbound.Summary // of the provider
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
	c.panics = logbound.New(c.Log, "sessions over quic ended with an internal error")
	setDefault(&c.HandshakeTimeout, 2*time.Second)
	setDefault(&c.IdleTimeout, 5*time.Second)
	setDefault(&c.StreamWindow, 2<<20)
	setDefault(&c.MaxStreamWindow, max(8<<20, c.StreamWindow))
	setDefault(&c.ConnectionWindow, max(64<<20, c.MaxStreamWindow))
	setDefault(&c.MaxLanes, 32768)
	setDefault(&c.MaxHandshakes, 256)
	if c.HandshakeTimeout < 0 || c.IdleTimeout < 0 || c.MaxLanes < 1 || c.MaxHandshakes < 1 {
		return c, errors.New("quic: timeouts and limits must be positive")
	}
	return c, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
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

// serverTLS returns the configuration for incoming handshakes.
func (c *Config) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{ALPN},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			t := c.ServerTLS().Clone()
			if t.ClientAuth != tls.RequireAndVerifyClientCert &&
				(t.ClientAuth != tls.RequireAnyClientCert || t.VerifyPeerCertificate == nil && t.VerifyConnection == nil) {
				return nil, errors.New("quic: ServerTLS does not verify the client's certificate")
			}
			c.harden(t)
			return t, nil
		},
	}
}

// clientTLS returns the configuration for one Dial.
func (c *Config) clientTLS() (*tls.Config, error) {
	t := c.ClientTLS().Clone()
	if t.InsecureSkipVerify && t.VerifyPeerCertificate == nil && t.VerifyConnection == nil {
		return nil, errors.New("quic: ClientTLS does not verify the server's certificate")
	}
	c.harden(t)
	return t, nil
}

// harden sets what is not the caller's choice: no tickets, hence no 0-RTT,
// hence nothing to replay.
func (c *Config) harden(t *tls.Config) {
	t.MinVersion = tls.VersionTLS13
	t.NextProtos = []string{ALPN}
	t.SessionTicketsDisabled = true
	t.ClientSessionCache = nil
	if c.Now != nil {
		t.Time = c.Now
	}
	// quic-go calls these on a goroutine of its own.
	if verify := t.VerifyPeerCertificate; verify != nil {
		t.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
			return c.guarded(func() error { return verify(raw, chains) })
		}
	}
	if verify := t.VerifyConnection; verify != nil {
		t.VerifyConnection = func(cs tls.ConnectionState) error {
			return c.guarded(func() error { return verify(cs) })
		}
	}
}

// guarded calls verify, and makes a panic the refusal of the peer.
func (c *Config) guarded(verify func() error) (err error) {
	defer guard.Recover(func(e error, stack []byte) {
		c.panicked(nil, e, stack)
		err = e
	})
	return verify()
}

// panicked logs, within bounds, a panic of what serves a peer.
func (c *Config) panicked(peer net.Addr, err error, stack []byte) {
	e := c.panics.Line(zerolog.ErrorLevel, netip.Addr{}).Err(err).Bytes("stack", stack)
	if peer != nil {
		e = e.Stringer("peer", peer)
	}
	e.Msg("BUG: quic: what serves a peer has panicked; its session ends")
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
