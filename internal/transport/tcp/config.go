// Package tcp is the transport provider over TCP: each session has one
// connection with TLS for everything small, and further ones for the bytes of
// large writes, so that neither waits behind the other.
//
// SPEC.md has the protocol. Lanes, datagrams and the credit of both share the
// first connection, as frames; it is never held up, because a frame is only
// sent when its receiver has promised room for it. The frames of a writer that comes
// again and again without waiting for anything go out together (coalesce.go). What does
// not fit a frame goes over bulk connections, unless it is short and nothing else is
// under way (lone.go). They are opened when the first large write asks for them. One is
// bound to its session by a token of 32 random bytes that
// was sent over the first connection, can be used once and soon expires, and with TLS
// by the certificate too.
//
// # Without TLS
//
// Where both ends are configured for it, TLS only proves who they are: behind
// both hellos the first connection goes on without it, and bulk connections have
// none. Then whoever can read packets of the session can read what it carries,
// and whoever can change or inject them can change that too: messages, the bytes
// and the requests of RMA, heartbeats, and the end of the session. What is left
// is that nobody without a certificate begins a session, and that a bulk
// connection is of the peer that the handshake has proved: to know a token is not
// enough to use it, it takes a key of that handshake. Nothing of membership goes
// over a session. Ends that differ in the setting refuse each other.
//
// A bulk connection that is cut costs nothing but time: what was written to it is
// kept until the peer says that it has come, and what has not is written again on
// the first connection (failover.go). Frames of 512 KiB or more are kept where they
// are, if their owner lends the memory, others as copies. A lane stays with one bulk connection until
// much is under way on it; then its next pieces go over the one with the least.
//
// # Reading
//
// There is no goroutine between a connection and who waits for its bytes.
// Whoever blocks in a lane's Read and finds nobody at the helm takes it: it
// reads the first connection itself, delivers what is for others, and leaves
// when it has bytes of its own. Whoever waits for what a reader would wake it for
// may take it too (Help). A session's watch goroutine takes the helm when nobody has
// had it for a moment. Each bulk connection has a reader, which
// puts bytes straight into the memory of a Read that waits for them. Whoever moves
// those looks now and then whether something has come on the first one (glance.go).
//
// # Flow control and memory
//
// The rules are those of QUIC: a peer can make this side hold at most
// Config.SessionWindow bytes per session that nobody has read, and at most
// Config.LaneWindow in one lane. With the defaults 32 lanes may stand full and
// unread before they gate the others. Copies of what is under way on bulk
// connections take up to 5 MiB for each of them, while it is; of what lies in memory
// that was lent, only when the connection is cut.
//
// Lanes cost memory before any byte, less than 1 KiB each, until they were
// accepted and ended; each takes a frame of 24 bytes or more. With the default
// of Config.MaxLanes that is at most 32 MiB for one session with an
// authenticated peer, half of what Config.SessionWindow lets it hold anyway.
package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/transport"
)

// The protocol names in the TLS handshake: of a session's first connection, and
// of the others.
const (
	ALPN     = "fabricd-tcp/1"
	BulkALPN = "fabricd-tcp-bulk/1"
)

// Config configures a provider. ServerTLS, ClientTLS, Identify and one of
// Listener and Address are required; zero elsewhere means the default.
type Config struct {
	// Listener accepts connections; the provider owns it and closes it. Nil: one
	// is opened at Address, "ip:port".
	Listener net.Listener
	Address  string

	// Dial opens a connection to "host:port". Nil: a net.Dialer does, and where packets
	// of full size vanish it asks for small ones (narrow.go).
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

	// LowLatency makes who waits for something on a session's first connection look
	// at its socket for up to 2 ms before it sleeps: it has the bytes as soon as they are
	// there, and keeps a processor busy while the peer talks. As many of the process look
	// at a time as GOMAXPROCS says, less one, and not who was held up by others just before.
	// Else it looks for some 40 µs where there are four processors, and as long as that pays.
	LowLatency bool

	HandshakeTimeout time.Duration // bounds Dial and an incoming handshake. 0: 2 s

	// UserTimeout is how long the kernel may wait for the peer's kernel to
	// acknowledge bytes before it ends a connection, where it can be told. It
	// does not see a peer to which nothing is sent: heartbeats do, but over the first
	// connection only, so that for the others it is what tells that their way is lost.
	// 0: 5 s.
	UserTimeout time.Duration

	LaneWindow    int // bytes that a lane takes before it is read. 0: 2 MiB
	SessionWindow int // bytes of all lanes together. 0: 64 MiB

	// MaxLanes bounds the open lanes that a peer has towards here, in one
	// session. A lane counts until it was read to its end or canceled. A
	// connection of the fabric takes two in each direction: the default has room
	// for 10,000, and for as many more that have not ended yet. At most 65536.
	// 0: 32768.
	MaxLanes int

	// MaxBulk bounds the bulk connections of one session; the smaller one of the
	// two ends' counts. Negative: none. 0: 2.
	MaxBulk int

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
	setDefault(&c.HandshakeTimeout, 2*time.Second)
	setDefault(&c.UserTimeout, 5*time.Second)
	setDefault(&c.LaneWindow, 2<<20)
	setDefault(&c.SessionWindow, max(64<<20, c.LaneWindow))
	setDefault(&c.MaxLanes, 32768)
	setDefault(&c.MaxBulk, 2)
	setDefault(&c.MaxHandshakes, 256)
	c.MaxBulk = max(c.MaxBulk, 0)
	switch {
	case c.HandshakeTimeout < 0 || c.UserTimeout < 0 || c.MaxLanes < 1 || c.MaxHandshakes < 1:
		return c, errors.New("tcp: timeouts and limits must be positive")
	case c.LaneWindow < minWindow || c.SessionWindow < minWindow || c.LaneWindow > maxWindow || c.SessionWindow > maxWindow:
		return c, errors.New("tcp: windows must be from 64 KiB to 1 GiB")
	case c.MaxLanes > maxLanes || c.MaxBulk > maxBulk:
		return c, errors.New("tcp: at most 65536 lanes and 16 bulk connections")
	}
	return c, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// serverTLS returns the configuration for incoming handshakes of both kinds.
func (c *Config) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{ALPN, BulkALPN},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			t := c.ServerTLS().Clone()
			if t.ClientAuth != tls.RequireAndVerifyClientCert &&
				(t.ClientAuth != tls.RequireAnyClientCert || t.VerifyPeerCertificate == nil && t.VerifyConnection == nil) {
				return nil, errors.New("tcp: ServerTLS does not verify the client's certificate")
			}
			c.harden(t, ALPN, BulkALPN)
			return t, nil
		},
	}
}

// clientTLS returns the configuration for one connection that speaks alpn.
func (c *Config) clientTLS(alpn string) (*tls.Config, error) {
	t := c.ClientTLS().Clone()
	if t.InsecureSkipVerify && t.VerifyPeerCertificate == nil && t.VerifyConnection == nil {
		return nil, errors.New("tcp: ClientTLS does not verify the server's certificate")
	}
	c.harden(t, alpn)
	return t, nil
}

// harden sets what is not the caller's choice: no tickets, hence no 0-RTT,
// hence nothing to replay; and records of full size from the first one on.
func (c *Config) harden(t *tls.Config, alpn ...string) {
	t.MinVersion = tls.VersionTLS13
	t.NextProtos = alpn
	t.SessionTicketsDisabled = true
	t.ClientSessionCache = nil
	t.DynamicRecordSizingDisabled = true
	if c.Now != nil {
		t.Time = c.Now
	}
}
