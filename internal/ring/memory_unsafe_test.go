package ring

import "unsafe"

// memory returns zeroed memory that begins at a cache line.
func memory(n int) []byte {
	b := make([]byte, n+slotSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (slotSize - 1)
	return b[skip : skip+n]
}
