package main

import (
	"sync/atomic"
	"unsafe"
)

// wordAt returns the first 8 bytes of mem as a word that this process and a peer
// read and store. mem is window memory from an offset of whole words on, and has
// at least 8 bytes; the window itself is page-aligned.
func wordAt(mem []byte) *atomic.Uint64 {
	_ = mem[:8]
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem)))
}
