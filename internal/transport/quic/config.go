// Package quic is the transport provider over QUIC: one UDP socket, one QUIC
// connection per session, one unidirectional stream per stream.
//
// A session exists only after both sides have verified each other. TLS 1.3 alone does not ensure
// that: a client's handshake is complete before the server has verified the client's certificate.
// Each side therefore opens a first stream of one byte, the confirmation, once it has accepted the
// other's identity, and waits for the other's.
//
// # Flow control and memory
//
// Streams share the connection's window. The peer can make this side hold at most
// Config.ConnectionWindow unread bytes per session, and at most Config.StreamWindow in one stream
// that is never read: a stream's window grows, up to MaxStreamWindow, only as far as its reader
// reads. With the defaults 32 streams may be full and unread before they block the others. The user
// of sessions stays below that with its own credit: it reads every stream into bounded buffers.
// Memory is used only for bytes that have arrived; a window allocates none.
//
// Streams cost memory before their first byte: one packet of the peer that names its last stream makes
// quic-go open all streams before it, less than 1 KiB each, and they stay until they were accepted
// and ended. With the default of Config.MaxStreams that is 32 MiB for one session with an
// authenticated peer, half of the bytes that Config.ConnectionWindow permits anyway. The acceptor
// of streams bounds those without a first frame; the engine permits 1024.
//
// # Flapping paths
//
// QUIC probes a silent path at intervals that double, and so detects late that it is open again.
// While a datagram of a session is unacknowledged, the provider resends the session's last packets
// unchanged every 100 to 150 ms, at most 20 packets and 4 KiB: a sender of datagrams on a silent
// session detects an open path within that time, two round trips and 25 ms. See tail.go.
package quic

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/transport/network"
)

// ALPN is the protocol name in the TLS handshake.
const ALPN = "fabricd/1"

// Config configures a provider. One of PacketConn and Address is required; zero elsewhere means the
// default.
type Config struct {
	network.Config

	// PacketConn is the socket; the provider owns it and closes it. Nil: a UDP
	// socket is opened at Address, "ip:port".
	PacketConn net.PacketConn
	Address    string

	// StatelessResetKey lets the next incarnation of this node reset its old peers' sessions. Keep
	// it on disk. Nil: those sessions time out.
	StatelessResetKey *[32]byte

	IdleTimeout time.Duration // silence after which a session ends. 0: 5 s

	StreamWindow     uint64 // unread bytes of a stream. 0: 2 MiB
	MaxStreamWindow  uint64 // the same while the stream is read fast. 0: 8 MiB
	ConnectionWindow uint64 // unread bytes of all streams. 0: 64 MiB
}

// withDefaults checks c and returns it with every zero resolved.
func (c Config) withDefaults() (Config, error) {
	if err := c.Config.Resolve(); err != nil {
		return c, fmt.Errorf("quic: %w", err)
	}
	if c.PacketConn == nil && c.Address == "" {
		return c, errors.New("quic: PacketConn or Address is required")
	}
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Second)
	c.StreamWindow = cmp.Or(c.StreamWindow, 2<<20)
	c.MaxStreamWindow = cmp.Or(c.MaxStreamWindow, max(8<<20, c.StreamWindow))
	c.ConnectionWindow = cmp.Or(c.ConnectionWindow, max(64<<20, c.MaxStreamWindow))
	if c.IdleTimeout < 0 {
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
		MaxIncomingStreams:             -1, // streams have one direction
		MaxIncomingUniStreams:          int64(c.MaxStreams),
		EnableDatagrams:                true,
		// No keep-alive: its packets are too small to be answered with a
		// stateless reset. Heartbeats are datagrams, sent from above.
	}
}

// tls returns the configuration of mutual authentication.
func (c *Config) tls(panicked func(err error, stack []byte)) network.TLS {
	// quic-go verifies on a goroutine of its own.
	return network.TLS{Provider: "quic", ALPN: ALPN, Server: c.ServerTLS, Client: c.ClientTLS, Panicked: panicked}
}

// GrowBuffers asks the kernel for the receive and send buffers that a fast link needs. The kernel
// grants its limits, which [BufferWarning] checks.
func GrowBuffers(conn *net.UDPConn) {
	// Less than requested is an error neither for the kernel nor here.
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

// wantedBuffer is the size that quic-go requests from the kernel, in bytes.
const wantedBuffer = 7 << 20
