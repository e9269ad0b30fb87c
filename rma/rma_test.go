package rma_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

const both = rma.ProtRead | rma.ProtWrite

func mustRegister(t testing.TB, s *rma.Space[string], m string, n, off int64) *rma.Window[string] {
	t.Helper()
	if _, err := s.Register(m, n, off, both, rma.MapFixed); err != nil {
		t.Fatalf("Register %q at %#x: %v", m, off, err)
	}
	return s.At(off)
}

func TestRegisterChecksInOrder(t *testing.T) {
	const top = math.MaxInt64 &^ (page - 1) // the last page's offset
	var s rma.Space[string]
	mustRegister(t, &s, "taken", page, 0)
	for _, tt := range []struct {
		name   string
		n, off int64
		prot   rma.Prot
		flags  rma.MapFlags
		want   error
	}{
		{"unknown flag", page, 4 * page, both, 1, status.Invalid},
		{"kernel flag", page, 4 * page, both, 0x20, status.Invalid},
		{"fixed, unaligned", page, 1, both, rma.MapFixed, status.Invalid},
		{"fixed, negative", page, -page, both, rma.MapFixed, status.Invalid},
		{"fixed, wraps", 2 * page, top, both, rma.MapFixed, status.Invalid},
		{"fixed, wraps with the largest length", math.MaxInt64, page, both, rma.MapFixed, status.Invalid},
		{"unknown protection", page, 4 * page, 4, rma.MapFixed, status.Invalid},
		{"length zero", 0, 4 * page, both, rma.MapFixed, status.Invalid},
		{"length negative", -page, 4 * page, both, 0, status.Invalid},
		{"length not whole pages", page + 1, 4 * page, both, 0, status.Invalid},
		{"bad protection before taken offset", page, 0, 4, rma.MapFixed, status.Invalid},
		{"taken", page, 0, both, rma.MapFixed, status.InUse},
		{"overlaps from below to above", 3 * page, 0, both, rma.MapFixed, status.InUse},
		{"no protection", page, 8 * page, 0, rma.MapFixed, nil},
		{"high offset", page, rma.FirstOffset, both, rma.MapFixed, nil},
		{"the highest offset", page, top - page, both, rma.MapFixed, nil},
	} {
		off, err := s.Register(tt.name, tt.n, tt.off, tt.prot, tt.flags)
		if !errors.Is(err, tt.want) || err == nil && off != tt.off {
			t.Errorf("%s: Register = %#x, %v; want %v", tt.name, off, err, tt.want)
		}
	}
}

func TestOffsetsAreChosenFromTheBottom(t *testing.T) {
	var s rma.Space[string]
	for _, tt := range []struct {
		name          string
		n, hint, want int64
	}{
		{"first", 2 * page, 0, rma.FirstOffset},
		{"second", page, 0, rma.FirstOffset + 2*page},
		{"free hint", page, 0x10000, 0x10000},
		{"taken hint", page, 0x10000, rma.FirstOffset + 3*page},
		{"unaligned hint", page, 0x20001, rma.FirstOffset + 4*page},
		{"negative hint", page, -page, rma.FirstOffset + 5*page},
		{"hint that wraps", page, math.MaxInt64 &^ (page - 1), rma.FirstOffset + 6*page},
		{"hint that is the first offset", page, rma.FirstOffset, rma.FirstOffset + 7*page},
	} {
		if got, err := s.Register(tt.name, tt.n, tt.hint, both, 0); got != tt.want || err != nil {
			t.Errorf("%s: Register = %#x, %v; want %#x", tt.name, got, err, tt.want)
		}
	}

	gone, err := s.Unregister(rma.FirstOffset, 2*page)
	if err != nil || len(gone) != 1 || !s.Retire(gone[0]) {
		t.Fatalf("Unregister of the first window: %v, %v", gone, err)
	}
	if got, err := s.Register("too long", 3*page, 0, both, 0); got != rma.FirstOffset+8*page || err != nil {
		t.Errorf("a window longer than the gap is at %#x, %v", got, err)
	}
	if got, err := s.Register("fits", 2*page, 0, both, 0); got != rma.FirstOffset || err != nil {
		t.Errorf("a window that fits the gap is at %#x, %v", got, err)
	}
}

func TestNoOffsetIsLeft(t *testing.T) {
	var s rma.Space[string]
	half := int64(1) << 61
	for range 2 {
		// The last page below 2^63 is never used: its end has no offset.
		if _, err := s.Register("half", half-page, 0, both, 0); err != nil {
			t.Fatal(err)
		}
	}
	if off, err := s.Register("one more", half, 0, both, 0); !errors.Is(err, status.NoMemory) {
		t.Errorf("Register without a free offset = %#x, %v; want status.NoMemory", off, err)
	}
}

func TestWindowsAreBounded(t *testing.T) {
	var s rma.Space[string]
	for i := range rma.MaxWindows {
		if _, err := s.Register("", page, 0, both, 0); err != nil {
			t.Fatalf("window %d: %v", i, err)
		}
	}
	if _, err := s.Register("", page, 0, both, 0); !errors.Is(err, status.NoMemory) {
		t.Errorf("window %d: %v, want status.NoMemory", rma.MaxWindows+1, err)
	}
	if _, err := s.Register("", page, rma.FirstOffset, both, rma.MapFixed); !errors.Is(err, status.InUse) {
		t.Errorf("a taken offset in a full space: %v, want status.InUse", err)
	}
	gone, _ := s.Unregister(rma.FirstOffset, page)
	if _, err := s.Register("", page, 0, both, 0); !errors.Is(err, status.NoMemory) {
		t.Errorf("a withdrawn window does not count: %v", err)
	}
	s.Retire(gone[0])
	if _, err := s.Register("", page, 0, both, 0); err != nil {
		t.Errorf("no room after a window is gone: %v", err)
	}
}

func TestUnregisterTakesWholeWindows(t *testing.T) {
	newSpace := func() *rma.Space[string] {
		s := new(rma.Space[string])
		mustRegister(t, s, "a", 2*page, 0)
		mustRegister(t, s, "b", page, 2*page) // adjacent to a
		mustRegister(t, s, "c", page, 6*page) // after a gap
		return s
	}
	for _, tt := range []struct {
		name   string
		off, n int64
		want   string
		err    error
	}{
		{"one", 0, 2 * page, "a", nil},
		{"all, with the gap", 0, 10 * page, "abc", nil},
		{"everything", 0, math.MaxInt64 &^ (page - 1), "abc", nil},
		{"empty range", 3 * page, 3 * page, "", nil},
		{"empty range behind all", 7 * page, page, "", nil},
		{"starts inside a window", page, page, "", status.Invalid},
		{"ends inside a window", 0, page, "", status.Invalid},
		{"cuts the last of several", 2 * page, 4*page + 1, "", status.Invalid},
		{"whole b and a part of a", page, 2 * page, "", status.Invalid},
		{"length zero", 0, 0, "", status.Invalid},
		{"length negative", 0, -page, "", status.Invalid},
		{"length not whole pages", 0, 1, "", status.Invalid},
		{"offset unaligned", 1, page, "", status.Invalid},
		{"offset negative", -page, 2 * page, "", status.Invalid},
		{"wraps", 2 * page, math.MaxInt64 &^ (page - 1), "", status.Invalid},
	} {
		s := newSpace()
		gone, err := s.Unregister(tt.off, tt.n)
		var got string
		for _, w := range gone {
			got += w.Mem
		}
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: Unregister = %q, %v; want %q, %v", tt.name, got, err, tt.want, tt.err)
		}
		for w := range s.Windows() {
			if tt.err != nil && !w.Registered() {
				t.Errorf("%s: window %q was withdrawn though the call failed", tt.name, w.Mem)
			}
		}
	}
}

func TestReferencedWindowKeepsItsOffsets(t *testing.T) {
	var s rma.Space[string]
	w := mustRegister(t, &s, "w", page, 0)
	s.Retain(w) // a mapping
	gone, err := s.Unregister(0, page)
	if err != nil || len(gone) != 1 || gone[0] != w {
		t.Fatalf("Unregister = %v, %v", gone, err)
	}

	if _, err := s.Spans(nil, 0, 8, 0); !errors.Is(err, status.NoAddress) {
		t.Errorf("a new operation on a withdrawn window: %v, want status.NoAddress", err)
	}
	if _, err := s.PeerSpans(nil, 0, 8, 0); err != nil {
		t.Errorf("the peer's operation under way: %v", err)
	}
	if s.Retire(w) {
		t.Error("Retire says that the window is gone while a mapping holds it")
	}
	if _, err := s.PeerSpans(nil, 0, 8, 0); !errors.Is(err, status.NoAddress) {
		t.Errorf("the peer's operation after it confirmed: %v, want status.NoAddress", err)
	}
	if _, err := s.Register("again", page, 0, both, rma.MapFixed); !errors.Is(err, status.InUse) {
		t.Errorf("registering over a referenced window: %v, want status.InUse", err)
	}
	if again, err := s.Unregister(0, page); again != nil || err != nil {
		t.Errorf("a second Unregister = %v, %v; want nothing", again, err)
	}
	if !s.Release(w) || !w.Gone() {
		t.Error("the last Release does not say that the window is gone")
	}
	mustRegister(t, &s, "again", page, 0)
}

func TestReferenceBugsPanic(t *testing.T) {
	for name, f := range map[string]func(*rma.Space[string], *rma.Window[string]){
		"Release of the registration's reference": func(s *rma.Space[string], w *rma.Window[string]) { s.Release(w) },
		"Retire of a registered window":           func(s *rma.Space[string], w *rma.Window[string]) { s.Retire(w) },
		"Retire twice": func(s *rma.Space[string], w *rma.Window[string]) {
			s.Retain(w)
			s.UnregisterAll()
			s.Retire(w)
			s.Retire(w)
		},
		"Retain of a gone window": func(s *rma.Space[string], w *rma.Window[string]) {
			s.UnregisterAll()
			s.Retire(w)
			s.Retain(w)
		},
		"Release after Withdraw of what was never retained": func(s *rma.Space[string], w *rma.Window[string]) {
			if s.Withdraw(0, page) != nil {
				return
			}
			s.Release(w)
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			var s rma.Space[string]
			f(&s, mustRegister(t, &s, "w", page, 0))
		}()
	}
}

func TestSpansOverAdjacentWindows(t *testing.T) {
	var s rma.Space[string]
	mustRegister(t, &s, "a", page, 0)
	mustRegister(t, &s, "b", 2*page, page)
	s.Register("r", page, 3*page, rma.ProtRead, rma.MapFixed)
	mustRegister(t, &s, "behind a gap", page, 5*page)

	for _, tt := range []struct {
		off, n int64
		need   rma.Prot
		want   string
		err    error
	}{
		{0, 1, both, "a+0:1", nil},
		{page - 1, 1, both, "a+4095:1", nil},
		{page - 1, 2, both, "a+4095:1 b+0:1", nil},
		{100, 3 * page, rma.ProtRead, "a+100:3996 b+0:8192 r+0:100", nil},
		{3 * page, page, rma.ProtWrite, "", status.Access},
		{2 * page, 2 * page, both, "", status.Access},
		{3 * page, 2 * page, rma.ProtWrite, "", status.Access}, // before the hole
		{3 * page, page + 1, rma.ProtRead, "", status.NoAddress},
		{4 * page, 1, 0, "", status.NoAddress},
		{6 * page, 1, 0, "", status.NoAddress},
		{-1, 2, 0, "", status.NoAddress},
		{math.MinInt64, 1, 0, "", status.NoAddress},
		{page, math.MaxInt64, 0, "", status.NoAddress},
		{0, math.MaxInt64, 0, "", status.NoAddress},
		{0, 0, 0, "", status.Invalid},
		{0, -1, 0, "", status.Invalid},
		{-1, 0, 0, "", status.Invalid},
	} {
		spans, err := s.Spans(nil, tt.off, tt.n, tt.need)
		var got string
		for i, sp := range spans {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%s+%d:%d", sp.Window.Mem, sp.Offset, sp.Length)
		}
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("Spans(%#x, %#x, %d) = %q, %v; want %q, %v", tt.off, tt.n, tt.need, got, err, tt.want, tt.err)
		}
	}
}

func TestSpansAppends(t *testing.T) {
	var s rma.Space[string]
	mustRegister(t, &s, "a", page, 0)
	mustRegister(t, &s, "b", page, page)
	dst := make([]rma.Span[string], 0, 4)
	dst, _ = s.Spans(dst, 0, 8, both)
	if _, err := s.Spans(dst, 0, 3*page, both); err == nil {
		t.Error("no error for a range beyond the windows")
	}
	dst, err := s.Spans(dst, 0, 2*page, both)
	if len(dst) != 3 || err != nil || dst[0].Length != 8 || dst[2].Window.Mem != "b" {
		t.Errorf("Spans = %v, %v; want the first span kept and two more", dst, err)
	}
	if n := testing.AllocsPerRun(100, func() { s.Spans(dst[:0], 0, 2*page, both) }); n != 0 {
		t.Errorf("Spans into a slice with room: %v allocations", n)
	}
}

func TestHostileAnnouncements(t *testing.T) {
	s := rma.Space[struct{}]{Max: 2}
	if err := s.Announce(page, 2*page, both); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		off, n int64
		prot   rma.Prot
		want   error
	}{
		{"overlap below", 0, 2 * page, both, status.InUse},
		{"overlap above", 2 * page, 2 * page, both, status.InUse},
		{"the same", page, 2 * page, both, status.InUse},
		{"around", 0, 4 * page, both, status.InUse},
		{"negative offset", -page, page, both, status.Invalid},
		{"negative length", 8 * page, -page, both, status.Invalid},
		{"empty", 8 * page, 0, both, status.Invalid},
		{"wraps", math.MaxInt64 &^ (page - 1), page, both, status.Invalid},
		{"protection", 8 * page, page, 0xFF, status.Invalid},
		{"unaligned", 8*page + 1, page, both, status.Invalid},
		{"second", 8 * page, page, both, nil},
		{"third", 16 * page, page, both, status.NoMemory},
	} {
		if err := s.Announce(tt.off, tt.n, tt.prot); !errors.Is(err, tt.want) {
			t.Errorf("%s: Announce = %v, want %v", tt.name, err, tt.want)
		}
	}
	for _, tt := range []struct {
		name   string
		off, n int64
		want   error
	}{
		{"a part", page, page, status.Invalid},
		{"more", page, 3 * page, status.Invalid},
		{"inside", 2 * page, page, status.Invalid},
		{"nothing there", 4 * page, page, status.Invalid},
		{"negative", -page, page, status.Invalid},
		{"the window", page, 2 * page, nil},
		{"the window again", page, 2 * page, status.Invalid},
	} {
		if err := s.Withdraw(tt.off, tt.n); !errors.Is(err, tt.want) {
			t.Errorf("%s: Withdraw = %v, want %v", tt.name, err, tt.want)
		}
	}
	if s.Len() != 1 {
		t.Errorf("%d windows, want 1", s.Len())
	}
	s.UnregisterAll()
	if err := s.Withdraw(8*page, page); !errors.Is(err, status.Invalid) {
		t.Errorf("Withdraw of a window that is withdrawn already: %v, want status.Invalid", err)
	}
}

func TestCheckFlags(t *testing.T) {
	for f := range rma.Flags(1 << 9) {
		ok := f == 0 || f&0xF != 0
		if err := rma.CheckFlags(f); (err == nil) != ok || err != nil && !errors.Is(err, status.Invalid) {
			t.Errorf("CheckFlags(%#x) = %v, want ok=%v", f, err, ok)
		}
	}
}

func TestCheckAtomic(t *testing.T) {
	for op := range 256 {
		for _, width := range []uint8{0, 1, 2, 3, 4, 5, 8, 16, 255} {
			for _, off := range []int64{0, 4, 8, 1, 2, -8, -4, -1} {
				a := rma.Atomic{Op: rma.AtomicOp(op), Width: width, Offset: off}
				ok := op >= 1 && op <= 8 && (width == 4 && off&3 == 0 || width == 8 && off&7 == 0)
				if err := rma.CheckAtomic(a); (err == nil) != ok {
					t.Errorf("CheckAtomic(%+v) = %v, want ok=%v", a, err, ok)
				}
			}
		}
	}
}

func TestApply(t *testing.T) {
	const big = math.MaxUint64
	for _, tt := range []struct {
		op                    rma.AtomicOp
		width                 uint8
		old, operand, compare uint64
		want                  uint64
	}{
		{rma.AtomicAdd, 8, 5, 7, 0, 12},
		{rma.AtomicAdd, 8, 0, big, 0, big},
		{rma.AtomicAdd, 8, 1, big, 0, 0},
		{rma.AtomicAdd, 4, 1, big, 0, 0}, // -1 in 32 bits
		{rma.AtomicAdd, 4, math.MaxUint32, 1, 0, 0},
		{rma.AtomicAnd, 8, 0xFF0F, 0x0FFF, 0, 0x0F0F},
		{rma.AtomicOr, 8, 0xF000, 0x000F, 0, 0xF00F},
		{rma.AtomicXor, 8, 0xFF, 0x0F, 0, 0xF0},
		{rma.AtomicXor, 4, 0xFF, 0xF_0000_000F, 0, 0xF0},
		{rma.AtomicSwap, 8, 1, big, 0, big},
		{rma.AtomicSwap, 4, 1, big, 0, math.MaxUint32},
		{rma.AtomicCAS, 8, 3, 9, 3, 9},
		{rma.AtomicCAS, 8, 3, 9, 4, 3},
		{rma.AtomicCAS, 4, 3, 9, 0xF_0000_0003, 9}, // the upper half does not count
		{rma.AtomicCAS, 8, 3, 9, 0xF_0000_0003, 3},
		{rma.AtomicMin, 8, 3, big, 0, 3}, // unsigned
		{rma.AtomicMin, 8, big, 3, 0, 3},
		{rma.AtomicMax, 8, 3, big, 0, big},
		{rma.AtomicMax, 8, big, 3, 0, big},
		{rma.AtomicMax, 4, 3, 0xF_0000_0001, 0, 3},
	} {
		a := rma.Atomic{Op: tt.op, Width: tt.width, Operand: tt.operand, Compare: tt.compare}
		if got := rma.Apply(tt.old, a); got != tt.want {
			t.Errorf("Apply(%#x, %+v) = %#x, want %#x", tt.old, a, got, tt.want)
		}
	}
}

func TestApplyOf32BitsNeverSetsTheUpperHalf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rma.Atomic{
			Op:      rma.AtomicOp(rapid.Uint8Range(1, 8).Draw(t, "op")),
			Width:   4,
			Operand: rapid.Uint64().Draw(t, "operand"),
			Compare: rapid.Uint64().Draw(t, "compare"),
		}
		old := rapid.Uint64().Draw(t, "old")
		got := rma.Apply(old, a)
		if got > math.MaxUint32 {
			t.Fatalf("Apply(%#x, %+v) = %#x", old, a, got)
		}
		a.Operand |= 1 << 40
		a.Compare ^= 1 << 50
		if again := rma.Apply(old^1<<60, a); again != got {
			t.Fatalf("the upper half counts: %#x, then %#x", got, again)
		}
	})
}

func ExampleSpace() {
	var s rma.Space[string]
	off, _ := s.Register("ring", 2*rma.PageSize, 0, rma.ProtRead|rma.ProtWrite, 0)
	s.Register("table", rma.PageSize, 0, rma.ProtRead, 0) // right after the ring
	spans, _ := s.Spans(nil, off+8000, 500, rma.ProtRead)
	for _, sp := range spans {
		fmt.Println(sp.Window.Mem, sp.Offset, sp.Length)
	}
	_, err := s.Spans(nil, off+8000, 500, rma.ProtWrite)
	fmt.Println(err)
	// Output:
	// ring 8000 192
	// table 0 308
	// permission denied
}

func BenchmarkSpans(b *testing.B) {
	for _, windows := range []int{1, 64, rma.MaxWindows} {
		b.Run(fmt.Sprintf("windows=%d", windows), func(b *testing.B) {
			var s rma.Space[int]
			for i := range windows {
				s.Register(i, page, 0, both, 0)
			}
			dst := make([]rma.Span[int], 0, 4)
			var off int64
			b.ReportAllocs()
			for b.Loop() {
				off = (off + 977*64) % (int64(windows)*page - 64)
				if _, err := s.Spans(dst[:0], rma.FirstOffset+off, 64, both); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRegisterUnregister(b *testing.B) {
	var s rma.Space[int]
	for i := range rma.MaxWindows - 1 {
		s.Register(i, page, 0, both, 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		off, err := s.Register(0, page, 0, both, 0)
		if err != nil {
			b.Fatal(err)
		}
		gone, _ := s.Unregister(off, page)
		s.Retire(gone[0])
	}
}
