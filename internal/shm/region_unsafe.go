package shm

import (
	"sync/atomic"
	"unsafe"
)

// word32 and word64 return the word at off, which hasWord has accepted: the
// mapping begins at a page, so the word is aligned.

func (r *Region) word32(off int64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.mem[off]))
}

func (r *Region) word64(off int64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&r.mem[off]))
}
