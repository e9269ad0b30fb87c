package attach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

func TestHeapCopiesInsideItsRange(t *testing.T) {
	r := Heap(make([]byte, 64))
	if err := r.WriteAt([]byte("window"), 58); err != nil {
		t.Fatalf("WriteAt the last bytes: %v", err)
	}
	got := make([]byte, 6)
	if err := r.ReadAt(got, 58); err != nil || !bytes.Equal(got, []byte("window")) {
		t.Fatalf("ReadAt = %q, %v, want what was written", got, err)
	}
	for _, off := range []int64{-1, 59, 64, 65, math.MaxInt64, math.MinInt64} {
		if err := r.WriteAt(got, off); !errors.Is(err, status.Invalid) {
			t.Errorf("WriteAt(6 bytes, %d) = %v, want %v", off, err, status.Invalid)
		}
		if err := r.ReadAt(got, off); !errors.Is(err, status.Invalid) {
			t.Errorf("ReadAt(6 bytes, %d) = %v, want %v", off, err, status.Invalid)
		}
	}
}

func TestHeapAtomics(t *testing.T) {
	mem := make([]byte, 32)
	r := Heap(mem)
	for _, width := range []int{4, 8} {
		v := uint64(0xA1B2C3D4)
		if err := r.Store(8, width, v); err != nil {
			t.Fatalf("Store width %d: %v", width, err)
		}
		if got := binary.NativeEndian.Uint32(mem[8:]); width == 4 && got != uint32(v) {
			t.Errorf("memory after a 4-byte store = %#x, want %#x", got, v)
		}
		if ok, err := r.CompareAndSwap(8, width, v+1, 7); ok || err != nil {
			t.Errorf("CompareAndSwap with a wrong old value = %v, %v, want false", ok, err)
		}
		if ok, err := r.CompareAndSwap(8, width, v, 7); !ok || err != nil {
			t.Errorf("CompareAndSwap = %v, %v, want true", ok, err)
		}
		if got, err := r.Load(8, width); got != 7 || err != nil {
			t.Errorf("Load = %d, %v, want 7", got, err)
		}
	}
	if ok, _ := r.CompareAndSwap(8, 4, 1<<32|7, 9); ok {
		t.Error("a 4-byte CompareAndSwap matched an old value of more than 4 bytes")
	}
}

func TestHeapRefusesWordsThatAreNoWords(t *testing.T) {
	r := Heap(make([]byte, 32))
	for _, c := range []struct {
		off   int64
		width int
	}{{1, 4}, {4, 8}, {2, 8}, {0, 2}, {0, 0}, {0, 16}, {-8, 8}, {32, 8}, {28, 8}, {math.MaxInt64, 8}} {
		if _, err := r.Load(c.off, c.width); !errors.Is(err, status.Invalid) {
			t.Errorf("Load(%d, %d) = %v, want %v", c.off, c.width, err, status.Invalid)
		}
		if err := r.Store(c.off, c.width, 1); !errors.Is(err, status.Invalid) {
			t.Errorf("Store(%d, %d) = %v, want %v", c.off, c.width, err, status.Invalid)
		}
		if _, err := r.CompareAndSwap(c.off, c.width, 0, 1); !errors.Is(err, status.Invalid) {
			t.Errorf("CompareAndSwap(%d, %d) = %v, want %v", c.off, c.width, err, status.Invalid)
		}
	}
}
