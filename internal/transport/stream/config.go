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
	"errors"
	"fmt"
	"net"

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

// Config configures a provider. One of Listener and Address is required; zero elsewhere means the
// default. As many sessions as MaxHandshakes may wait for Accept.
type Config struct {
	network.Config // at most 65536 streams

	// Listener accepts connections; the provider owns it and closes it. Nil: one
	// is opened at Address, "ip:port".
	Listener net.Listener
	Address  string

	// Dial opens a connection to "host:port". Nil: use a net.Dialer.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Plaintext makes sessions continue without TLS after the hellos. A peer with another setting
	// is refused.
	Plaintext bool

	// StreamWindow is the largest number of unread bytes of a stream, reached if it proves to need
	// them: a stream begins with 256 KiB, the least. 0: 8 MiB, the bytes in flight on a path with a
	// round trip of 25 ms at 2.5 Gbit/s.
	StreamWindow int
	// SessionWindow is the largest number of unread bytes of all streams; from 256 KiB to 1 GiB. 0:
	// 64 MiB.
	SessionWindow int
}

// withDefaults checks c and returns it with every zero resolved.
func (c Config) withDefaults() (Config, error) {
	if err := c.Config.Resolve(); err != nil {
		return c, fmt.Errorf("tcp: %w", err)
	}
	if c.Listener == nil && c.Address == "" {
		return c, errors.New("tcp: Listener or Address is required")
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}
	c.StreamWindow = cmp.Or(c.StreamWindow, 8<<20)
	c.SessionWindow = cmp.Or(c.SessionWindow, 64<<20)
	switch {
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
