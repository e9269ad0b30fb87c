package client

import "unsafe"

// addressOf returns the address of p's first byte. It only finds the memory
// that p is part of; nothing is accessed through it.
func addressOf(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
