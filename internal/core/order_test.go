package core

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/fabricd/fabricd/rma"
	"pgregory.net/rapid"
)

// TestOperationsOfOneEndAreAppliedInOrder begins random operations of one end,
// each as soon as there is room and no clash, while everything else moves in a
// random order. Memory and the results of reads are the same as if each
// had ended before the next began.
func TestOperationsOfOneEndAreAppliedInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newPair(t, Limits{Ops: 16})
		here, there := a.window(b, 0, 1, both), b.window(a, 0, 1, both)
		wantHere, wantThere := make([]byte, page), make([]byte, page)
		type result struct{ got, want []byte }
		var results []result
		const area = 256 // small, so that operations meet
		at := rapid.Int64Range(0, area-1)
		step := func() {
			limit := rapid.SampledFrom([]int64{16, page}).Draw(t, "piece")
			switch rapid.IntRange(0, 3).Draw(t, "moves") {
			case 0:
				a.write(limit)
			case 1:
				b.write(limit)
			case 2:
				b.take(a)
			case 3:
				a.take(b)
			}
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "operations") {
			roff := at.Draw(t, "remote")
			n := rapid.Int64Range(1, area-roff).Draw(t, "length")
			l := Local{Length: n}
			if plain := rapid.Bool().Draw(t, "plain"); plain {
				l.Buf = bytes.Repeat([]byte{byte(i + 1)}, int(n))
			} else if l.Offset = at.Draw(t, "local"); l.Offset+n > area {
				l.Length = area - l.Offset
				n = l.Length
			}
			kind := rapid.SampledFrom([]OpKind{OpRead, OpWrite, OpAtomic, OpPost, OpSignal}).Draw(t, "kind")
			word := roff &^ 7
			if kind == OpAtomic || kind == OpPost {
				roff, n, l = word, 8, Local{}
			}
			for !a.conn.RoomForPut() || kind != OpRead && clashes(a.conn, l, roff, n) ||
				kind == OpSignal && clashes(a.conn, Local{}, word, 8) {
				step()
			}
			var err error
			switch kind {
			case OpRead:
				_, err = a.conn.Read(l, roff, 0, nil)
				if l.Buf == nil {
					copy(wantHere[l.Offset:l.Offset+n], wantThere[roff:])
				} else {
					results = append(results, result{l.Buf, bytes.Clone(wantThere[roff : roff+n])})
				}
			case OpWrite:
				_, err = a.conn.Write(l, roff, 0, nil)
				if l.Buf == nil {
					copy(wantThere[roff:roff+n], wantHere[l.Offset:])
				} else {
					copy(wantThere[roff:], l.Buf)
				}
			case OpSignal: // a put, whose word may be one of its bytes
				_, err = a.conn.Put(l, rma.Put{Offset: roff, Word: word, Value: uint64(i) + 1}, nil)
				if l.Buf == nil {
					copy(wantThere[roff:roff+n], wantHere[l.Offset:])
				} else {
					copy(wantThere[roff:], l.Buf)
				}
				binary.LittleEndian.PutUint64(wantThere[word:], uint64(i)+1)
			case OpAtomic, OpPost:
				begin, word := a.conn.Atomic, wantThere[roff:roff+8]
				if kind == OpPost {
					begin = a.conn.Post
				}
				err = begin(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff, Operand: uint64(i) + 1}, new(Waiter))
				binary.LittleEndian.PutUint64(word, binary.LittleEndian.Uint64(word)+uint64(i)+1)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				step()
			}
		}
		settle(a, b)
		for i, r := range results {
			if !bytes.Equal(r.got, r.want) {
				t.Fatalf("read %d returned % x, want % x", i, r.got, r.want)
			}
		}
		if !bytes.Equal(here.bytes, wantHere) || !bytes.Equal(there.bytes, wantThere) {
			t.Fatalf("the windows hold\n% x\n% x, want\n% x\n% x", here.bytes[:area], there.bytes[:area], wantHere[:area], wantThere[:area])
		}
	})
}

func clashes(c *Conn[*memory], l Local, roff, n int64) bool {
	m, clash := c.Clash(l, roff, n)
	return clash && !c.ops.Reached(m.Seq)
}

func TestOverlap(t *testing.T) {
	for _, x := range []struct {
		a, n, b, m int64
		want       bool
	}{
		{0, 8, 8, 8, false},
		{8, 8, 0, 8, false},
		{0, 9, 8, 1, true},
		{8, 1, 0, 9, true},
		{4, 2, 0, 100, true},
		{0, 0, 0, 8, false},
		{0, 8, 4, -1, false},
		{-1, 8, 0, 8, true},
		{math.MinInt64, 8, math.MaxInt64, 8, false},
		{math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64, 1, true},
	} {
		if got := overlap(x.a, x.n, x.b, x.m); got != x.want {
			t.Errorf("[%d, +%d) and [%d, +%d): %v, want %v", x.a, x.n, x.b, x.m, got, x.want)
		}
	}
}
