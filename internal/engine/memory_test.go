package engine_test

import (
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// regions is the memory that alloc has returned.
var regions struct {
	sync.Mutex // guards list
	list       []*shm.Region
}

// alloc returns n bytes of window memory, as an application has it.
func alloc(tb testing.TB, n int) []byte {
	tb.Helper()
	r, err := newRegion(n)
	if err != nil {
		tb.Fatal(err)
	}
	regions.Lock()
	defer regions.Unlock()
	regions.list = append(regions.list, r)
	return r.Bytes()
}

// newRegion returns n bytes of memory. Tests have more of it than descriptors.
func newRegion(n int) (*shm.Region, error) {
	r, err := shm.Create("test", int64(n))
	if err == nil {
		r.CloseFile()
	}
	return r, err
}

// regionOf returns the memory that p, whole pages, is part of, and its offset there.
func regionOf(p []byte) (*shm.Region, int64) {
	regions.Lock()
	defer regions.Unlock()
	for _, r := range regions.list {
		for b, off := r.Bytes(), 0; off < len(b); off += rma.PageSize {
			if &b[off] == &p[0] {
				return r, int64(off)
			}
		}
	}
	return nil, 0
}

// register opens a window onto p, of alloc.
func register(ep attach.NodeEndpoint, p []byte, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error) {
	r, at := regionOf(p)
	if r == nil {
		return 0, status.Fault
	}
	return ep.RegisterRegion(r, at, int64(len(p)), off, prot, flags)
}
