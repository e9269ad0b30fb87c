package proto

import (
	"bytes"
	"testing"

	"github.com/fabricd/fabricd/internal/test/budget"
)

// TestDecoderStaysInItsBudget: no packet makes a decoder allocate more than 64 KiB and four times
// its length, for any lengths in it.
func TestDecoderStaysInItsBudget(t *testing.T) {
	var inputs [][]byte
	for _, b := range bodies {
		p := AppendFrame(nil, b.h, b.m)
		inputs = append(inputs, p, p[HeaderLen:])
	}
	for _, n := range []int{0, 1, 15, 16, 17, 600, MaxFrame} {
		for _, fill := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			inputs = append(inputs, bytes.Repeat([]byte{fill}, n))
		}
	}
	for _, b := range bodies {
		for _, p := range inputs {
			budget.Hold(t, b.name, p, func(p []byte) {
				_, _, _ = ParseFrame(p)
				_ = ParseBody(p, fresh(b.m)) // for its cost only
			})
		}
	}
}
