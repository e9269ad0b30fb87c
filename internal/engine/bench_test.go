package engine_test

import (
	"context"
	"io"
	"testing"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
	"github.com/fabricd/fabricd/rma"
)

// The benchmarks compare connections between two nodes with the bare streams of
// the provider below, in one process. Run them with -count and compare medians.

// benchProviders returns two providers.
var benchProviders = map[string]func(testing.TB) (a, b transport.Provider){
	"quic": func(t testing.TB) (a, b transport.Provider) {
		q := newQuicker(t)
		return q.provider(0, nil), q.provider(1, nil)
	},
	"tcp": func(t testing.TB) (a, b transport.Provider) {
		q := newQuicker(t)
		return q.overTCP(0, false), q.overTCP(1, false)
	},
	"tcp-plain": func(t testing.TB) (a, b transport.Provider) {
		q := newQuicker(t)
		return q.overTCP(0, true), q.overTCP(1, true)
	},
	"mem": func(t testing.TB) (a, b transport.Provider) {
		hub := mem.NewHub(mem.Config{})
		pa, _ := hub.Provider("a", transport.Identity{Cluster: uuid(0xCC), Node: uuid(1), Host: true})
		pb, _ := hub.Provider("b", transport.Identity{Cluster: uuid(0xCC), Node: uuid(2)})
		return pa, pb
	},
}

// benchPair returns the two ends of a connection between two nodes.
func benchPair(t testing.TB, pa, pb transport.Provider) (a, b attach.NodeEndpoint) {
	return pairWith(t, pa, pb, func(*engine.Config) {})
}

// pairWith is benchPair of nodes with a changed configuration.
func pairWith(t testing.TB, pa, pb transport.Provider, change func(*engine.Config)) (a, b attach.NodeEndpoint) {
	f := &fabric{}
	for i, p := range []transport.Provider{pa, pb} {
		cfg := engine.Config{Providers: []transport.Provider{p}, Log: zerolog.Nop()}
		change(&cfg)
		n := engine.Start(cfg)
		t.Cleanup(func() { n.Close() })
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		n.SetSelf(engine.Self{Self: attach.Self{Cluster: uuid(0xCC), Incarnation: incarnation}, UUID: uuid(byte(i + 1)), Epoch: 1, Term: 1})
		f.nodes = append(f.nodes, n)
		f.peers = append(f.peers, engine.Peer{Incarnation: incarnation, UUID: uuid(byte(i + 1)), Epoch: 1, Addresses: []string{p.Addr()}})
	}
	f.nodes[0].NodeUp(f.peers[1])
	f.nodes[1].NodeUp(f.peers[0])
	a, b, err := f.join(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// endpointIO is an endpoint as a reader and writer.
type endpointIO struct{ attach.NodeEndpoint }

func (e endpointIO) Read(p []byte) (int, error)  { return e.Recv(context.Background(), p) }
func (e endpointIO) Write(p []byte) (int, error) { return e.Send(context.Background(), p) }

// overEach runs f over both providers, bare and with the engine.
func overEach(b *testing.B, f func(b *testing.B, here, there io.ReadWriter)) {
	for name, providers := range benchProviders {
		b.Run(name+"/bare", func(b *testing.B) {
			pa, pb := providers(b)
			b.Cleanup(func() { pa.Close(); pb.Close() })
			here, there := transporttest.Streams(b, pa, pb)
			f(b, here, there)
		})
		b.Run(name+"/conn", func(b *testing.B) {
			pa, pb := providers(b)
			here, there := benchPair(b, pa, pb)
			f(b, endpointIO{here}, endpointIO{there})
		})
	}
}

// BenchmarkPingPong is a round trip of 64 bytes.
func BenchmarkPingPong(b *testing.B) {
	overEach(b, func(b *testing.B, here, there io.ReadWriter) { transporttest.PingPong(b, here, there) })
}

// BenchmarkBulk sends a mebibyte at a time one way.
func BenchmarkBulk(b *testing.B) {
	overEach(b, func(b *testing.B, here, there io.ReadWriter) { transporttest.Bulk(b, here, there, 1<<20) })
}

// benchWindows returns an end of a connection, and the offsets of a window of 1 MiB
// at each end, with the protections that these are to have.
func benchWindows(b *testing.B, pa, pb transport.Provider, near, far rma.Prot) (here attach.NodeEndpoint, loff, roff int64) {
	here, there := benchPair(b, pa, pb)
	mem := alloc(b, 2<<20)
	loff, err1 := register(here, mem[:1<<20], 0, near, 0)
	roff, err2 := register(there, mem[1<<20:], 0, far, 0)
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	return here, loff, roff
}

// BenchmarkWrite writes to the peer's window and waits until the bytes are
// there; compare with BenchmarkPingPong and BenchmarkBulk of bare streams.
func BenchmarkWrite(b *testing.B) {
	const depth = 4 // writes under way, of the large ones
	for provider, providers := range benchProviders {
		for name, size := range map[string]int64{"64": 64, "4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20} {
			b.Run(provider+"/"+name, func(b *testing.B) {
				pa, pb := providers(b)
				here, loff, roff := benchWindows(b, pa, pb, rma.ProtRead, rma.ProtWrite)
				marks := make([]fence.Mark, 0, depth)
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					if err := here.WriteTo(loff, size, roff, 0); err != nil {
						b.Fatal(err)
					}
					m, _ := here.FenceMark(fence.InitSelf)
					marks = append(marks, m)
					if size == 1<<20 && len(marks) < depth {
						continue
					}
					if err := here.FenceWait(context.Background(), marks[0]); err != nil {
						b.Fatal(err)
					}
					marks = append(marks[:0], marks[1:]...)
				}
			})
		}
	}
}

// BenchmarkRead reads from the peer's window; compare with BenchmarkPingPong.
func BenchmarkRead(b *testing.B) {
	for provider, providers := range benchProviders {
		for name, size := range map[string]int64{"64": 64, "4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20} {
			b.Run(provider+"/"+name, func(b *testing.B) {
				pa, pb := providers(b)
				here, loff, roff := benchWindows(b, pa, pb, rma.ProtWrite, rma.ProtRead)
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					if err := here.ReadFrom(loff, size, roff, rma.Sync); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
