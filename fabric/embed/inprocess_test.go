package embed

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

func withoutPaths(c *Config) { c.Paths = "off" }

// fillUp sends until a send has found no room for a while, and returns its error.
func fillUp(e *fabric.Endpoint) error {
	for p := make([]byte, 64<<10); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		_, err := e.Send(ctx, p)
		cancel()
		if err != nil {
			return err
		}
	}
}

func TestASendThatIsWithdrawnIsNoReset(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, ends := pair(t, ctx, withoutPaths)
	if err := fillUp(ends[1].Endpoint()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a send whose time is up: %v", err)
	}
}

func TestCloseEndsABlockedSend(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, ends := pair(t, ctx, withoutPaths)
	fillUp(ends[1].Endpoint())
	sent, closed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := ends[1].Endpoint().Send(ctx, make([]byte, 1<<20)); sent <- err }()
	time.Sleep(200 * time.Millisecond) // it blocks
	go func() { closed <- ends[1].Endpoint().Close() }()
	late := time.After(3 * time.Second)
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-late:
		t.Fatal("Close waits for the send, and the send for Close")
	}
	if err := <-sent; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("send: %v", err)
	}
}

// readSlowly reads until the end, 64 KiB in 20 ms.
func readSlowly(c *fabric.Conn) (n int64, err error) {
	for p := make([]byte, 64<<10); ; time.Sleep(20 * time.Millisecond) {
		k, err := io.ReadFull(c, p)
		n += int64(k)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

func TestAppBesideClose(t *testing.T) {
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		nodes, _ := pair(t, ctx, func(*Config) {})
		for range 40 { // Close goes through these
			if _, err := nodes[1].App(); err != nil {
				t.Fatal(err)
			}
		}
		time.AfterFunc(20*time.Millisecond, func() { nodes[1].Close() })
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					a, err := nodes[1].App()
					if errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ECONNRESET) {
						return
					}
					if err == nil {
						a.Close()
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(nodes[1].Close(), nodes[0].Close()); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

func slowPair(t *testing.T, ctx context.Context, delay time.Duration) (*daemon.Client, [2]*Node, [2]*fabric.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fab") // a TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	admin := filepath.Join(dir, "a")
	nodes, ends := pair(t, ctx, func(c *Config) { c.Paths, c.EnableFaults, c.AdminSocket = "off", true, admin })
	c := daemon.NewClient(admin)
	if _, err = c.AddNodeFault(ctx, daemon.NodeFault{Kind: failpoint.SlowReceiver, Delay: failpoint.Duration(delay), For: failpoint.Duration(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	if _, err := ends[0].Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(ends[1], make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c, nodes, ends
}

func TestASlowReceiverIsNotifiedOfALoss(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	_, nodes, ends := slowPair(t, ctx, 10*time.Second)
	done := make(chan error, 1)
	go func() { _, err := io.ReadAll(ends[1]); done <- err }()
	if err := nodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	lost := time.Now()
	if err := <-done; !errors.Is(err, syscall.ECONNRESET) || time.Since(lost) > 3*time.Second {
		t.Errorf("%v after %v", err, time.Since(lost))
	}
}

func TestASlowReceiverWhoseFaultIsCleared(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	c, _, ends := slowPair(t, ctx, 10*time.Second)
	done := make(chan error, 1)
	go func() { _, err := io.ReadFull(ends[1], make([]byte, 1)); done <- err }()
	time.Sleep(100 * time.Millisecond) // it waits
	if _, err := c.ClearNodeFaults(ctx, 0); err != nil {
		t.Fatal(err)
	}
	cleared := time.Now()
	if err := <-done; err != nil || time.Since(cleared) > 3*time.Second {
		t.Errorf("%v after %v", err, time.Since(cleared))
	}
}

func TestAnEmbeddedNodeHasManyApps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	nodes, _ := pair(t, ctx, func(*Config) {})
	for i := range 100 {
		if _, err := nodes[1].App(); err != nil {
			t.Fatalf("application %d: %v", i, err)
		}
	}
}
