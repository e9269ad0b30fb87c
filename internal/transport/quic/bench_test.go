package quic

import (
	"context"
	"io"
	"net"
	"testing"

	quicgo "github.com/quic-go/quic-go"
)

// The benchmarks compare the provider with quic-go alone: same process, same
// settings, same certificates, sockets of the loopback interface. Run them
// with -count and compare the medians.

// benchConfigs returns the settings of both sides.
func benchConfigs(b *testing.B) (dialer, accepter Config) {
	ca := newCA(b)
	dialer, accepter = ca.config(ca.issue(idA, forever)), ca.config(ca.issue(idB, forever))
	dialer.Address, accepter.Address = "127.0.0.1:0", "127.0.0.1:0"
	return dialer, accepter
}

// layered returns a session of the provider as two reader-writers.
func layered(b *testing.B) (here, there io.ReadWriter) {
	cfgA, cfgB := benchConfigs(b)
	open := func(cfg Config) *Provider {
		p, err := New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { p.Close() })
		return p
	}
	pa, pb := open(cfgA), open(cfgB)
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

type duplex struct {
	io.Reader
	io.Writer
}

// raw returns the same of quic-go alone, with one unidirectional stream each
// way.
func raw(b *testing.B) (here, there io.ReadWriter) {
	cfgA, cfgB := benchConfigs(b)
	open := func(cfg *Config) *quicgo.Transport {
		*cfg, _ = cfg.withDefaults()
		socket, err := net.ListenPacket("udp", cfg.Address)
		if err != nil {
			b.Fatal(err)
		}
		t := &quicgo.Transport{Conn: socket, ConnectionIDLength: connectionIDLength}
		b.Cleanup(func() { t.Close(); socket.Close() })
		return t
	}
	ta, tb := open(&cfgA), open(&cfgB)
	ctx := context.Background()
	l, err := tb.Listen(cfgB.serverTLS(), cfgB.quicConfig())
	if err != nil {
		b.Fatal(err)
	}
	tlsConfig, _ := cfgA.clientTLS()
	ca, err := ta.Dial(ctx, tb.Conn.LocalAddr(), tlsConfig, cfgA.quicConfig())
	if err != nil {
		b.Fatal(err)
	}
	cb, err := l.Accept(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ca.CloseWithError(0, ""); l.Close() })
	out, _ := ca.OpenUniStream()
	out.Write([]byte{1})
	in, _ := cb.AcceptUniStream(ctx)
	back, _ := cb.OpenUniStream()
	back.Write([]byte{1})
	answer, _ := ca.AcceptUniStream(ctx)
	in.Read(make([]byte, 1))
	answer.Read(make([]byte, 1))
	return duplex{answer, out}, duplex{in, back}
}

func BenchmarkPingPong(b *testing.B) {
	for name, open := range map[string]func(*testing.B) (here, there io.ReadWriter){"raw": raw, "lane": layered} {
		b.Run(name, func(b *testing.B) { pingPong(b, open) })
	}
}

func pingPong(b *testing.B, open func(*testing.B) (here, there io.ReadWriter)) {
	here, there := open(b)
	go func() {
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
}

func BenchmarkBulk(b *testing.B) {
	for name, open := range map[string]func(*testing.B) (here, there io.ReadWriter){"raw": raw, "lane": layered} {
		b.Run(name, func(b *testing.B) { bulk(b, open) })
	}
}

func bulk(b *testing.B, open func(*testing.B) (here, there io.ReadWriter)) {
	here, there := open(b)
	const size = 1 << 20
	b.SetBytes(size)
	b.ReportAllocs()
	p := make([]byte, size)
	go func() { // ends with the connection
		buf := make([]byte, 256<<10)
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
}
