//go:build !portable

package embed

import (
	"context"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// The messages and the RMA of embedded nodes go by paths, as those of attached
// applications do, and a node that ends ends them.
func TestEmbeddedNodesUsePaths(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	nodes, ends := pair(t, ctx, func(*Config) {})
	exchange(t, ctx, nodes, ends, "path")
	for i, n := range nodes {
		if row := n.conn(t); row.Socket == nil || !row.Socket.TLS {
			t.Errorf("node %d: %+v, want a path with TLS", i, row)
		}
	}

	mem, err := nodes[0].Alloc(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	off, err := ends[0].Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, fabric.MapFixed)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; nodes[1].conn(t).RMA != "path"; i++ {
		if err := ends[1].Endpoint().VWriteTo([]byte{byte(i)}, off, fabric.Sync); err != nil {
			t.Fatal(err)
		}
		if mem.Bytes()[0] != byte(i) {
			t.Fatalf("the window has %d, want %d", mem.Bytes()[0], byte(i))
		}
		if ctx.Err() != nil {
			t.Fatalf("RMA goes by %+v, want a path", nodes[1].conn(t))
		}
	}
	if err := ends[1].Endpoint().VWriteTo([]byte("by the path"), off, fabric.Sync); err != nil || string(mem.Bytes()[:11]) != "by the path" {
		t.Errorf("the window has %q, %v", mem.Bytes()[:11], err)
	}

	if _, err := ends[1].Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := nodes[1].Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	got, err := io.ReadAll(ends[0])
	if string(got) != "last" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("from a node that has ended: %q, %v, want all that was sent, and ECONNRESET", got, err)
	}
}

// Bytes that the applications of a node have sent by paths are delivered when the node
// leaves, also to a slow receiver. Then comes the end of a connection that was closed, and
// ECONNRESET of one that was not.
func TestANodeThatLeavesDeliversWhatWasSentByPaths(t *testing.T) {
	for name, close := range map[string]func(*fabric.Conn) error{"closed": (*fabric.Conn).Close, "open": func(*fabric.Conn) error { return nil }} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			nodes, ends := pair(t, ctx, func(*Config) {})
			exchange(t, ctx, nodes, ends, "path")
			const n = 1 << 20
			type result struct {
				n   int64
				err error
			}
			read := make(chan result, 1)
			go func() {
				got, err := readSlowly(ends[0])
				read <- result{got, err}
			}()
			if _, err := ends[1].Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(close(ends[1]), nodes[1].Close()); err != nil {
				t.Fatal(err)
			}
			got := <-read
			if got.n != n || errors.Is(got.err, syscall.ECONNRESET) != (name == "open") || name == "closed" && got.err != nil {
				t.Errorf("the peer got %d of %d, %v", got.n, n, got.err)
			}
		})
	}
}
