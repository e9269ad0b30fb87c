package network

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/transport"
)

// Config is the part of a provider's configuration that concerns its peers. ServerTLS, ClientTLS
// and Identify are required; zero elsewhere means the default.
type Config struct {
	// ServerTLS and ClientTLS return the configuration of the next handshake, so that certificates
	// and authorities rotate. They must demand and verify the peer's certificate. The provider
	// copies the result and sets the protocol, TLS 1.3, and no session tickets. Any observer of QUIC
	// can decrypt a ServerName on the wire: verify by certificate instead.
	ServerTLS, ClientTLS func() *tls.Config

	// Identify returns the identity in a verified certificate, or why the peer is refused. The peer
	// gets the error's text, and its code if the error is a *transport.CloseError, else
	// CodeWrongCluster.
	Identify func(tls.ConnectionState) (transport.Identity, error)

	HandshakeTimeout time.Duration // bounds Dial and an incoming handshake. 0: 2 s

	// MaxStreams bounds the open streams of a peer towards this node, in one session. A stream counts
	// until it was read to its end or canceled. A connection of the fabric takes two in each
	// direction: the default suffices for 10,000, and for as many more that have not ended yet. 0:
	// 32768.
	MaxStreams int

	// MaxHandshakes bounds the incoming handshakes in progress; further ones are refused. Peers that
	// are not Known hold at most a quarter of it per address, and three eighths per network (/24,
	// /64). Known peers have a share of their own. 0: 256.
	MaxHandshakes int
	// Known reports whether a member of the cluster is, or was, at an address. It must not wait.
	// Nil: no address is known.
	Known func(netip.Addr) bool

	Log     zerolog.Logger // refused peers are logged as warnings
	Refused func()         // called for each of them; it must not wait. Nil: not counted
}

// Resolve checks c and replaces every zero by its default.
func (c *Config) Resolve() error {
	if c.ServerTLS == nil || c.ClientTLS == nil || c.Identify == nil {
		return errors.New("ServerTLS, ClientTLS and Identify are required")
	}
	if c.Refused == nil {
		c.Refused = func() {}
	}
	if c.Known == nil {
		c.Known = func(netip.Addr) bool { return false }
	}
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 2*time.Second)
	c.MaxStreams = cmp.Or(c.MaxStreams, 32768)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 256)
	if c.HandshakeTimeout < 0 || c.MaxStreams < 1 || c.MaxHandshakes < 1 {
		return errors.New("timeouts and limits must be positive")
	}
	return nil
}
