package ring

import (
	"sync/atomic"
	"unsafe"
)

// aligned reports whether mem begins at a cache line.
func aligned(mem []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%slotSize == 0
}

// word32 and word64 return words of the head: off is one of the constants, within every ring's
// memory and aligned.

func (l *layout) word32(off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&l.mem[off])) }
func (l *layout) word64(off int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&l.mem[off])) }

// at64 returns the word that publishes the piece at a position.
func (l *layout) at64(at uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&l.slot(at)[0]))
}
