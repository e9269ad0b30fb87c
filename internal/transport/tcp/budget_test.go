package tcp

import (
	"bytes"
	"testing"

	"github.com/fabricd/fabricd/internal/budget"
)

// TestDecodersStayInTheirBudget: no head announces a length that costs memory, and
// what waits for bytes of a lane that come before others costs a part of them.
func TestDecodersStayInTheirBudget(t *testing.T) {
	var inputs [][]byte
	for _, v := range vectors {
		inputs = append(inputs, v, v[min(len(v), headerLen):])
	}
	for _, n := range []int{0, 1, headerLen, helloLen, 200, 1 << 16} {
		for _, fill := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			inputs = append(inputs, bytes.Repeat([]byte{fill}, n))
		}
	}
	for _, p := range inputs {
		budget.Hold(t, "header", p, func(p []byte) {
			if len(p) >= headerLen {
				_, _ = parseHeader(p, maxPiece)
			}
		})
		budget.Hold(t, "hello", p, func(p []byte) {
			if len(p) >= helloLen {
				_, _ = parseHello(p)
			}
		})
		budget.Hold(t, "binding", p, func(p []byte) {
			if len(p) >= bindingLen {
				_, _ = parseBinding(p[:bindingLen])
			}
		})
		// A piece that is ahead is 24 bytes of a list that doubles.
		budget.HoldTimes(t, "announcements", p, 8, func(p []byte) {
			var a assembly
			for ; len(p) >= headerLen; p = p[headerLen:] { // as many as so many bytes are heads
				at := a.next + uint64(len(p))<<8
				_ = a.announce(at, at+1)
			}
		})
	}
}
