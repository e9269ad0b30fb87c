package ipc

import (
	"bytes"
	"runtime"
	"testing"
)

// TestDecoderStaysInItsBudget: no packet makes a decoder allocate more than
// 64 KiB and four times its length, whatever lengths it announces.
func TestDecoderStaysInItsBudget(t *testing.T) {
	var inputs [][]byte
	for _, b := range bodies {
		p := appendFrame(nil, b.h, b.m)
		inputs = append(inputs, p, p[headerLen:])
	}
	for _, n := range []int{0, 1, 15, 16, 17, 600, maxFrame} {
		for _, fill := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			inputs = append(inputs, bytes.Repeat([]byte{fill}, n))
		}
	}
	for _, b := range bodies {
		for _, p := range inputs {
			got := allocatedBy(func() {
				_, _, _ = parseFrame(p)
				_ = parseBody(p, fresh(b.m)) // for its cost only
			})
			if limit := uint64(64<<10 + 4*len(p)); got > limit {
				t.Errorf("%s allocates %d bytes for %d bytes (% x…), want %d at most", b.name, got, len(p), p[:min(len(p), 16)], limit)
			}
		}
	}
}

// allocatedBy returns how many bytes f allocates. The least of a few runs
// counts: what else the process does allocates, too.
func allocatedBy(f func()) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= 64<<10 {
			break
		}
	}
	return least
}
