package tcp

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// bytesOf returns the bytes of a frame, piece by piece.
func bytesOf(f *keptFrame) (all []byte) {
	for len(all) < f.length {
		all = append(all, f.piece(len(all))...)
	}
	return all
}

// TestKeptIsWhatThePeerHasNotGot writes frames and acknowledges some: what is sent
// again after the cut begins where the peer's bytes end.
func TestKeptIsWhatThePeerHasNotGot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k kept
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
			if !k.add(copyFrame(7, uint64(len(stream)), vector{p[:cut], p[cut:]})) {
				t.Fatal("not kept")
			}
			stream = append(stream, p...)
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
		if k.add(copyFrame(7, 0, vector{b: []byte("late")})) {
			t.Fatal("kept after the cut")
		}
	})
}

func TestPositionsThatNobodyWrote(t *testing.T) {
	var k kept
	k.add(copyFrame(1, 0, vector{b: make([]byte, 100)}))
	k.add(copyFrame(1, 100, vector{b: make([]byte, 100)}))
	k.add(copyFrame(1, 200, vector{b: make([]byte, maxPiece)})) // as long as there are
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
