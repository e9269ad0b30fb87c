package engine_test

import (
	"errors"
	"io"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/rma"
)

// TestOperationsAreCountedWhereTheirWindowsAre, by the path that they came over, and fences where
// they are asked for.
func TestOperationsAreCountedWhereTheirWindowsAre(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	off := uint64(f.off)
	for _, r := range []path.RMARequest{
		{Kind: path.RMAWrite, Offset: off, Length: 8}, {Kind: path.RMAWrite, Offset: off, Length: 16}, {Kind: path.RMASignal, Offset: off, Length: 5},
		{Kind: path.RMAAtomic, Offset: off, Op: uint8(rma.AtomicAdd), Width: 4, Length: 5},
	} {
		r.Flags |= path.RMAWantAnswer
		var payload []byte
		if r.Kind == path.RMAWrite {
			payload = make([]byte, r.Length)
		}
		if err := f.send(r, payload); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.answer(); err != nil {
			t.Fatal(err)
		}
	}
	x, y := f.pair(0, 1)
	far, err := register(y, alloc(t, 1<<20), 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 1<<20) // several frames
	for _, err := range []error{x.VWriteTo(large, far, rma.Sync), x.VReadFrom(large[:100], far, rma.Sync)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.Atomic(t.Context(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: far}); err != nil {
		t.Fatal(err)
	}
	m, err := x.FenceMark(fence.InitSelf)
	if err == nil {
		err = x.FenceWait(t.Context(), m)
	}
	if err != nil {
		t.Fatal(err)
	}
	counts := func(node int) map[[2]string][2]uint64 {
		all := map[[2]string][2]uint64{}
		for _, c := range f.nodes[node].Counters().RMA {
			if c.Operations+c.Bytes > 0 {
				all[[2]string{c.Kind, c.Path}] = [2]uint64{c.Operations, c.Bytes}
			}
		}
		return all
	}
	want := map[[2]string][2]uint64{
		{"write", "path"}: {2, 24}, {"signal", "path"}: {1, 0}, {"atomic", "path"}: {1, 0},
		{"write", "link"}: {1, 1 << 20}, {"read", "link"}: {1, 100}, {"atomic", "link"}: {1, 0},
	}
	got := counts(1)
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%v: %v, want %v", k, got[k], v)
		}
	}
	if len(got) != len(want) || len(counts(0)) != 0 {
		t.Errorf("the target counts %v, the initiator %v", got, counts(0))
	}
	if c := f.nodes[0].Counters(); c.Fences["mark"] != 1 || c.Fences["wait"] != 1 || c.Fences["signal"] != 0 || c.RMAPaths.Sent == 0 {
		t.Errorf("the initiator counts %+v", c)
	}
	for name, fill := range f.nodes[0].Queues() {
		if fill != 0 {
			t.Errorf("queue %s of a node at rest: %v", name, fill)
		}
	}
}

// TestBytesOfPathsNeverFall: those of a path that has ended are counted, once.
func TestBytesOfPathsNeverFall(t *testing.T) {
	p := newPathed(t, nil)
	a, b := p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	c := conns(t, sockets)
	const sent = 100_000
	if _, err := c[0].Write(make([]byte, sent)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c[1], make([]byte, sent)); err != nil {
		t.Fatal(err)
	}
	before := p.nodes[1].Counters().MessagePaths
	if before.Received < sent {
		t.Errorf("%+v while it is there", before)
	}
	p.nodes[0].NodeLost(p.peers[1].Incarnation, "crashed")
	p.nodes[1].NodeLost(p.peers[0].Incarnation, "crashed")
	after, again := p.nodes[1].Counters().MessagePaths, p.nodes[1].Counters().MessagePaths
	if after.Received < before.Received || after.Received > before.Received+sent/2 || after != again {
		t.Errorf("%+v, then %+v and %+v", before, after, again)
	}
	if other := p.nodes[0].Counters().MessagePaths; other.Sent < sent || other.Sent > 2*sent {
		t.Errorf("its sender counts %+v", other)
	}
}
