package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// mirrored returns a mirror of all of a window of pages on another node, and
// the window's memory.
func mirrored(t testing.TB, owner, here *fabric.Node, pages int) (*fabric.Mirror, []byte) {
	t.Helper()
	at, from := joined(t, owner, here)
	mem, off := window(t, owner, at, pages, rw)
	m, err := fabric.NewMirror(from, off, int64(pages*fabric.PageSize), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m, mem.Bytes()
}

// TestMirrorAgreesWithModel changes both sides at random and moves at random
// moments. Bytes of each side change only by that side and by the moves.
func TestMirrorAgreesWithModel(t *testing.T) {
	ctx := context.Background()
	for name, mode := range apiModes {
		t.Run(name, func(t *testing.T) {
			c := fabrictest.NewCluster(t, 2)
			m, there := mirrored(t, mode(t, c, 0), mode(t, c, 1), 1)
			rapid.Check(t, func(t *rapid.T) {
				if err := m.Release(ctx); err != nil { // of the program before
					t.Fatal(err)
				}
				here, peer, dirty := bytes.Clone(m.Bytes()), bytes.Clone(there), make([]bool, len(there))
				draw := func(t *rapid.T) (off, n int64) {
					off = rapid.Int64Range(0, 99).Draw(t, "offset")
					return off, rapid.Int64Range(1, 30).Draw(t, "length")
				}
				fill := func(t *rapid.T, n int64) []byte {
					return bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, int(n))
				}
				t.Repeat(map[string]func(*rapid.T){
					"write": func(t *rapid.T) {
						off, n := draw(t)
						p := fill(t, n)
						if err := m.Write(off, p); err != nil {
							t.Fatal(err)
						}
						copy(here[off:], p)
						copy(dirty[off:], slices.Repeat([]bool{true}, int(n)))
					},
					"the peer writes": func(t *rapid.T) {
						off, n := draw(t)
						p := fill(t, n)
						copy(there[off:], p)
						copy(peer[off:], p)
					},
					"acquire": func(t *rapid.T) {
						off, n := draw(t)
						if err := m.Acquire(ctx, off, n); err != nil {
							t.Fatal(err)
						}
						for i := off; i < off+n; i++ {
							if !dirty[i] {
								here[i] = peer[i]
							}
						}
					},
					"release": func(t *rapid.T) {
						if err := m.Release(ctx); err != nil {
							t.Fatal(err)
						}
						for i := range dirty {
							if dirty[i] {
								peer[i], dirty[i] = here[i], false
							}
						}
					},
					"": func(t *rapid.T) {
						if !bytes.Equal(m.Bytes(), here) || !bytes.Equal(there, peer) {
							t.Fatalf("here % x\nwant % x\nthere % x\nwant % x", m.Bytes()[:130], here[:130], there[:130], peer[:130])
						}
						marked := make([]bool, len(dirty))
						for _, r := range m.Dirty() {
							copy(marked[r.Offset:], slices.Repeat([]bool{true}, int(r.Length)))
						}
						if !slices.Equal(marked, dirty) {
							t.Fatalf("dirty %v", m.Dirty())
						}
					},
				})
			})
		})
	}
}

// carriers are the transports that a link may use.
var carriers = map[string][]fabrictest.Option{"memory": nil, "quic": {fabrictest.QUIC()}, "tcp": {fabrictest.TCP()},
	"tcp, nothing between": {fabrictest.TCP(), fabrictest.Unbroken()}}

func TestMirrorOfManyPieces(t *testing.T) {
	for name, mode := range apiModes {
		for carrier, opts := range carriers {
			t.Run(name+" over "+carrier, func(t *testing.T) { mirrorManyPieces(t, mode, opts) })
		}
	}
}

func mirrorManyPieces(t *testing.T, mode func(testing.TB, *fabrictest.Cluster, int) *fabric.Node, opts []fabrictest.Option) {
	c := fabrictest.NewCluster(t, 2, opts...)
	m, there := mirrored(t, mode(t, c, 0), mode(t, c, 1), 700)
	for i := range there {
		there[i] = byte(i * 7)
	}
	size := int64(len(there))
	if err := m.Acquire(t.Context(), 0, size); err != nil || !bytes.Equal(m.Bytes(), there) {
		t.Fatalf("acquire: %v, all there: %v", err, bytes.Equal(m.Bytes(), there))
	}
	for i := range m.Bytes() {
		m.Bytes()[i] ^= 0xff
	}
	if err := m.MarkDirty(1, size-2); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(t.Context()); err != nil || !bytes.Equal(m.Bytes()[1:size-1], there[1:size-1]) {
		t.Fatalf("release: %v", err)
	}
	if there[0] != 0 || there[size-1] != byte((size-1)*7%256) {
		t.Error("bytes that were not dirty were released")
	}
}

func TestMirrorKeepsWhatALostPeerDidNotGet(t *testing.T) {
	for carrier, opts := range carriers {
		t.Run(carrier, func(t *testing.T) { mirrorOfALostPeer(t, fabrictest.NewCluster(t, 2, opts...)) })
	}
}

func mirrorOfALostPeer(t *testing.T, c *fabrictest.Cluster) {
	ctx := context.Background()
	owner, here := c.Node(1), c.Node(0)
	at, from := joined(t, owner, here)
	_, off := window(t, owner, at, 1, rw)
	m, err := fabric.NewMirror(from, off, fabric.PageSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(100, []byte("kept")); err != nil {
		t.Fatal(err)
	}
	c.Kill(1)
	for range 2 {
		if err := m.Release(ctx); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("release to a lost node: %v, want ECONNRESET", err)
		}
	}
	if err := m.Acquire(ctx, 0, 8); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("acquire from a lost node: %v, want ECONNRESET", err)
	}
	if got := m.Dirty(); !slices.Equal(got, []fabric.Range{{Offset: 100, Length: 4}}) {
		t.Errorf("dirty %v, want the four bytes", got)
	}
	owner = c.Restart(1)
	at, again := joined(t, owner, here)
	mem, off := window(t, owner, at, 2, rw)
	if err := m.Rebind(again, off+fabric.PageSize); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(ctx); err != nil || len(m.Dirty()) > 0 {
		t.Errorf("release to the node's next incarnation: %v, dirty %v", err, m.Dirty())
	}
	if got := string(mem.Bytes()[fabric.PageSize+100:][:4]); got != "kept" {
		t.Errorf("the peer has %q", got)
	}
}

func TestMirrorThatIsWithdrawn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		m, there := mirrored(t, c.Node(0), c.Node(1), 1)
		if err := m.Write(0, []byte("late")); err != nil {
			t.Fatal(err)
		}
		c.Partition(0)
		short := func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		ctx, cancel := short()
		defer cancel()
		if err := m.Release(ctx); !errors.Is(err, context.DeadlineExceeded) || len(m.Dirty()) != 1 {
			t.Errorf("release: %v, dirty %v", err, m.Dirty())
		}
		if err := m.Acquire(ctx, 0, 8); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("acquire: %v", err)
		}
		c.Heal()
		if err := m.Release(t.Context()); err != nil || string(there[:4]) != "late" || len(m.Dirty()) > 0 {
			t.Errorf("release again: %v, the peer has %q", err, there[:4])
		}
	})
}

func TestMirrorRefusals(t *testing.T) {
	ctx := context.Background()
	c := fabrictest.NewCluster(t, 2)
	at, from := joined(t, c.Node(0), c.Node(1))
	const page = fabric.PageSize
	_, reads := window(t, c.Node(0), at, 4, fabric.ProtRead)
	for _, x := range []struct {
		off, n int64
		mem    []byte
	}{{0, 0, nil}, {0, -1, nil}, {-1, 8, nil}, {1<<63 - 8, 9, nil}, {0, 8, make([]byte, 7)}} {
		if _, err := fabric.NewMirror(from, x.off, x.n, x.mem); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("mirror of [%d, +%d): %v, want EINVAL", x.off, x.n, err)
		}
	}
	m, err := fabric.NewMirror(from, reads, 5*page, make([]byte, 6*page))
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct{ got, want error }{
		"acquire of nothing":       {m.Acquire(ctx, 0, 0), syscall.EINVAL},
		"acquire before":           {m.Acquire(ctx, -1, 2), syscall.EINVAL},
		"acquire behind":           {m.Acquire(ctx, 5*page, 1), syscall.EINVAL},
		"acquire of too much":      {m.Acquire(ctx, 1, 1<<63-1), syscall.EINVAL},
		"mark behind":              {m.MarkDirty(5*page-1, 2), syscall.EINVAL},
		"write behind":             {m.Write(5*page-1, []byte("xx")), syscall.EINVAL},
		"write of nothing":         {m.Write(0, nil), nil},
		"what is registered":       {m.Acquire(ctx, 0, 4*page), nil},
		"what is not":              {m.Acquire(ctx, 4*page, 1), syscall.ENXIO},
		"release of nothing dirty": {m.Release(ctx), nil},
		"rebind to no range":       {m.Rebind(from, 1<<63-1), syscall.EINVAL},
	} {
		if !errors.Is(x.got, x.want) {
			t.Errorf("%s: %v, want %v", name, x.got, x.want)
		}
	}
	if err := errors.Join(m.Write(8, []byte("x")), m.Release(ctx)); !errors.Is(err, syscall.EACCES) || len(m.Dirty()) != 1 {
		t.Errorf("release to a window that only reads: %v, dirty %v", err, m.Dirty())
	}
	for i := range int64(fabric.MaxDirtyRanges - 1) {
		if err := m.MarkDirty(16+2*i, 1); err != nil {
			t.Fatalf("range %d: %v", i, err)
		}
	}
	if err := m.MarkDirty(0, 1); !errors.Is(err, syscall.ENOBUFS) {
		t.Errorf("a range over the bound: %v, want ENOBUFS", err)
	}
	if err := m.MarkDirty(7, 1); err != nil {
		t.Errorf("a neighbour at the bound: %v", err)
	}
}
