package fabric

import (
	"sync/atomic"
	"unsafe"
)

// LoadUint64 atomically loads the first 8 bytes of p, in the machine's byte
// order. It is how a program polls for a signal or another word that the peer
// writes: a reader of the value sees everything that was transferred before it.
// p has at least 8 bytes and is 8-byte aligned, as window memory is at every
// multiple of 8.
func LoadUint64(p []byte) uint64 { return wordOf(p).Load() }

// StoreUint64 atomically stores v in the first 8 bytes of p; see [LoadUint64].
func StoreUint64(p []byte, v uint64) { wordOf(p).Store(v) }

// word32 and word64 return the word at p[off:], or false if it is not aligned in
// memory. It lies in p.

func word32(p []byte, off int64) (*atomic.Uint32, bool) {
	at := unsafe.Pointer(&p[off])
	return (*atomic.Uint32)(at), uintptr(at)%4 == 0
}

func word64(p []byte, off int64) (*atomic.Uint64, bool) {
	at := unsafe.Pointer(&p[off])
	return (*atomic.Uint64)(at), uintptr(at)%8 == 0
}

func wordOf(p []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer((*[8]byte)(p))) }
