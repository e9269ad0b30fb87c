package stream

import (
	"bytes"
	"testing"

	"github.com/fabricd/fabricd/internal/test/budget"
)

// TestDecodersStayInTheirBudget: no head announces a length that costs memory.
func TestDecodersStayInTheirBudget(t *testing.T) {
	inputs := [][]byte{ownHello.appendTo(nil), appendFrame(nil, typeDatagram, make([]byte, 1000)), muxFrame(muxWindow, muxSYN, 3, 1<<31)}
	for _, n := range []int{0, 1, frameHeader, helloLen, 200, 1 << 16} {
		for _, fill := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			inputs = append(inputs, bytes.Repeat([]byte{fill}, n))
		}
	}
	for _, p := range inputs {
		buf := make([]byte, maxBody)
		budget.Hold(t, "frame", p, func(p []byte) { _, _, _ = readFrame(bytes.NewReader(p), buf) })
		budget.Hold(t, "hello", p, func(p []byte) {
			if len(p) >= helloLen {
				_, _ = parseHello(p[:helloLen])
			}
		})
		budget.HoldTimes(t, "frames of yamux", p, 64, func(p []byte) {
			c := muxConn{streamsMax: maxStreams, streams: make(map[uint32]*waiting)}
			_ = c.follow(p)
		})
	}
}
