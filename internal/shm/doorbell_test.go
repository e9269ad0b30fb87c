package shm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/status"
)

func doorbells(t *testing.T) (a, b *Doorbell) {
	t.Helper()
	fa, fb, err := DoorbellPair()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = NewDoorbell(fa); err != nil {
		t.Fatal(err)
	}
	if b, err = NewDoorbell(fb); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestDoorbell(t *testing.T) {
	a, b := doorbells(t)
	ctx := context.Background()
	for range 10_000 { // more than fits: a full doorbell rings
		a.Ring()
	}
	if err := b.WaitEdge(); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(ctx); err != nil {
		t.Fatal("a Ring before Wait is lost: ", err)
	}
	b.Drain()
	limited, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- b.Wait(limited) }()
	cancel()
	if err := <-result; !errors.Is(err, status.Canceled) {
		t.Fatalf("Wait with a context that ends = %v", err)
	}
	go func() { result <- b.Wait(ctx) }()
	a.Ring()
	if err := <-result; err != nil {
		t.Fatal("Wait after one that was withdrawn: ", err)
	}
	go func() { result <- b.Wait(ctx) }()
	b.Stop()
	if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Wait of a stopped doorbell = %v", err)
	}
	a.Close()
	c, d := doorbells(t)
	go func() { result <- d.Wait(ctx) }()
	c.Close()
	if err := <-result; err != io.EOF {
		t.Fatalf("Wait after the other side's end = %v, want EOF", err)
	}
	d.Ring() // into nowhere
	d.Close()
	if err := d.Wait(ctx); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("Wait of a closed doorbell = %v", err)
	}
}

func TestDoorbellOfAnotherKindIsRefused(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := NewDoorbell(f); err == nil {
		b.Close()
		t.Error("a file is taken for a doorbell")
	}
}

func TestSharedMemory(t *testing.T) {
	f, err := Shared("test", 4*PageSize)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Duplicate(f)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Adopt(f, 4*PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	b, err := Adopt(g, 4*PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	a.Bytes()[5] = 7
	if b.Bytes()[5] != 7 {
		t.Error("the memory is not shared")
	}
}

func TestSharedMemoryIsChecked(t *testing.T) {
	if _, err := Shared("test", 100); !errors.Is(err, status.Invalid) {
		t.Errorf("half a page: %v", err)
	}
	if f, err := Shared("test", PageSize); err != nil {
		t.Fatal(err)
	} else if _, err := Adopt(f, 2*PageSize); !errors.Is(err, status.Fault) {
		t.Errorf("memory of another size: %v", err)
	}
	if f, err := Shared("test", 1<<40); err != nil {
		t.Fatal(err)
	} else if _, err := Adopt(f, 1<<40); !errors.Is(err, status.NoMemory) {
		t.Errorf("more memory than there is: %v", err)
	}
	f, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	f.Truncate(PageSize)
	if _, err := Adopt(f, PageSize); !errors.Is(err, status.Fault) {
		t.Errorf("a file instead of memory: %v", err)
	}
	if _, err := f.Stat(); err == nil {
		t.Error("a descriptor that was refused stays open")
	}
}

func TestPauseReturns(t *testing.T) {
	begin := time.Now()
	Pause(0)
	Pause(1000)
	if time.Since(begin) > 10*time.Second {
		t.Error("a pause takes too long")
	}
}
