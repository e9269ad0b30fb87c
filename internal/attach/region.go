package attach

import (
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A Region is the memory of windows, mapped by either side. Offsets and lengths are in bytes; a
// range outside [0, Len()) is status.Invalid. Memory that another process can take away may fail
// with status.Fault at any access; a copy that fails has moved an unspecified part of its bytes.
//
// Load, Store and CompareAndSwap are sequentially consistent with every other
// atomic access to the same word, also by other processes that map the memory.
// width is 4 or 8 bytes and off a multiple of it, else status.Invalid; words
// have the machine's byte order, and a 4-byte word is zero-extended.
//
// A region is reference-counted and made with one reference, its maker's.
// Methods may be called from any goroutine that holds a reference. Touching a
// region after the last Release is a bug in the caller.
type Region interface {
	Len() int64
	ReadAt(p []byte, off int64) error
	WriteAt(p []byte, off int64) error

	Load(off int64, width int) (uint64, error)
	Store(off int64, width int, v uint64) error
	CompareAndSwap(off int64, width int, old, new uint64) (bool, error)

	// Direct returns the memory for direct access while a reference is held,
	// or nil when an access might fault.
	Direct() []byte

	// Retain adds a reference, Release drops one; the last gives the memory back.
	Retain()
	Release()
}

// A WindowRegion is a reference to a window of the peer, see [NodeEndpoint]: the window's memory,
// [off, off+n) of r, and the access allowed to this end.
type WindowRegion interface {
	Region
	Window() (r Region, off, n int64, prot rma.Prot)
}

// Heap returns a region over p, memory of this process that stays valid as
// long as it is referred to. p's first byte must be 8-byte aligned, else the
// atomics return status.Invalid.
func Heap(p []byte) Region { return &heap{p} }

// A heap counts no references: the garbage collector frees its memory.
type heap struct{ p []byte }

func (h *heap) Len() int64     { return int64(len(h.p)) }
func (h *heap) Direct() []byte { return h.p }
func (h *heap) Retain()        {}
func (h *heap) Release()       {}

func (h *heap) ReadAt(p []byte, off int64) error {
	if !inRange(off, len(p), len(h.p)) {
		return status.Invalid
	}
	copy(p, h.p[off:])
	return nil
}

func (h *heap) WriteAt(p []byte, off int64) error {
	if !inRange(off, len(p), len(h.p)) {
		return status.Invalid
	}
	copy(h.p[off:], p)
	return nil
}

func (h *heap) Load(off int64, width int) (uint64, error) {
	w, ok := h.word(off, width)
	if !ok {
		return 0, status.Invalid
	}
	return w.load(), nil
}

func (h *heap) Store(off int64, width int, v uint64) error {
	w, ok := h.word(off, width)
	if !ok {
		return status.Invalid
	}
	w.store(v)
	return nil
}

func (h *heap) CompareAndSwap(off int64, width int, old, new uint64) (bool, error) {
	w, ok := h.word(off, width)
	if !ok {
		return false, status.Invalid
	}
	return w.compareAndSwap(old, new), nil
}

// inRange reports whether [off, off+n) lies in [0, size).
func inRange(off int64, n, size int) bool {
	return off >= 0 && uint64(off) <= uint64(size) && uint64(n) <= uint64(size)-uint64(off)
}
