package shm

import (
	"bytes"
	"errors"
	"math"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// truncated returns a region whose pages are gone, as an owner without seals
// could arrange.
func truncated(t *testing.T) *Region {
	t.Helper()
	f := memory(t, 0, 2*PageSize, 2*PageSize, unix.F_SEAL_GROW)
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Map(os.NewFile(uintptr(fd), "dup"), 0, 2*PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	if err := unix.Ftruncate(int(f.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFaultsAreErrors(t *testing.T) {
	r := truncated(t)
	p := make([]byte, 100)
	calls := map[string]func() error{
		"ReadAt":    func() error { return r.ReadAt(p, 10) },
		"WriteAt":   func() error { return r.WriteAt(p, PageSize-50) },
		"Load 8":    func() error { _, err := r.Load(8, 8); return err },
		"Load 4":    func() error { _, err := r.Load(4, 4); return err },
		"Store 8":   func() error { return r.Store(8, 8, 1) },
		"Store 4":   func() error { return r.Store(8, 4, 1) },
		"compare 8": func() error { _, err := r.CompareAndSwap(8, 8, 0, 1); return err },
		"compare 4": func() error { _, err := r.CompareAndSwap(8, 4, 0, 1); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, status.Fault) {
			t.Errorf("%s of memory that is gone = %v, want %v", name, err, status.Fault)
		}
	}
}

func TestOtherPanicsAreNotFaults(t *testing.T) {
	defer func() {
		if e := recover(); e != "mine" {
			t.Errorf("recovered %v, want the panic to pass", e)
		}
	}()
	var err error
	defer caught(false, &err)
	panic("mine")
}

func TestRegionBounds(t *testing.T) {
	r := create(t, PageSize)
	p := []byte("eightbyt")
	for _, off := range []int64{0, 1, PageSize - 8} {
		got := make([]byte, 8)
		if err := r.WriteAt(p, off); err != nil {
			t.Errorf("WriteAt(%d): %v", off, err)
		}
		if err := r.ReadAt(got, off); err != nil || !bytes.Equal(got, p) {
			t.Errorf("ReadAt(%d) = %q, %v, want %q", off, got, err, p)
		}
	}
	for _, off := range []int64{-1, PageSize - 7, PageSize, math.MaxInt64, math.MinInt64} {
		if err := r.WriteAt(p, off); !errors.Is(err, status.Invalid) {
			t.Errorf("WriteAt(%d) = %v, want %v", off, err, status.Invalid)
		}
		if err := r.ReadAt(p, off); !errors.Is(err, status.Invalid) {
			t.Errorf("ReadAt(%d) = %v, want %v", off, err, status.Invalid)
		}
	}
	for _, w := range []struct {
		off   int64
		width int
	}{{4, 8}, {2, 4}, {0, 1}, {0, 16}, {PageSize, 8}, {-8, 8}, {math.MaxInt64 - 7, 8}} {
		if _, err := r.Load(w.off, w.width); !errors.Is(err, status.Invalid) {
			t.Errorf("Load(%d, %d) = %v, want %v", w.off, w.width, err, status.Invalid)
		}
		if err := r.Store(w.off, w.width, 0); !errors.Is(err, status.Invalid) {
			t.Errorf("Store(%d, %d) = %v, want %v", w.off, w.width, err, status.Invalid)
		}
		if _, err := r.CompareAndSwap(w.off, w.width, 0, 0); !errors.Is(err, status.Invalid) {
			t.Errorf("CompareAndSwap(%d, %d) = %v, want %v", w.off, w.width, err, status.Invalid)
		}
	}
}

// Two mappings of the same memory stand for two processes.
func TestAtomicsHoldAcrossMappings(t *testing.T) {
	a := create(t, PageSize)
	fd, err := unix.FcntlInt(a.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Map(os.NewFile(uintptr(fd), "dup"), 0, PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	const rounds = 2000
	add := func(r *Region, off int64, width int) {
		for n := 0; n < rounds; {
			v, err := r.Load(off, width)
			if err != nil {
				t.Error(err)
				return
			}
			if ok, _ := r.CompareAndSwap(off, width, v, v+1); ok {
				n++
			}
		}
	}
	var wg sync.WaitGroup
	for _, r := range []*Region{a, b} {
		wg.Go(func() { add(r, 64, 8); add(r, 128, 4) })
	}
	wg.Wait()
	for off, width := range map[int64]int{64: 8, 128: 4} {
		if v, err := a.Load(off, width); v != 2*rounds || err != nil {
			t.Errorf("word of %d bytes = %d, %v, want %d", width, v, err, 2*rounds)
		}
	}
}

func TestRegionIncarnationsUntilItsLastReference(t *testing.T) {
	r, err := Create("test", 10)
	if err != nil {
		t.Fatal(err)
	}
	released := 0
	r.OnRelease(func() { released++ })
	r.Retain()
	r.Release()
	r.Bytes()[0] = 1
	if released != 0 {
		t.Error("released while a reference is left")
	}
	r.Release()
	if released != 1 {
		t.Errorf("OnRelease ran %d times, want once", released)
	}
	defer func() {
		if recover() == nil {
			t.Error("Retain after the last Release did not panic")
		}
	}()
	r.Retain()
}
