package attach

import (
	"sync/atomic"
	"unsafe"
)

// A word is an aligned 4- or 8-byte word of a heap region; one pointer is nil.
type word struct {
	u32 *atomic.Uint32
	u64 *atomic.Uint64
}

// word returns the word of width bytes at off, if it is aligned in memory and
// lies in the region.
func (h *heap) word(off int64, width int) (word, bool) {
	if (width != 4 && width != 8) || !inRange(off, width, len(h.p)) {
		return word{}, false
	}
	at := unsafe.Pointer(&h.p[off])
	if uintptr(at)%uintptr(width) != 0 {
		return word{}, false
	}
	if width == 4 {
		return word{u32: (*atomic.Uint32)(at)}, true
	}
	return word{u64: (*atomic.Uint64)(at)}, true
}

func (w word) load() uint64 {
	if w.u32 != nil {
		return uint64(w.u32.Load())
	}
	return w.u64.Load()
}

func (w word) store(v uint64) {
	if w.u32 != nil {
		w.u32.Store(uint32(v))
		return
	}
	w.u64.Store(v)
}

func (w word) compareAndSwap(old, new uint64) bool {
	if w.u32 != nil {
		return old>>32 == 0 && w.u32.CompareAndSwap(uint32(old), uint32(new))
	}
	return w.u64.CompareAndSwap(old, new)
}
