package server

import (
	"errors"
	"fmt"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
)

// ShmPathSize returns the bytes of memory of a shared-memory path with these rings.
func ShmPathSize(p ring.Params) int64 { return proto.RingsSize(p) }

// ErrSmallRings is in the chain of CheckHugePages' error when the rings do not
// fill a huge page.
var ErrSmallRings = errors.New("the rings are too small for huge pages")

// CheckHugePages reports whether shared-memory paths of these rings can lie in huge pages now: it
// creates the memory of one and frees it. The error is the reason.
func CheckHugePages(p ring.Params) error {
	size, huge := proto.RingsSize(p), shm.HugePageSize()
	if size < huge {
		return fmt.Errorf("%w: the two of a shared-memory path are %d bytes, a huge page is %d", ErrSmallRings, size, huge)
	}
	return probe(size, shm.HugeRequire)
}

// CheckShmPaths reports why this process cannot create memory for a shared-memory path.
func CheckShmPaths(p ring.Params) error { return probe(proto.RingsSize(p), shm.HugeOff) }

// probe creates memory and frees it.
func probe(size int64, huge shm.HugePages) error {
	region, err := shm.Create("fabricd-probe", size)
	if err != nil {
		return err
	}
	defer region.Release()
	_, err = huge.Apply(region)
	return err
}
