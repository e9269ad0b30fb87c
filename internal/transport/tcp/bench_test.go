package tcp

import (
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// The benchmarks compare the provider with TCP and crypto/tls alone: same
// process, same certificates, the loopback interface. Run them with -count and
// compare the medians.

// layered returns a session of the provider as two reader-writers.
func layered(plaintext bool) func(b *testing.B) (here, there io.ReadWriter) {
	return func(b *testing.B) (here, there io.ReadWriter) {
		pa, pb := onSockets(b, func(c *Config) { c.Plaintext = plaintext })
		return transporttest.Lanes(b, pa, pb)
	}
}

// rawTCP returns the two ends of a TCP connection.
func rawTCP(b *testing.B) (here, there io.ReadWriter) {
	ca, cb := rawPair(b)
	return transporttest.Duplex(ca, ca), transporttest.Duplex(cb, cb)
}

func rawPair(b testing.TB) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ca, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	cb, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ca.Close(); cb.Close() })
	return ca, cb
}

// rawTLS is rawTCP with TLS, as crypto/tls does it.
func rawTLS(b *testing.B) (here, there io.ReadWriter) {
	authority := transporttest.NewAuthority(b)
	dialer, accepter := member(authority, idA), member(authority, idB)
	ca, cb := rawPair(b)
	cfg, _ := dialer.clientTLS(ALPN)
	ta, tb := tls.Client(ca, cfg), tls.Server(cb, accepter.serverTLS())
	done := make(chan error, 1)
	go func() { done <- tb.Handshake() }()
	if err := ta.Handshake(); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return transporttest.Duplex(ta, ta), transporttest.Duplex(tb, tb)
}

var contestants = []struct {
	name string
	open func(b *testing.B) (here, there io.ReadWriter)
}{
	{"raw-tcp", rawTCP}, {"raw-tls", rawTLS}, {"lane-tls", layered(false)}, {"lane-plaintext", layered(true)},
}

func BenchmarkCosts(b *testing.B) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		b.Run(name, func(b *testing.B) { transporttest.Costs(b, layered(plaintext)) })
	}
}

func BenchmarkPingPong(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			here, there := c.open(b)
			transporttest.PingPong(b, here, there)
		})
	}
}

func BenchmarkBulk(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			here, there := c.open(b)
			transporttest.Bulk(b, here, there, 1<<20)
		})
	}
}
