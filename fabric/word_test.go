package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

func alloc(t *testing.T, n *fabric.Node) *fabric.Memory {
	t.Helper()
	mem, err := n.Alloc(fabric.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	return mem
}

func TestWordsAreChecked(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	mem := alloc(t, c.Node(0))
	p := mem.Bytes()
	for _, tt := range []struct {
		p     []byte
		off   int64
		width int64
		want  error
	}{
		{p, 0, 8, nil},
		{p, fabric.PageSize - 8, 8, nil},
		{p, fabric.PageSize - 4, 4, nil},
		{p, 4, 8, syscall.EINVAL},
		{p, 2, 4, syscall.EINVAL},
		{p, -4, 8, syscall.ENXIO},
		{p, -8, 8, syscall.ENXIO},
		{p, fabric.PageSize, 8, syscall.ENXIO},
		{p, fabric.PageSize, 4, syscall.ENXIO},
		{p, -1 << 63, 8, syscall.ENXIO},
		{p, 1<<63 - 8, 8, syscall.ENXIO},
		{p[:7], 0, 8, syscall.ENXIO},
		{nil, 0, 8, syscall.ENXIO},
		{p[4:], 0, 8, syscall.EINVAL}, // aligned in the slice, not in memory
		{p[2:], 0, 4, syscall.EINVAL},
		{p[4:], 4, 8, nil},
	} {
		var err error
		if tt.width == 8 {
			_, err = fabric.Word64At(tt.p, tt.off)
		} else {
			_, err = fabric.Word32At(tt.p, tt.off)
		}
		if !errors.Is(err, tt.want) {
			t.Errorf("word of %d bytes at %d of %d: %v, want %v", tt.width, tt.off, len(tt.p), err, tt.want)
		}
	}
	mem.Close()
	if _, err := mem.Word64(0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("word of closed memory: %v, want EBADF", err)
	}
}

func TestWordsAreWordsOfTheMemory(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	mem := alloc(t, c.Node(0))
	w, err := mem.Word64(8)
	half, err2 := mem.Word32(8)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	w.Store(1)
	if got := w.Add(4); got != 5 || w.Load() != 5 || fabric.LoadUint64(mem.Bytes()[8:]) != 5 {
		t.Errorf("1 + 4 = %d, in memory %d", got, fabric.LoadUint64(mem.Bytes()[8:]))
	}
	if w.CompareAndSwap(4, 9) || !w.CompareAndSwap(5, 1<<40) || w.Swap(7) != 1<<40 {
		t.Errorf("the word is %d after a swap that should not and two that should", w.Load())
	}
	half.Store(0)
	half.Add(^uint32(0))
	if old := half.Swap(3); old != 1<<32-1 || !half.CompareAndSwap(3, 4) || half.Load() != 4 || w.Load() != 4 {
		t.Errorf("a word of 32 bits wrapped to %#x; the whole is %#x", old, w.Load())
	}
}

func TestWaitSeesAStore(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	mem := alloc(t, c.Node(0))
	there, err := mem.Word64(0)
	back, err2 := mem.Word32(8)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	const rounds = 1000
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range uint32(rounds) {
			if _, err := there.Wait(t.Context(), func(v uint64) bool { return v > uint64(i) }); err != nil {
				t.Error(err)
				return
			}
			back.Add(1)
		}
	})
	for i := range uint32(rounds) {
		there.Add(1)
		if v, err := back.Wait(t.Context(), func(v uint32) bool { return v > i }); err != nil || v != i+1 {
			t.Fatalf("round %d: %d, %v", i, v, err)
		}
	}
}

// TestWaitRests runs on a clock that stands still while any goroutine is busy: a wait
// that did not rest would never see the store.
func TestWaitRests(t *testing.T) {
	for _, pause := range []time.Duration{50 * time.Microsecond, time.Second} {
		t.Run(fmt.Sprint(pause), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := make([]byte, 16)
				w, err := fabric.Word32At(p, 0)
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				time.AfterFunc(pause, func() { w.Store(1) })
				if v, err := w.Wait(t.Context(), func(v uint32) bool { return v == 1 }); v != 1 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
				if late := time.Since(begun) - pause; late > time.Millisecond {
					t.Errorf("seen %v after the store", late)
				}
			})
		})
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, err := fabric.Word64At(make([]byte, 8), 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = w.Wait(ctx, func(v uint64) bool { return v == 1 })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("%v, want ETIMEDOUT", err)
		}
		w.Store(1)
		if _, err := w.Wait(ctx, func(v uint64) bool { return v == 1 }); err != nil {
			t.Errorf("a wait that need not wait: %v", err)
		}
	})
}
