//go:build !linux || portable

package embed

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/path"
)

// Where processes cannot share memory, no application attaches, and a connection reports why
// it has no path; messages and RMA of embedded nodes go by their link.
func TestASystemWithoutSharedMemorySaysSo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	nodes, ends := pair(t, ctx, func(*Config) {})
	for nodes[0].conn(t).Why != path.Absent().Error() { // from the first request for a path on
		exchange(t, ctx, nodes, ends, "call")
		if ctx.Err() != nil {
			t.Fatalf("why no path: %q, want %q", nodes[0].conn(t).Why, path.Absent())
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
	for range 64 { // more than it takes to ask for a path
		if err := ends[1].Endpoint().VWriteTo([]byte("by the link"), off, fabric.Sync); err != nil || string(mem.Bytes()[:11]) != "by the link" {
			t.Fatalf("the window has %q, %v", mem.Bytes()[:11], err)
		}
	}
	c := testConfig(t, "host")
	c.Host, c.Socket = true, filepath.Join(t.TempDir(), "app")
	if _, err := Init(c); err != nil {
		t.Fatal(err)
	}
	_, err = Start(ctx, c)
	_, attached := fabric.Attach(ctx, c.Socket)
	for what, err := range map[string]error{"a node with a socket": err, "attach": attached} {
		if !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), "shared memory is not on this system") {
			t.Errorf("%s: %v, want that there is no shared memory", what, err)
		}
	}
}
