//go:build !race

package client

import (
	"context"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// The race detector allocates by itself.
func TestDirectOperationsDoNotAllocate(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	buf, long := make([]byte, 64), make([]byte, 3*pageSize)
	_, loff := p.adjacent(t, p.ca, p.a, 1<<20, 1, 2)
	_, roff := p.adjacent(t, p.cb, p.b, 1<<20, 1, 1, 1)
	check(t, "a write over several windows", p.a.VWriteTo(long, roff, 0), status.OK)
	signal := fence.Signal{By: fence.InitSelf, Where: everywhere, LocalOffset: p.offA, RemoteOffset: p.offB}
	for name, call := range map[string]func() error{
		"WriteTo":                        func() error { return p.a.WriteTo(p.offA, 64, p.offB, rma.Sync) },
		"ReadFrom":                       func() error { return p.a.ReadFrom(p.offA, 64, p.offB, 0) },
		"VWriteTo":                       func() error { return p.a.VWriteTo(buf, p.offB, rma.Ordered) },
		"VReadFrom":                      func() error { return p.a.VReadFrom(buf, p.offB, 0) },
		"WriteTo over several windows":   func() error { return p.a.WriteTo(loff, 3*pageSize, roff, rma.Ordered) },
		"VReadFrom over several windows": func() error { return p.a.VReadFrom(long, roff, 0) },
		"PutSignal":                      func() error { return p.a.PutSignal(p.offA, 64, rma.Put{Offset: p.offB, Word: p.offB + 64}) },
		"VPutSignal":                     func() error { return p.a.VPutSignal(buf, rma.Put{Offset: p.offB, Word: p.offB + 64}) },
		"PostAtomic":                     func() error { return p.a.PostAtomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: p.offB}) },
		"FenceSignal":                    func() error { return p.a.FenceSignal(signal) },
		"FenceMark and FenceWait": func() error {
			m, err := p.a.FenceMark(fence.InitSelf)
			if err != nil {
				return err
			}
			return p.a.FenceWait(context.Background(), m)
		},
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
