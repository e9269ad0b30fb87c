package shm

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// A Region is mapped memory with a reference count. Accesses that fault, which
// only memory of another process can make happen, return status.Fault; ranges
// outside the region status.Invalid. Its methods may be called from any
// goroutine that holds a reference.
type Region struct {
	mem       []byte   // the mapping; whole pages
	file      *os.File // nil for anonymous memory; closed with the mapping
	refs      atomic.Int64
	onRelease func() // runs after the last Release; may be nil
}

// Create returns n bytes of zeroed memory, rounded up to whole pages, in a
// memfd of its own whose size is sealed; see [SealWriting] for more seals. Every page is allocated, and charged to this
// process, before Create returns: memory that is missing is status.NoMemory
// here and never a fault later. name shows in /proc/*/maps.
func Create(name string, n int64) (*Region, error) {
	if n <= 0 || n > MaxSize {
		return nil, fmt.Errorf("memory of %d bytes: %w", n, status.Invalid)
	}
	if err := fitsHere(Align(n)); err != nil {
		return nil, err
	}
	f, err := memfd(name, Align(n))
	if err != nil {
		return nil, err
	}
	r, err := Map(f, 0, Align(n), true)
	if err != nil {
		f.Close()
	}
	return r, err
}

// Map maps [off, off+n) of f, both whole pages, for reading and if writable
// also for writing. The region has one reference and owns f; after an error f
// is still the caller's. Memory from elsewhere must have passed [Check].
func Map(f *os.File, off, n int64, writable bool) (*Region, error) {
	if n <= 0 || n > MaxSize || off < 0 || off > MaxSize || off%PageSize != 0 || n%PageSize != 0 {
		return nil, fmt.Errorf("map [%d, +%d): not whole pages: %w", off, n, status.Invalid)
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	var mem []byte
	err := withDescriptor(f, func(fd int) (err error) {
		mem, err = mapShared(fd, off, n, prot)
		return err
	})
	if err != nil {
		return nil, fail(fmt.Sprintf("map %d bytes", n), err, status.Fault)
	}
	return newRegion(mem, f), nil
}

func newRegion(mem []byte, f *os.File) *Region {
	r := &Region{mem: mem, file: f}
	r.refs.Store(1)
	return r
}

// OnRelease makes fn run once, in the goroutine of the last Release, after the
// memory is unmapped. It is called before the region is shared.
func (r *Region) OnRelease(fn func()) { r.onRelease = fn }

// Len returns the region's size in bytes.
func (r *Region) Len() int64 { return int64(len(r.mem)) }

// File returns the descriptor behind the memory, nil for anonymous memory. It
// belongs to the region.
func (r *Region) File() *os.File { return r.file }

// Bytes returns the mapping, also where another process can take its pages away. It is
// for the memory's owner.
func (r *Region) Bytes() []byte { return r.mem }

// Retain adds a reference.
func (r *Region) Retain() {
	if r.refs.Add(1) <= 1 {
		panic("BUG: shm: region retained after its last release")
	}
}

// Release drops a reference. The last one unmaps the memory and closes its
// descriptor.
func (r *Region) Release() {
	switch n := r.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("BUG: shm: region released too often")
	}
	if err := unmap(r.mem); err != nil {
		panic("BUG: shm: munmap of a mapping of ours: " + err.Error())
	}
	if r.file != nil {
		r.file.Close() // nothing is written back: there is no error to lose
	}
	if r.onRelease != nil {
		r.onRelease()
	}
}

// ReadAt copies [off, off+len(p)) of the region to p.
func (r *Region) ReadAt(p []byte, off int64) error {
	if !r.has(off, len(p)) {
		return status.Invalid
	}
	return Copy(p, r.mem[off:off+int64(len(p))])
}

// WriteAt copies p to [off, off+len(p)) of the region.
func (r *Region) WriteAt(p []byte, off int64) error {
	if !r.has(off, len(p)) {
		return status.Invalid
	}
	return Copy(r.mem[off:off+int64(len(p))], p)
}

// Load returns the word of width bytes, 4 or 8, at off, a multiple of width.
func (r *Region) Load(off int64, width int) (v uint64, err error) {
	if !r.hasWord(off, width) {
		return 0, status.Invalid
	}
	defer caught(debug.SetPanicOnFault(true), &err)
	r.touch(off)
	if width == 4 {
		return uint64(r.word32(off).Load()), nil
	}
	return r.word64(off).Load(), nil
}

// Store stores the low width bytes of v, as Load loads them.
func (r *Region) Store(off int64, width int, v uint64) (err error) {
	if !r.hasWord(off, width) {
		return status.Invalid
	}
	defer caught(debug.SetPanicOnFault(true), &err)
	r.touch(off)
	if width == 4 {
		r.word32(off).Store(uint32(v))
	} else {
		r.word64(off).Store(v)
	}
	return nil
}

// CompareAndSwap stores new if the word, as Load loads it, is old.
func (r *Region) CompareAndSwap(off int64, width int, old, new uint64) (swapped bool, err error) {
	if !r.hasWord(off, width) {
		return false, status.Invalid
	}
	defer caught(debug.SetPanicOnFault(true), &err)
	r.touch(off)
	if width == 4 {
		return old>>32 == 0 && r.word32(off).CompareAndSwap(uint32(old), uint32(new)), nil
	}
	return r.word64(off).CompareAndSwap(old, new), nil
}

// has reports whether [off, off+n) lies in the region.
func (r *Region) has(off int64, n int) bool {
	size := uint64(len(r.mem))
	return off >= 0 && uint64(off) <= size && uint64(n) <= size-uint64(off)
}

// hasWord reports whether an aligned word of width bytes lies at off.
func (r *Region) hasWord(off int64, width int) bool {
	return (width == 4 || width == 8) && r.has(off, width) && off%int64(width) == 0
}

// caught ends an access that began with debug.SetPanicOnFault(true), which
// returned old: it turns the panic of a fault into an error.
func caught(old bool, err *error) {
	debug.SetPanicOnFault(old)
	switch e := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // only the runtime's error of a fault has it
		*err = fmt.Errorf("memory at %#x faulted: %w", e.Addr(), status.Fault)
	default:
		panic(e)
	}
}
