package quic

import (
	"context"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
)

// The benchmarks compare the provider with quic-go alone: same process, same
// settings, same certificates, sockets of the loopback interface. Run them
// with -count and compare the medians.

// benchConfigs returns the settings of both sides.
func benchConfigs(b *testing.B) (dialer, accepter Config) {
	ca := testca.New()
	dialer, accepter = member(ca, idA), member(ca, idB)
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
	return transporttest.Streams(b, open(cfgA), open(cfgB))
}

// raw returns the same of quic-go alone, with one unidirectional stream each
// way.
func raw(b *testing.B) (here, there io.ReadWriter) {
	return rawOver(b, func(c net.PacketConn) net.PacketConn { return c })
}

// rawOver is raw over sockets that are dressed first.
func rawOver(b *testing.B, dress func(net.PacketConn) net.PacketConn) (here, there io.ReadWriter) {
	cfgA, cfgB := benchConfigs(b)
	open := func(cfg *Config) *quicgo.Transport {
		*cfg, _ = cfg.withDefaults()
		socket, err := net.ListenPacket("udp", cfg.Address)
		if err != nil {
			b.Fatal(err)
		}
		t := &quicgo.Transport{Conn: dress(socket), ConnectionIDLength: connectionIDLength}
		b.Cleanup(func() { t.Close(); socket.Close() })
		return t
	}
	ta, tb := open(&cfgA), open(&cfgB)
	ctx := context.Background()
	l, err := tb.Listen(cfgB.tls(nil).ServerConfig(), cfgB.quicConfig())
	if err != nil {
		b.Fatal(err)
	}
	tlsConfig, _ := cfgA.tls(nil).ClientConfig()
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
	return transporttest.Duplex(answer, out), transporttest.Duplex(in, back)
}

// contestants are the compared implementations.
var contestants = map[string]func(*testing.B) (here, there io.ReadWriter){"raw": raw, "stream": layered}

func BenchmarkPingPong(b *testing.B) {
	for name, open := range contestants {
		b.Run(name, func(b *testing.B) {
			here, there := open(b)
			transporttest.PingPong(b, here, there)
		})
	}
}

func BenchmarkBulk(b *testing.B) {
	for name, open := range contestants {
		b.Run(name, func(b *testing.B) {
			here, there := open(b)
			transporttest.Bulk(b, here, there, 256<<10)
		})
	}
}

// BenchmarkConnections shows whether several connections between two nodes would
// carry more than one, each with sockets of its own that receive as ours do: all
// bytes together, and the processor time that they cost. Where the processors are
// the bound, only that could be less.
func BenchmarkConnections(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { abreast(b, n) })
	}
}

// abreast writes to n connections at once, 16 MiB in all in every turn.
func abreast(b *testing.B, n int) {
	const all, size = 16 << 20, 256 << 10
	var ends []io.ReadWriter
	received := make(chan error, n)
	for range n {
		here, there := rawOver(b, ReceiveOffload)
		ends = append(ends, here)
		go func() { // ends with the connection
			p := make([]byte, all/n)
			for {
				_, err := io.ReadFull(there, p)
				received <- err
				if err != nil {
					return
				}
			}
		}()
	}
	p := make([]byte, size)
	b.SetBytes(all)
	before := processorTime(b)
	for b.Loop() {
		for _, end := range ends {
			go func() { // the other end waits for its bytes
				for range all / n / size {
					if _, err := end.Write(p); err != nil {
						b.Error(err)
						return
					}
				}
			}()
		}
		for range ends {
			if err := <-received; err != nil {
				b.Fatal(err)
			}
		}
	}
	used := processorTime(b) - before
	b.ReportMetric(used.Seconds()*1e9/(all*float64(b.N)), "cpu-s/GB")
	b.ReportMetric(used.Seconds()/b.Elapsed().Seconds(), "processors")
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
