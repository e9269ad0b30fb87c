// Package budget bounds the allocations of decoders: a length that is
// announced in an input must not cost memory before the bytes are there.
package budget

import (
	"runtime"
	"testing"
)

// Base is the allocation in bytes that a decoder may make for any input, and Factor how
// many times the length of the input besides. Text may cost TextFactor times its length:
// the libraries that parse it make a value of every comma, and each text has a
// bound of its own, which the decoder checks first.
const (
	Base       = 64 << 10
	Factor     = 4
	TextFactor = 1024
)

// Hold fails t if decode allocates more than Base and Factor times the length of p.
func Hold(t testing.TB, name string, p []byte, decode func([]byte)) {
	t.Helper()
	HoldTimes(t, name, p, Factor, decode)
}

// HoldTimes is Hold with another factor.
func HoldTimes(t testing.TB, name string, p []byte, factor int, decode func([]byte)) {
	t.Helper()
	limit := uint64(Base + factor*len(p))
	if got := Allocated(limit, func() { decode(p) }); got > limit {
		t.Errorf("%s allocates %d bytes for %d bytes (% x…), want %d at most", name, got, len(p), p[:min(len(p), 16)], limit)
	}
}

// Allocated returns the bytes that f allocates. The least of three runs counts,
// and the first that is at most enough: other goroutines of the process allocate
// too.
func Allocated(enough uint64, f func()) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= enough {
			break
		}
	}
	return least
}
