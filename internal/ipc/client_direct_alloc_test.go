//go:build !race

package ipc

import (
	"context"
	"testing"

	"github.com/fabricd/fabricd/rma"
)

// The race detector allocates by itself.
func TestDirectOperationsDoNotAllocate(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	buf := make([]byte, 64)
	for name, call := range map[string]func() error{
		"WriteTo":   func() error { return p.a.WriteTo(p.offA, 64, p.offB, rma.Sync) },
		"ReadFrom":  func() error { return p.a.ReadFrom(p.offA, 64, p.offB, 0) },
		"VWriteTo":  func() error { return p.a.VWriteTo(buf, p.offB, rma.Ordered) },
		"VReadFrom": func() error { return p.a.VReadFrom(buf, p.offB, 0) },
		"Atomic": func() error {
			_, err := p.a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: p.offB})
			return err
		},
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times, want never", name, n)
		}
	}
}
