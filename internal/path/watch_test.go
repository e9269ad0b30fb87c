package path

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestAWatchIsOfOneContext: whatever contexts calls have and whenever these end, the deadline
// that a call finds is its own, and the one that was kept is undone by the next call with
// another.
func TestAWatchIsOfOneContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var set []bool // whether each deadline that was set has passed
		w := watch{set: func(at time.Time) { set = append(set, at.Equal(past)) }}
		call := func(ctx context.Context, want ...bool) {
			t.Helper()
			set = nil
			w.begin(ctx)
			synctest.Wait() // a context that is done has set its own by now
			if len(set) != len(want) {
				t.Fatalf("a call sets %v, want %v", set, want)
			}
			for i := range want {
				if set[i] != want[i] {
					t.Fatalf("a call sets %v, want %v", set, want)
				}
			}
			w.finish(ctx)
		}
		once, cancelOnce := context.WithCancel(t.Context())
		call(once)
		if w.done != nil {
			t.Error("a context that came once stays watched")
		}
		cancelOnce()
		kept, cancel := context.WithCancel(t.Context())
		call(kept)
		call(kept)
		if w.done != kept.Done() {
			t.Error("a context that came twice is not watched any more")
		}
		cancel() // between two calls
		synctest.Wait()
		call(kept) // the deadline is there already
		if w.done != nil || len(set) != 1 || set[0] {
			t.Errorf("behind a call whose context has ended: watched %v, set %v; want the deadline undone", w.done != nil, set)
		}
		call(kept, true)
		again, stop := context.WithCancel(t.Context())
		call(again)
		call(again)
		stop()
		synctest.Wait()
		call(context.Background(), false)
		w.end() // twice is once
	})
}

// TestReadsOutliveTheirContexts: a read that its context ends takes no byte, and leaves the
// path as it was for calls with other contexts, and for those with none.
func TestReadsOutliveTheirContexts(t *testing.T) {
	forms(t, func(t *testing.T, plaintext bool) {
		a, b := pair(t, plaintext)
		a.Begin(0)
		send := func() {
			t.Helper()
			if _, err := a.Write(t.Context(), []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 10)
		read := func(ctx context.Context) {
			t.Helper()
			send()
			if n, err := b.Read(ctx, got); n != 1 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		send()
		await(t, b, 0)
		if n, err := b.Read(t.Context(), got); n != 1 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		kept, cancel := context.WithCancel(t.Context())
		read(kept)
		read(kept)
		cancel()
		for range 2 {
			if n, err := b.Read(kept, got); n != 0 || !errors.Is(err, context.Canceled) {
				t.Fatalf("with a context that has ended %d bytes, %v", n, err)
			}
		}
		if n, err := b.TryRead(got); n != 0 || err != nil {
			t.Fatalf("of nothing %d bytes, %v", n, err)
		}
		read(context.Background())
		for range 3 { // it ends between two calls
			ctx, cancel := context.WithCancel(t.Context())
			read(ctx)
			read(ctx)
			cancel()
			if in, err := b.Peek(); in || err != nil {
				t.Fatalf("%v, %v", in, err)
			}
			read(t.Context())
		}
		limited, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer stop()
		if n, err := b.Read(limited, got); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("until its end %d bytes, %v", n, err)
		}
		last, end := context.WithCancel(t.Context())
		read(last)
		read(last)
		b.Interrupt()
		end()
		for _, ctx := range []context.Context{last, t.Context(), context.Background()} {
			if n, err := b.Read(ctx, got); n != 0 || err == nil {
				t.Errorf("behind Interrupt %d bytes, %v", n, err)
			}
		}
		if n, err := b.TryRead(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("behind Interrupt %d bytes, %v", n, err)
		}
	})
}
