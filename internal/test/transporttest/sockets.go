package transporttest

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/transport"
)

// Connect returns both ends of a session from a to b.
func Connect(t testing.TB, a, b transport.Provider) (from, to transport.Session) {
	t.Helper()
	return connect(t.Context(), t, a, b)
}

func connect(ctx context.Context, t testing.TB, a, b transport.Provider) (from, to transport.Session) {
	t.Helper()
	from, err := a.Dial(ctx, b.Addr())
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	if to, err = b.Accept(ctx); err != nil {
		t.Fatalf("accept: %v", err)
	}
	return from, to
}

// NodeID returns the identity of the n-th node of a cluster.
func NodeID(n byte) transport.Identity {
	return transport.Identity{Cluster: addr.UUID{0xc1}, Node: addr.UUID{0xa0, n, 0x55, 0x66}}
}

// DeadAddress returns the address of a port of the loopback interface that never
// answers: it belongs to a UDP socket that no goroutine reads.
func DeadAddress(t testing.TB) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.LocalAddr().String()
}

// A duplex is one end of a measured stream.
type duplex struct {
	io.Reader
	io.Writer
}

// Duplex returns an end that reads from r and writes to w.
func Duplex(r io.Reader, w io.Writer) io.ReadWriter { return duplex{r, w} }

// Streams returns the two ends of a stream in each direction of a session from pa to
// pb.
func Streams(b testing.TB, pa, pb transport.Provider) (here, there io.ReadWriter) {
	b.Helper()
	from, to := Connect(b, pa, pb)
	out, in := Stream(b, from, to)
	back, answer := Stream(b, to, from)
	return duplex{answer, out}, duplex{in, back}
}

// Stream returns the ends of a stream that a byte has gone through.
func Stream(b testing.TB, from, to transport.Session) (transport.SendStream, transport.RecvStream) {
	b.Helper()
	ctx := context.Background()
	out, err := from.OpenStream(ctx)
	if err == nil {
		_, err = out.Write([]byte{1})
	}
	if err != nil {
		b.Fatal(err)
	}
	in, err := to.AcceptStream(ctx)
	if err == nil {
		_, err = in.Read(make([]byte, 1))
	}
	if err != nil {
		b.Fatal(err)
	}
	return out, in
}

// PingPong measures a round trip of 64 bytes. there is used until it fails.
func PingPong(b *testing.B, here, there io.ReadWriter) {
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

// Bulk measures writes of a mebibyte one way. there is read, with a buffer of so
// many bytes, until it fails.
func Bulk(b *testing.B, here io.Writer, there io.Reader, buffer int) {
	const size = 1 << 20
	go func() {
		buf := make([]byte, buffer)
		for {
			if _, err := there.Read(buf); err != nil {
				return
			}
		}
	}()
	b.SetBytes(size)
	b.ReportAllocs()
	p := make([]byte, size)
	for b.Loop() {
		if _, err := here.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}
