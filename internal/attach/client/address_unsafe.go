package client

import "unsafe"

// addressOf returns the address of p's first byte. It serves to find the memory that contains p and
// is never dereferenced.
func addressOf(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
