package attach

import "github.com/fabricd/fabricd/rma"

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
