package engine_test

import (
	"context"
	"io"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/rma"
)

// TestSteadyTrafficAllocatesNothing covers the engine over a provider
// that allocates nothing itself.
func TestSteadyTrafficAllocatesNothing(t *testing.T) {
	pa, pb := benchProviders["mem"](t)
	here, there := benchPair(t, pa, pb)
	ctx := context.Background()
	go func() { // ends with the connection
		p, in := make([]byte, 64), io.Reader(endpointIO{there})
		for {
			if _, err := io.ReadFull(in, p); err != nil {
				return
			}
			there.Send(ctx, p)
		}
	}()
	n := engine.Start(engine.Config{})
	defer n.Close()
	mem := alloc(t, 128<<10)
	loff, err := register(here, mem[:64<<10], 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	roff, err := register(there, mem[64<<10:], 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	message, in := make([]byte, 64), io.Reader(endpointIO{here})
	for _, tt := range []struct {
		name string
		max  float64
		do   func() error
	}{
		{"a message there and back", 0, func() error {
			if _, err := here.Send(ctx, message); err != nil {
				return err
			}
			_, err := io.ReadFull(in, message)
			return err
		}},
		{"a write of 64 bytes and a fence", 0, func() error {
			return firstError(here.WriteTo(loff, 64, roff, 0), fenced(here))
		}},
		{"a posted atomic and a fence", 0, func() error {
			return firstError(here.PostAtomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff}), fenced(here))
		}},
		{"a put with a signal and a fence", 0, func() error {
			return firstError(here.PutSignal(loff, 64, rma.Put{Offset: roff, Word: roff + 64}), fenced(here))
		}},
		{"a write of 64 KiB and a fence", 0, func() error {
			return firstError(here.WriteTo(loff, 64<<10, roff, 0), fenced(here))
		}},
		{"a synchronous write", 0, func() error { return here.WriteTo(loff, 4096, roff, rma.Sync) }},
		{"a read of 64 KiB", 0, func() error { return here.ReadFrom(loff, 64<<10, roff, rma.Sync) }},
		{"a read of 64 bytes", 0, func() error { return here.ReadFrom(loff, 64, roff, rma.Sync) }},
	} {
		if got := testing.AllocsPerRun(1000, func() {
			if err := tt.do(); err != nil {
				t.Error(err)
			}
		}); got > tt.max && !raceEnabled {
			t.Errorf("%s: %v allocations, want at most %v", tt.name, got, tt.max)
		}
	}
}

func fenced(ep attach.NodeEndpoint) error {
	m, err := ep.FenceMark(fence.InitSelf)
	if err != nil {
		return err
	}
	return ep.FenceWait(context.Background(), m)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
