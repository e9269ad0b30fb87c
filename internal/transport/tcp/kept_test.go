package tcp

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/transport"
)

// bytesOf returns the bytes of a frame, piece by piece.
func bytesOf(f *keptFrame) (all []byte) {
	for len(all) < f.length {
		all = append(all, f.piece(len(all))...)
	}
	return all
}

// frameOf returns a frame with a head of some bytes of p, and the rest of p as its
// payload; held or, if hold is nil, copied.
func frameOf(lane, at uint64, head int, p []byte, hold transport.Hold) keptFrame {
	g := newGather([]transport.Part{{Head: p[:head], Payload: p[head:]}}, nil)
	s := newSheaf(header{kind: typeData, length: uint32(len(p)), lane: lane, value: at}, &g)
	defer s.free()
	s.hold = hold
	return keepFrame(lane, at, len(p), s)
}

// A countedHold is memory that is overwritten as soon as nobody holds it.
type countedHold struct {
	users atomic.Int32
	p     []byte
}

func (h *countedHold) Retain() { h.users.Add(1) }

func (h *countedHold) Release() {
	if h.users.Add(-1) == 0 {
		for i := range h.p {
			h.p[i] ^= 0xFF
		}
	}
}

// TestKeptIsWhatThePeerHasNotGot writes frames and acknowledges some: what is sent
// again after the cut begins where the peer's bytes end.
func TestKeptIsWhatThePeerHasNotGot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k kept
		var holds []*countedHold
		var stream []byte         // the payload of all frames
		var begins, ends []uint64 // positions
		var offsets = []int{0}    // of the frames in stream
		var got, acked uint64 = 0, 0
		frames := rapid.IntRange(0, 8).Draw(t, "frames")
		seed := rapid.Uint64().Draw(t, "bytes")
		for range frames {
			n := rapid.SampledFrom([]int{1, 100, chunkLen - 1, chunkLen, chunkLen + 1, 3*chunkLen + 7}).Draw(t, "length")
			p := random(seed+uint64(len(stream)), n)
			cut := rapid.IntRange(0, min(n, 1000)).Draw(t, "head")
			var hold transport.Hold
			if rapid.Bool().Draw(t, "held") {
				h := &countedHold{p: p[cut:]}
				holds = append(holds, h)
				hold = h
			}
			stream = append(stream, p...)
			if !k.add(frameOf(7, uint64(len(stream)-n), cut, p, hold)) {
				t.Fatal("not kept")
			}
			if hold == nil {
				clear(p)
			} else {
				clear(p[:cut])
			}
			if rapid.Bool().Draw(t, "detach") {
				freeAll(k.detach(7))
			}
			offsets = append(offsets, len(stream))
			begins, ends = append(begins, k.written-uint64(n)), append(ends, k.written)
			if rapid.Bool().Draw(t, "acknowledge") {
				acked = ends[rapid.IntRange(0, len(ends)-1).Draw(t, "up to")]
				if err := k.ack(acked); (err != nil) != (acked < got) {
					t.Fatalf("ack of %d after %d: %v", acked, got, err)
				}
				got = max(got, acked)
			}
		}
		has := rapid.Uint64Range(got, k.written).Draw(t, "has")
		again, err := k.lost(has)
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range holds {
			if h.users.Load() != 0 {
				t.Fatalf("hold %d has %d users behind the cut", i, h.users.Load())
			}
		}
		want := stream
		for i := range begins {
			if has >= ends[i] {
				want = stream[offsets[i+1]:]
			} else if has > begins[i] {
				want = stream[offsets[i]+int(has-begins[i]):]
			}
		}
		var all []byte
		for i := range again {
			if again[i].at != uint64(len(stream)-len(want)+len(all)) || again[i].lane != 7 {
				t.Fatalf("frame %d at %d of lane %d", i, again[i].at, again[i].lane)
			}
			all = append(all, bytesOf(&again[i])...)
			again[i].free()
		}
		if !bytes.Equal(all, want) {
			t.Fatalf("%d bytes are sent again, want %d", len(all), len(want))
		}
		if k.add(frameOf(7, 0, 0, []byte("late"), nil)) {
			t.Fatal("kept after the cut")
		}
	})
}

func TestPositionsThatNobodyWrote(t *testing.T) {
	var k kept
	k.add(frameOf(1, 0, 0, make([]byte, 100), nil))
	k.add(frameOf(1, 100, 0, make([]byte, 100), nil))
	k.add(frameOf(1, 200, 0, make([]byte, maxPiece), nil)) // as long as there are
	for _, position := range []uint64{3*headerLen + 200 + maxPiece + 1, maxOffset} {
		if err := k.ack(position); !errors.Is(err, errMalformed) {
			t.Errorf("ack of %d: %v", position, err)
		}
	}
	if err := k.ack(headerLen + 100); err != nil {
		t.Error(err)
	}
	if _, err := k.lost(0); !errors.Is(err, errMalformed) {
		t.Errorf("lost at 0 behind an ack: %v", err)
	}
}
