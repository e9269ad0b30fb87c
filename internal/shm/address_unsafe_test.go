package shm

import "unsafe"

// address returns where mem begins.
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
