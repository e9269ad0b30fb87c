package main

import (
	"sync/atomic"
	"unsafe"
)

// wordAt returns the first 8 bytes of window memory as a word that this process
// reads while a peer's signals and atomics store it. Window memory is
// page-aligned; mem has at least 8 bytes.
func wordAt(mem []byte) *atomic.Uint64 {
	_ = mem[:8]
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem)))
}
