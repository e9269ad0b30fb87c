package engine

import (
	"encoding/binary"
	"unsafe"

	"github.com/fabricd/fabricd/rma"
)

// address returns the address of p's first byte; p is not empty. It is looked
// at for its alignment only.
func address(p []byte) uintptr { return uintptr(unsafe.Pointer(&p[0])) }

// pages returns n zeroed bytes, aligned to a page.
func pages(n int) []byte {
	p := make([]byte, n+rma.PageSize-1)
	skip := int(-address(p) & (rma.PageSize - 1))
	return p[skip : skip+n : skip+n]
}

func nativeWord(p []byte) uint64       { return binary.NativeEndian.Uint64(p) }
func putNativeWord(p []byte, v uint64) { binary.NativeEndian.PutUint64(p, v) }
