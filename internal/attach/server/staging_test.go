package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestPiecesWaitForRoom: one session's pieces leave room for another's, small ones never wait, and
// a waiting call continues when room is released or its ctx ends.
func TestPiecesWaitForRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const piece = 1 << 20
		limit := int64(8 * piece)
		g := &stagingQuota{limit: func() int64 { return limit }, freed: make(chan struct{})}
		var a, b int64
		for i := range 6 { // three quarters
			if err := g.acquire(t.Context(), &a, piece); err != nil {
				t.Fatal(i, err)
			}
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.acquire(soon, &a, piece); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a seventh piece: %v", err)
		}
		if err := g.acquire(t.Context(), &b, piece); err != nil {
			t.Error("another session's first piece:", err)
		}
		for range 100 {
			if err := g.acquire(t.Context(), &b, smallPiece); err != nil {
				t.Fatal("a small piece:", err)
			}
		}
		took := make(chan error, 1)
		go func() { took <- g.acquire(t.Context(), &a, piece) }()
		synctest.Wait()
		for range 100 {
			g.release(&b, smallPiece)
		}
		g.release(&a, piece)
		g.release(&a, piece)
		synctest.Wait()
		select {
		case err := <-took:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the call that waits does not notice that there is room")
		}
		for range 5 {
			g.release(&a, piece)
		}
		g.release(&b, piece)
		if a != 0 || b != 0 || g.used != 0 {
			t.Errorf("%d, %d and %d bytes are left", a, b, g.used)
		}
	})
}
