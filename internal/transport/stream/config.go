// Package stream is the transport provider over TCP, for networks that block UDP: a session is one
// TCP connection with TLS, and each of its streams is a yamux stream in it.
//
// A connection begins with a TLS handshake in which both ends present certificates, and a HELLO
// from each. Then yamux starts. The dialer opens its first stream, which carries both ends' control
// frames: datagrams, the number of streams that are over, and the reason of the session's end. Every
// further stream is a stream, used in one direction: its writer opens it, its reader closes the other
// half at once. A stream that ends is closed, a canceled one is reset.
//
// # Without TLS
//
// If both ends are configured for it, TLS only authenticates them: after the hellos the connection
// continues without it. Then a host on the path can read and change the session's bytes, and inject
// others. No peer without a certificate begins a session. Nothing of membership goes over a
// session. Ends with different settings refuse each other.
//
// # Memory
//
// A peer makes this side hold at most Config.StreamWindow bytes of a stream. While its session has
// Config.SessionWindow unread bytes, no more are read from the connection. A stream with bytes to
// write has a buffer of 64 KiB, the connection a queue of 64 frames of as many bytes.
package stream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

// ALPN is the protocol's name in the TLS handshake.
const ALPN = "fabricd-stream/1"

// Bounds of the windows, in bytes, and of the streams.
const (
	minWindow  = 256 << 10 // yamux's initial window
	maxWindow  = 1 << 30
	maxStreams = 1 << 16
)

// Config configures a provider. ServerTLS, ClientTLS, Identify and one of
// Listener and Address are required; zero elsewhere means the default.
type Config struct {
	// Listener accepts connections; the provider owns it and closes it. Nil: one
	// is opened at Address, "ip:port".
	Listener net.Listener
	Address  string

	// Dial opens a connection to "host:port". Nil: use a net.Dialer.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// ServerTLS and ClientTLS return the configuration of the next handshake, so that certificates
	// and authorities rotate. They must demand and verify the peer's certificate. The provider
	// copies the result and sets the protocol, TLS 1.3, and no session tickets.
	ServerTLS, ClientTLS func() *tls.Config

	// Identify returns the identity in a verified certificate, or why the peer is refused. The peer
	// gets the error's text, and its code if the error is a *transport.CloseError, else
	// CodeWrongCluster.
	Identify func(tls.ConnectionState) (transport.Identity, error)

	// Plaintext makes sessions continue without TLS after the hellos. A peer with another setting
	// is refused.
	Plaintext bool

	HandshakeTimeout time.Duration // bounds Dial and an incoming handshake. 0: 2 s

	// StreamWindow is the largest number of unread bytes of a stream, reached if it proves to need
	// them: a stream begins with 256 KiB, the least. 0: 8 MiB, the bytes in flight on a path with a
	// round trip of 25 ms at 2.5 Gbit/s.
	StreamWindow int
	// SessionWindow is the largest number of unread bytes of all streams; from 256 KiB to 1 GiB. 0:
	// 64 MiB.
	SessionWindow int

	// MaxStreams bounds the open streams of a peer towards this node, in one session. A stream counts
	// until it was read to its end or canceled. A connection of the fabric takes two in each
	// direction: the default suffices for 10,000, and for as many more that have not ended yet. At
	// most 65536. 0: 32768.
	MaxStreams int

	// MaxHandshakes bounds the incoming handshakes in progress; further ones are closed. As many
	// more sessions may wait for Accept. Peers that are not Known hold at most a quarter of it per
	// address, and three eighths per network (/24, /64). Known peers have a share of their own. 0:
	// 256.
	MaxHandshakes int
	// Known reports whether a member of the cluster is, or was, at an address. It must not wait.
	// Nil: no address is known.
	Known func(netip.Addr) bool

	Log     zerolog.Logger // refused peers are logged as warnings
	Refused func()         // called for each of them; it must not wait. Nil: not counted
}

// withDefaults checks c and returns it with every zero resolved.
func (c Config) withDefaults() (Config, error) {
	if c.ServerTLS == nil || c.ClientTLS == nil || c.Identify == nil {
		return c, errors.New("tcp: ServerTLS, ClientTLS and Identify are required")
	}
	if c.Listener == nil && c.Address == "" {
		return c, errors.New("tcp: Listener or Address is required")
	}
	if c.Refused == nil {
		c.Refused = func() {}
	}
	if c.Known == nil {
		c.Known = func(netip.Addr) bool { return false }
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 2*time.Second)
	c.StreamWindow = cmp.Or(c.StreamWindow, 8<<20)
	c.SessionWindow = cmp.Or(c.SessionWindow, 64<<20)
	c.MaxStreams = cmp.Or(c.MaxStreams, 32768)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 256)
	switch {
	case c.HandshakeTimeout < 0 || c.MaxStreams < 1 || c.MaxHandshakes < 1:
		return c, errors.New("tcp: timeouts and limits must be positive")
	case c.StreamWindow < minWindow || c.SessionWindow < minWindow || c.StreamWindow > maxWindow || c.SessionWindow > maxWindow:
		return c, errors.New("tcp: windows must be from 256 KiB to 1 GiB")
	case c.MaxStreams > maxStreams:
		return c, errors.New("tcp: at most 65536 streams")
	}
	return c, nil
}

// tls returns the configuration of mutual authentication.
func (c *Config) tls() network.TLS {
	return network.TLS{Provider: "tcp", ALPN: ALPN, Server: c.ServerTLS, Client: c.ClientTLS}
}
