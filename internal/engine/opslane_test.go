package engine

import (
	"slices"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/wire"
)

// A Done stands for all operations before it: of those that wait together only
// the last goes out. Nothing else is left out or changes its place.
func TestDonesThatWaitTogetherGoOutAsOne(t *testing.T) {
	o := &opsLane{mu: new(sync.Mutex)}
	done := func(op uint64) { o.put(wire.Done{Op: op}.AppendTo(nil)) }
	credit := func(limit uint64) { o.put(wire.Credit{Limit: limit}.AppendTo(nil)) }
	done(1)
	done(2)
	credit(7)
	done(3)
	done(4)
	o.push(segment{write: &core.Op[memory]{}})
	done(5)
	done(9)
	want := slices.Concat(wire.Done{Op: 2}.AppendTo(nil), wire.Credit{Limit: 7}.AppendTo(nil), wire.Done{Op: 4}.AppendTo(nil))
	if got := o.pop(); !slices.Equal(got.frames, want) {
		t.Errorf("first out is\n%x, want\n%x", got.frames, want)
	}
	if got := o.pop(); got.write == nil {
		t.Errorf("then %x, want the write", got.frames)
	}
	done(10) // nothing of this segment is being written yet
	if got, want := o.pop(), (wire.Done{Op: 10}).AppendTo(nil); !slices.Equal(got.frames, want) {
		t.Errorf("last out is\n%x, want\n%x", got.frames, want)
	}
	if !o.empty() || o.bytes != 0 {
		t.Errorf("empty %v, with %d bytes", o.empty(), o.bytes)
	}
	done(11) // behind what was taken out to be written
	if got, want := o.pop(), (wire.Done{Op: 11}).AppendTo(nil); !slices.Equal(got.frames, want) {
		t.Errorf("after all was out\n%x, want\n%x", got.frames, want)
	}
}
