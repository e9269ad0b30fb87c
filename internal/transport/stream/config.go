// Package stream is the transport provider over TCP, for where UDP does not pass:
// a session is one TCP connection with TLS, and each of its lanes is a stream of
// yamux in it.
//
// A connection begins with a TLS handshake in which both ends show certificates,
// and a HELLO from each. Behind them comes yamux. The dialer opens its first
// stream, which carries both ends' control frames: datagrams, how many lanes are
// over, and why the session ends. Every further stream is a lane, used in one
// direction: its writer opens it, its reader closes the other half at once. A lane
// that ends is closed, one that is canceled is reset.
//
// # Without TLS
//
// Where both ends are configured for it, TLS only proves who they are: behind the
// hellos the connection goes on without it. Then a reader of packets can read what
// the session carries, and who changes or injects packets changes that too. Nobody
// without a certificate begins a session. Nothing of membership goes over a session.
// Ends that differ in the setting refuse each other.
//
// # Memory
//
// A peer makes this side hold at most Config.LaneWindow bytes of a lane. When its
// session has Config.SessionWindow bytes that nobody has read, no more are read from
// the connection. A lane that waits to be written has a buffer of 64 KiB, the
// connection a queue of 64 frames of as many bytes.
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

// Bounds of the windows, in bytes, and of the lanes.
const (
	minWindow = 256 << 10 // yamux begins with so many
	maxWindow = 1 << 30
	maxLanes  = 1 << 16
)

// Config configures a provider. ServerTLS, ClientTLS, Identify and one of
// Listener and Address are required; zero elsewhere means the default.
type Config struct {
	// Listener accepts connections; the provider owns it and closes it. Nil: one
	// is opened at Address, "ip:port".
	Listener net.Listener
	Address  string

	// Dial opens a connection to "host:port". Nil: a net.Dialer does.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// ServerTLS and ClientTLS return the configuration of the next handshake,
	// so that certificates and authorities rotate. They must demand and verify
	// the peer's certificate. The provider copies what they return and sets
	// the protocol, TLS 1.3, and no session tickets.
	ServerTLS, ClientTLS func() *tls.Config

	// Identify says whom a verified certificate names, or why the peer is
	// refused. The peer gets the error's text, and its code if the error is a
	// *transport.CloseError, else CodeWrongCluster.
	Identify func(tls.ConnectionState) (transport.Identity, error)

	// Plaintext makes sessions go without TLS behind the hellos. A peer that has
	// another setting is refused.
	Plaintext bool

	HandshakeTimeout time.Duration // bounds Dial and an incoming handshake. 0: 2 s

	// LaneWindow is how many bytes a lane takes before it is read, once it has shown
	// that it needs them: a lane begins with 256 KiB, the least. 0: 8 MiB, which is
	// what a way of 25 ms has under way at 2.5 Gbit/s.
	LaneWindow int
	// SessionWindow is how many bytes of all lanes may wait to be read; from 256 KiB
	// to 1 GiB. 0: 64 MiB.
	SessionWindow int

	// MaxLanes bounds the open lanes that a peer has towards here, in one
	// session. A lane counts until it was read to its end or canceled. A
	// connection of the fabric takes two in each direction: the default has room
	// for 10,000, and for as many more that have not ended yet. At most 65536.
	// 0: 32768.
	MaxLanes int

	// MaxHandshakes bounds the incoming handshakes under way; further ones are
	// closed. As many sessions more may wait for Accept. The strangers of one address
	// hold a quarter of it, those of one network (/24, /64) three eighths, and Known
	// peers have a share of their own. 0: 256.
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
	c.LaneWindow = cmp.Or(c.LaneWindow, 8<<20)
	c.SessionWindow = cmp.Or(c.SessionWindow, 64<<20)
	c.MaxLanes = cmp.Or(c.MaxLanes, 32768)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 256)
	switch {
	case c.HandshakeTimeout < 0 || c.MaxLanes < 1 || c.MaxHandshakes < 1:
		return c, errors.New("tcp: timeouts and limits must be positive")
	case c.LaneWindow < minWindow || c.SessionWindow < minWindow || c.LaneWindow > maxWindow || c.SessionWindow > maxWindow:
		return c, errors.New("tcp: windows must be from 256 KiB to 1 GiB")
	case c.MaxLanes > maxLanes:
		return c, errors.New("tcp: at most 65536 lanes")
	}
	return c, nil
}

// tls returns how both ends of a session prove who they are.
func (c *Config) tls() network.TLS {
	return network.TLS{Provider: "tcp", ALPN: ALPN, Server: c.ServerTLS, Client: c.ClientTLS, Now: c.Now}
}
