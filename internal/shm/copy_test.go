package shm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

// random returns n bytes that look like nothing else.
func random(n int) []byte {
	p := make([]byte, n)
	r := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func TestCopyMovesEveryByte(t *testing.T) {
	for _, n := range []int{0, 1, 8, 63, piece - 1, piece, piece + 1, 3*piece + 5, cached, cached + 1, 2*largePiece + 7} {
		src, dst := random(n), make([]byte, n+2)
		if err := Copy(dst[1:n+1], src); err != nil {
			t.Fatalf("Copy of %d bytes: %v", n, err)
		}
		if !bytes.Equal(dst[1:n+1], src) || dst[0] != 0 || dst[n+1] != 0 {
			t.Errorf("Copy of %d bytes has moved something else", n)
		}
	}
	if err := Copy(make([]byte, 1), make([]byte, 2)); !errors.Is(err, status.Invalid) {
		t.Errorf("Copy between different lengths = %v, want %v", err, status.Invalid)
	}
}

func TestCopyOfMemoryThatIsGone(t *testing.T) {
	r := truncated(t)
	p := make([]byte, 100)
	for name, call := range map[string]func() error{
		"Copy from it":        func() error { return Copy(p, r.Bytes()[:100]) },
		"Copy to it":          func() error { return Copy(r.Bytes()[:100], p) },
		"CopyOrdered to it":   func() error { return r.CopyOrdered(0, p) },
		"CopyOrdered, a word": func() error { return r.CopyOrdered(8, p[:8]) },
	} {
		if err := call(); !errors.Is(err, status.Fault) {
			t.Errorf("%s = %v, want %v", name, err, status.Fault)
		}
	}
}

func TestCopyOrderedMovesEveryByte(t *testing.T) {
	r := create(t, 4*PageSize)
	for _, off := range []int64{0, 1, 7, 8, 56, 60, 63, 64, 65} {
		for _, n := range []int{0, 1, 4, 7, 8, 9, 15, 16, 63, 64, 65, 71, 72, 128, 1000} {
			clear(r.Bytes())
			p := random(n)
			if err := r.CopyOrdered(off, p); err != nil {
				t.Fatalf("CopyOrdered(%d, %d bytes): %v", off, n, err)
			}
			if !bytes.Equal(r.Bytes()[off:off+int64(n)], p) || !zero(r.Bytes()[:off]) || !zero(r.Bytes()[off+int64(n):]) {
				t.Errorf("CopyOrdered(%d, %d bytes) has moved something else", off, n)
			}
		}
	}
	for _, off := range []int64{-1, 4*PageSize - 7, 1 << 62} {
		if err := r.CopyOrdered(off, make([]byte, 8)); !errors.Is(err, status.Invalid) {
			t.Errorf("CopyOrdered(%d) = %v, want %v", off, err, status.Invalid)
		}
	}
}

func zero(p []byte) bool { return len(bytes.Trim(p, "\x00")) == 0 }

func TestWordIsTheRegions(t *testing.T) {
	r := create(t, PageSize)
	r.Word(16).Store(77)
	if v, err := r.Load(16, 8); v != 77 || err != nil {
		t.Errorf("Load = %d, %v, want 77", v, err)
	}
	for _, off := range []int64{-8, 4, PageSize, PageSize - 4} {
		if r.Word(off) != nil {
			t.Errorf("Word(%d) is not nil", off)
		}
	}
}

func TestMemoryStaysWithoutItsDescriptor(t *testing.T) {
	r := create(t, PageSize)
	r.CloseFile()
	r.CloseFile()
	if r.File() != nil {
		t.Error("File returns a closed descriptor")
	}
	if err := r.WriteAt([]byte{7}, 9); err != nil || r.Bytes()[9] != 7 {
		t.Errorf("WriteAt = %v, memory has %d", err, r.Bytes()[9])
	}
}

// BenchmarkCopy is the baseline of everything that copies between windows.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{8, 4 << 10, 1 << 20, 16 << 20} {
		src, dst := create(b, int64(n)), create(b, int64(n))
		name := map[int]string{8: "8B", 4 << 10: "4KiB", 1 << 20: "1MiB", 16 << 20: "16MiB"}[n]
		from, to := src.Bytes()[:n], dst.Bytes()[:n]
		copy(from, bytes.Repeat([]byte{1}, n))
		b.Run(name+"/Copy", func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				if err := Copy(to, from); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/plain", func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				copy(to, from)
			}
		})
	}
}
