//go:build race

package shm

// touch loads the byte at off, so that memory that is gone faults here. The
// race detector does atomic accesses outside Go, where a fault is fatal.
//
//go:noinline
func (r *Region) touch(off int64) byte { return r.mem[off] }
