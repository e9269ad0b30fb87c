package mem

import (
	"io"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

var (
	idA = transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{2}, Host: true}
	idB = transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{3}}
)

// pair returns two providers of a hub.
func pair(t *testing.T, cfg Config) (*Provider, *Provider) {
	t.Helper()
	h := NewHub(cfg)
	a, err := h.Provider("a", idA)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Provider("b", idB)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestConformance(t *testing.T) {
	cfg := Config{MaxStreams: 16}
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		a, b := pair(t, cfg)
		return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: cfg.MaxStreams, Nowhere: "c"}
	})
}

// connect returns both ends of a session from a to b.
func connect(t *testing.T, a, b *Provider) (transport.Session, transport.Session) {
	t.Helper()
	sa, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	sb, err := b.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sa, sb
}

func TestPair(t *testing.T) {
	sa, sb := Pair(idA, idB)
	if sa.Peer() != idB || sb.Peer() != idA {
		t.Errorf("peers are %v and %v", sa.Peer(), sb.Peer())
	}
	s, r := transporttest.Stream(t, sa, sb)
	s.Close()
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v, want EOF", err)
	}
	sa.Close(transport.CodeOK, "")
	<-sb.Done()
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	sa, sb := Pair(idA, idB)
	s, r := transporttest.Stream(t, sa, sb)
	p := make([]byte, 64<<10)
	step := func() {
		if _, err := s.Write(p); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, p); err != nil {
			t.Fatal(err)
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations per write and read, want none", n)
	}
}

func TestEndedSessionsAreForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, b := pair(t, Config{})
		for range 10 {
			sa, sb := connect(t, a, b)
			transporttest.Stream(t, sa, sb)
			sa.Close(transport.CodeOK, "")
			<-sb.Done()
		}
		if n := len(a.open) + len(b.open); n != 0 {
			t.Errorf("%d ends of sessions are left", n)
		}
	})
}

func BenchmarkPingPong(b *testing.B) {
	sa, sb := Pair(idA, idB)
	out, in := transporttest.Stream(b, sa, sb)
	back, answer := transporttest.Stream(b, sb, sa)
	go func() {
		p := make([]byte, 64)
		for {
			if _, err := io.ReadFull(in, p); err != nil {
				return
			}
			back.Write(p)
		}
	}()
	p := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		out.Write(p)
		io.ReadFull(answer, p)
	}
	sa.Close(0, "")
}

func BenchmarkBulk(b *testing.B) {
	sa, sb := Pair(idA, idB)
	out, in := transporttest.Stream(b, sa, sb)
	go io.Copy(io.Discard, struct{ io.Reader }{in})
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		out.Write(p)
	}
	sa.Close(0, "")
}
