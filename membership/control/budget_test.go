package control

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/budget"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestDecoderStaysInItsBudget: no body makes the decoder allocate more than
// 64 KiB and four times its length, whatever counts and lengths it announces.
func TestDecoderStaysInItsBudget(t *testing.T) {
	nothing := verdict.Entry{Node: verdict.Node{Incarnation: addr.Incarnation{Node: 1, Generation: 1}, State: verdict.Alive}}
	nothing.Node.Claims = must(verdict.NewClaims("n", slices.Repeat([]string{"a:1"}, verdict.MaxAddresses),
		slices.Repeat([]string{"p"}, verdict.MaxProviders)))
	bomb := verdict.Table{Term: 1, First: true, Last: true, Entries: make([]verdict.Entry, verdict.MaxEntries)}
	for i := range bomb.Entries { // small on the wire, large in memory
		bomb.Entries[i] = nothing
	}
	var inputs [][]byte
	examples := []any{bomb, JoinGrant{Roots: make([][]byte, maxRoots)}}
	for _, f := range frames {
		examples = append(examples, f)
	}
	for _, f := range examples {
		b, err := AppendFrame(nil, f)
		if err != nil {
			t.Fatalf("%T: %v", f, err)
		}
		inputs = append(inputs, b[HeaderLen:])
	}
	for _, n := range []int{0, 1, 2, 16, 300, 9000, MaxBody} {
		for _, fill := range []byte{0, 1, 8, 64, 0x7f, 0x80, 0xff} {
			inputs = append(inputs, bytes.Repeat([]byte{fill}, n))
		}
	}
	for typ := range 256 {
		for _, p := range inputs {
			budget.Hold(t, fmt.Sprintf("type %d", typ), p, func(p []byte) { _, _ = parseBody(frameType(typ), p) })
		}
	}
}
