package daemon

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/fabricd/fabricd/internal/shm"
)

// TestHeapStaysBelowTheLimit: Go knows the limit while a node runs, and not behind it;
// what the user has said is left alone.
func TestHeapStaysBelowTheLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	limit, ok := shm.Limit()
	if !ok {
		t.Fatal("this kernel does not say how much memory there is")
	}
	h := NewHeap()
	c := testConfig(t, RoleHost, "host")
	if _, err := Init(c, ""); err != nil {
		t.Fatal(err)
	}
	d, err := Start(t.Context(), c, Options{Heap: h})
	if err != nil {
		t.Fatal(err)
	}
	if got := debug.SetMemoryLimit(-1); got != limit/100*heapPart {
		t.Errorf("Go may take %d bytes of %d", got, limit)
	}
	h.bound(1 << 30)
	if got := debug.SetMemoryLimit(-1); got != 1<<30/100*heapPart {
		t.Errorf("under another limit Go may take %d bytes", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	h.Close()
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("behind it Go may take %d bytes", got)
	}
	t.Setenv("GOMEMLIMIT", "off")
	h = NewHeap()
	h.bound(1 << 30)
	defer h.Close()
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("where the user has said that there is no limit there is one of %d", got)
	}
}
