package engine_test

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/rma"
)

// TestALeavingNodeChangesNoWindow lets a peer write into a window all the time while
// the window's node leaves, which lasts for some round trips. As soon as the
// application can know of the end nothing changes any more, the peer's writes end
// with ECONNRESET, and it still gets the bytes that are for it.
func TestALeavingNodeChangesNoWindow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOn(t, netConfig{Delay: 10 * time.Millisecond}, 2, engine.Config{})
		a, b := fab.pair(0, 1)
		window := alloc(t, 4096)
		off, err := register(a, window, 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		rest := make([]byte, 64<<10)
		if _, err := a.Send(context.Background(), rest); err != nil {
			t.Fatal(err)
		}
		writes := make(chan error, 1)
		go func() {
			for i := byte(1); ; i++ {
				if err := b.VWriteTo(bytes.Repeat([]byte{i}, 4096), off, 0); err != nil {
					writes <- err
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		reported := make(chan []byte, 1)
		go func() {
			a.Recv(context.Background(), make([]byte, 1))
			reported <- bytes.Clone(window)
		}()
		time.Sleep(100 * time.Millisecond)
		left := make(chan error, 1)
		go func() { left <- fab.nodes[0].Leave(context.Background()) }()
		then := <-reported
		if err := <-writes; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a write at the end: %v", err)
		}
		if !bytes.Equal(window, then) {
			t.Error("the window has changed after its end")
		}
		if n := then[0]; n == 0 {
			t.Error("no write has come before")
		}
		if n, err := b.Recv(context.Background(), rest); n != len(rest) || err != nil {
			t.Errorf("what was sent before: %d bytes, %v", n, err)
		}
		if err := <-left; err != nil {
			t.Error(err)
		}
	})
}

// TestClosedWindowsWaitForBytesOnTheirWay closes windows while the bytes of a large
// write go into one: they are waited for, and where they have stopped the
// connection ends.
func TestClosedWindowsWaitForBytesOnTheirWay(t *testing.T) {
	for name, cut := range map[string]bool{"they come": false, "they have stopped": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				fab := newFabricOn(t, netConfig{Delay: 10 * time.Millisecond, Rate: 32 << 20}, 2, engine.Config{})
				app := fab.nodes[0].NewSession(attach.Credentials{})
				window := alloc(t, 1<<20)
				a, b, err := fab.joinFrom(app, 1)
				if err != nil {
					t.Fatal(err)
				}
				off, err := register(a, window, 0, rma.ProtRead|rma.ProtWrite, 0)
				if err != nil {
					t.Fatal(err)
				}
				written := make(chan error, 1)
				go func() { written <- b.VWriteTo(bytes.Repeat([]byte{7}, len(window)), off, rma.Sync) }()
				time.Sleep(15 * time.Millisecond) // the first of some pieces of a frame has come
				synctest.Wait()
				if cut {
					fab.hub.Cut("node0.1", "node1.1")
				}
				began := time.Now()
				app.CloseWindows()
				took, then := time.Since(began), bytes.Clone(window)
				switch {
				case then[0] == 0 || then[len(then)-1] != 0:
					t.Fatal("nothing, or everything, had come before")
				case cut && (took == 0 || took > 3*time.Second):
					t.Errorf("it waited for %v", took)
				case !cut && (took == 0 || took > 200*time.Millisecond):
					t.Errorf("it waited for %v", took)
				}
				if err := <-written; !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the write: %v", err)
				}
				if !bytes.Equal(window, then) {
					t.Error("the window has changed after its end")
				}
			})
		})
	}
}

// TestClosedWindowsAreWithdrawnFromThisMachine closes the windows of one end of a
// connection within a node: an application that uses them itself is notified before
// CloseWindows returns, and finds none afterwards.
func TestClosedWindowsAreWithdrawnFromThisMachine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 1)
		app := fab.nodes[0].NewSession(attach.Credentials{})
		a, far, err := fab.joinFrom(app, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, notified := far, 0
		if _, err := b.OnInvalidation(func() { notified++ }); err != nil {
			t.Fatal(err)
		}
		off, err := register(a, alloc(t, 4096), 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		app.CloseWindows()
		if notified != 1 {
			t.Errorf("invalidations: %d, want 1", notified)
		}
		if _, err := b.PeerWindow(off); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("PeerWindow after CloseWindows: %v", err)
		}
		late, _, err := fab.joinFrom(app, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := register(late, alloc(t, 4096), 0, rma.ProtWrite, 0); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Register on an endpoint of afterwards: %v", err)
		}
	})
}
