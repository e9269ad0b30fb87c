package tcp

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
)

// The benchmarks compare the provider with TCP and crypto/tls alone: same
// process, same certificates, the loopback interface. Run them with -count and
// compare the medians.

// A duplex is one end of what is measured.
type duplex struct {
	io.Reader
	io.Writer
}

// layered returns a session of the provider as two reader-writers.
func layered(plaintext bool) func(b *testing.B) (here, there duplex) {
	return func(b *testing.B) (here, there duplex) {
		pa, pb := onSockets(b, func(c *Config) { c.Plaintext = plaintext })
		sa, sb := connect(b, pa, pb)
		ctx := context.Background()
		out, _ := sa.OpenLane(ctx)
		out.Write([]byte{1})
		in, _ := sb.AcceptLane(ctx)
		back, _ := sb.OpenLane(ctx)
		back.Write([]byte{1})
		answer, _ := sa.AcceptLane(ctx)
		in.Read(make([]byte, 1))
		answer.Read(make([]byte, 1))
		return duplex{answer, out}, duplex{in, back}
	}
}

// rawTCP returns the two ends of a TCP connection.
func rawTCP(b *testing.B) (here, there duplex) {
	ca, cb := rawPair(b)
	return duplex{ca, ca}, duplex{cb, cb}
}

func rawPair(b *testing.B) (net.Conn, net.Conn) {
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
func rawTLS(b *testing.B) (here, there duplex) {
	authority := newCA(b)
	dialer, accepter := authority.config(authority.issue(idA, forever)), authority.config(authority.issue(idB, forever))
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
	return duplex{ta, ta}, duplex{tb, tb}
}

var contestants = []struct {
	name string
	open func(b *testing.B) (here, there duplex)
}{
	{"raw-tcp", rawTCP}, {"raw-tls", rawTLS}, {"lane-tls", layered(false)}, {"lane-plaintext", layered(true)},
}

func BenchmarkPingPong(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			here, there := c.open(b)
			go func() { // ends with the connection
				p := make([]byte, 64)
				for {
					if _, err := io.ReadFull(there, p); err != nil {
						return
					}
					if _, err := there.Write(p); err != nil {
						return
					}
				}
			}()
			p := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := here.Write(p); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(here, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBulk(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			here, there := c.open(b)
			const size = 1 << 20
			b.SetBytes(size)
			b.ReportAllocs()
			p := make([]byte, size)
			go func() { // ends with the connection
				buf := make([]byte, size)
				for {
					if _, err := there.Read(buf); err != nil {
						return
					}
				}
			}()
			for b.Loop() {
				if _, err := here.Write(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
