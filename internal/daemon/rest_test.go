package daemon

import (
	"runtime/debug"
	"testing"
)

// TestMemoryOfAProcessThatRestsGoesBack: what a burst has left is given back once
// nothing has been collected between two looks, and then no more is asked for.
func TestMemoryOfAProcessThatRestsGoesBack(t *testing.T) {
	const mib = 1 << 20
	var r rester
	for i, look := range []struct {
		cycles, had uint64
		want        bool
	}{
		{3, 20 * mib, false},
		{3, 20 * mib, false}, // a small process rests
		{9, 400 * mib, false},
		{12, 500 * mib, false}, // a large one works
		{12, 500 * mib, true},
	} {
		if got := r.due(look.cycles, look.had); got != look.want {
			t.Errorf("look %d: %v, want %v", i, got, look.want)
		}
	}
	r.cycles, r.kept = 13, 200*mib // is in use
	for _, had := range []uint64{200 * mib, 240 * mib, 280 * mib} {
		if r.due(13, had) {
			t.Errorf("with %d bytes it is collected once more", had)
		}
	}
	if !r.due(13, 300*mib) {
		t.Error("what came later is not collected")
	}
	r.cycles, r.kept = 14, 300*mib // was in use, and is freed without a look
	for look := 1; look <= restAgain; look++ {
		if got, want := r.due(14, 300*mib), look == restAgain; got != want {
			t.Errorf("look %d at what was freed: %v, want %v", look, got, want)
		}
	}
	for range 2 * restAgain {
		if r.due(14, 2*restGrowth) {
			t.Error("a small process is collected again and again")
		}
	}
}

// TestMemoryIsWhatGoHas: the figures move with what the process does.
func TestMemoryIsWhatGoHas(t *testing.T) {
	debug.FreeOSMemory()
	before, small := memory()
	p := make([]byte, 64<<20)
	for i := 0; i < len(p); i += 4096 {
		p[i] = 1
	}
	if _, had := memory(); had < small+48<<20 {
		t.Errorf("Go has %d bytes with 64 MiB more than %d", had, small)
	}
	p = nil
	debug.FreeOSMemory()
	if after, had := memory(); after == before || had > small+32<<20 {
		t.Errorf("%d collections, Go has %d bytes; before %d and %d", after, had, before, small)
	}
}
