package daemon

import (
	"context"
	"math"
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/shm"
)

// TestHeapStaysBelowTheLimit: Go knows the limit while a node runs, and not behind it;
// one that the user has set is left alone.
func TestHeapStaysBelowTheLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	limit, ok := shm.Limit()
	if !ok {
		t.Fatal("this kernel does not say how much memory there is")
	}
	bubble.Test(t, func(t *testing.T) {
		stop := BoundHeap(context.Background())
		synctest.Wait()
		if got := debug.SetMemoryLimit(-1); got != limit/100*heapPart {
			t.Errorf("Go may take %d bytes of %d", got, limit)
		}
		stop()
		if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
			t.Errorf("behind it Go may take %d bytes", got)
		}
	})
	t.Setenv("GOMEMLIMIT", "off")
	before := debug.SetMemoryLimit(-1)
	stop := BoundHeap(context.Background())
	defer stop()
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("where the user has said that there is no limit there is one of %d", got)
	}
}
