package fence_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"weak"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
)

// trackerModel is a Tracker that remembers every operation's outcome.
type trackerModel struct{ ended []bool } // ended[i]: operation i+1

func (m *trackerModel) done() (n uint64) {
	for _, e := range m.ended {
		if !e {
			break
		}
		n++
	}
	return n
}

func (m *trackerModel) open(seq uint64) bool {
	return seq >= 1 && seq <= uint64(len(m.ended)) && !m.ended[seq-1]
}

func TestTrackerAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr fence.Tracker
		var m trackerModel
		anySeq := func(t *rapid.T) uint64 {
			return rapid.Uint64Range(0, uint64(len(m.ended))+2).Draw(t, "seq")
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				m.ended = append(m.ended, false)
				if got, want := tr.Begin(), uint64(len(m.ended)); got != want {
					t.Fatalf("Begin = %d, want %d", got, want)
				}
			},
			"end": func(t *rapid.T) {
				seq := anySeq(t)
				want := m.open(seq)
				if got := tr.End(seq); got != want {
					t.Fatalf("End(%d) = %v, want %v", seq, got, want)
				}
				if want {
					m.ended[seq-1] = true
				}
			},
			"": func(t *rapid.T) { compareTracker(t, &tr, &m, anySeq(t)) },
		})
	})
}

func compareTracker(t *rapid.T, tr *fence.Tracker, m *trackerModel, seq uint64) {
	if tr.Done() != m.done() || tr.Begun() != uint64(len(m.ended)) || tr.Mark() != tr.Begun() {
		t.Fatalf("done %d, begun %d, mark %d; want done %d, begun %d",
			tr.Done(), tr.Begun(), tr.Mark(), m.done(), len(m.ended))
	}
	if tr.Open(seq) != m.open(seq) {
		t.Fatalf("Open(%d) = %v, want %v", seq, tr.Open(seq), m.open(seq))
	}
	if want := seq <= m.done(); tr.Reached(seq) != want {
		t.Fatalf("Reached(%d) = %v, want %v", seq, !want, want)
	}
}

func TestMarkWithNothingOutstandingIsReached(t *testing.T) {
	var tr fence.Tracker
	if !tr.Reached(tr.Mark()) {
		t.Error("the mark of a fresh tracker is not reached")
	}
	tr.End(tr.Begin())
	if !tr.Reached(tr.Mark()) {
		t.Error("a mark taken after everything ended is not reached")
	}
}

func TestTrackerInOrderDoesNotAllocate(t *testing.T) {
	var tr fence.Tracker
	if n := testing.AllocsPerRun(100, func() { tr.End(tr.Begin()) }); n != 0 {
		t.Errorf("%v allocations for an operation, want 0", n)
	}
}

type modelWaiter struct {
	seq uint64
	v   int
}

// takeWaiters removes from m the waiters that take selects, by mark and then by age.
func takeWaiters(m *[]modelWaiter, take func(modelWaiter) bool) (out []int) {
	sorted := slices.Clone(*m)
	slices.SortStableFunc(sorted, func(a, b modelWaiter) int { return int(a.seq) - int(b.seq) })
	for _, w := range sorted {
		if take(w) {
			out = append(out, w.v)
		}
	}
	*m = slices.DeleteFunc(*m, take)
	return out
}

func TestWaitersAgreeWithModel(t *testing.T) {
	const limit = 8
	rapid.Check(t, func(t *rapid.T) {
		w := fence.Waiters[int]{Max: limit}
		var m []modelWaiter
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				seq := rapid.Uint64Range(0, 10).Draw(t, "seq")
				want := len(m) < limit
				if got := w.Add(seq, next); got != want {
					t.Fatalf("Add beside %d = %v, want %v", len(m), got, want)
				}
				if want {
					m = append(m, modelWaiter{seq, next})
				}
				next++
			},
			"reached": func(t *rapid.T) {
				done := rapid.Uint64Range(0, 11).Draw(t, "done")
				want := takeWaiters(&m, func(x modelWaiter) bool { return x.seq <= done })
				if got := w.Reached(done); !slices.Equal(got, want) {
					t.Fatalf("Reached(%d) = %v, want %v", done, got, want)
				}
			},
			"remove": func(t *rapid.T) {
				mod := rapid.IntRange(2, 4).Draw(t, "mod")
				match := func(v int) bool { return v%mod == 0 }
				want := len(takeWaiters(&m, func(x modelWaiter) bool { return match(x.v) }))
				if got := w.Remove(match); got != want {
					t.Fatalf("Remove = %d, want %d", got, want)
				}
			},
			"drain": func(t *rapid.T) {
				want := takeWaiters(&m, func(modelWaiter) bool { return true })
				if got := w.Drain(); !slices.Equal(got, want) {
					t.Fatalf("Drain = %v, want %v", got, want)
				}
			},
			"": func(t *rapid.T) {
				if w.Len() != len(m) {
					t.Fatalf("Len = %d, want %d", w.Len(), len(m))
				}
			},
		})
	})
}

func TestZeroWaitersIsBounded(t *testing.T) {
	var w fence.Waiters[struct{}]
	for i := range fence.MaxWaiters {
		if !w.Add(1, struct{}{}) {
			t.Fatalf("Add %d refused, want room for %d", i, fence.MaxWaiters)
		}
	}
	if w.Add(1, struct{}{}) {
		t.Errorf("waiter %d was accepted", fence.MaxWaiters+1)
	}
}

func TestWaitersForgetWhatTheyReturned(t *testing.T) {
	// A slot that still pointed to a removed value would keep an application's memory alive.
	var w fence.Waiters[*[64]byte]
	var left []weak.Pointer[[64]byte]
	for i := range 4 {
		p := new([64]byte)
		left = append(left, weak.Make(p))
		w.Add(uint64(i), p)
	}
	w.Reached(1)
	w.Remove(func(*[64]byte) bool { return true })
	runtime.GC()
	for i, p := range left {
		if p.Value() != nil {
			t.Errorf("waiter %d is still held by the queue", i)
		}
	}
	runtime.KeepAlive(&w)
}

func TestParseSideTakesExactlyOneSide(t *testing.T) {
	for flags := range uint32(1 << 10) {
		side, err := fence.ParseSide(flags)
		ok := flags == 1 || flags == 2
		if (err == nil) != ok || ok && uint32(side) != flags {
			t.Errorf("ParseSide(%#x) = %v, %v", flags, side, err)
		}
		if !ok && !errors.Is(err, status.Invalid) {
			t.Errorf("ParseSide(%#x): %v, want status.Invalid", flags, err)
		}
	}
	if _, err := fence.ParseSide(1<<8 | 1); err == nil {
		t.Error("ParseSide ignores the bits above the first eight")
	}
}

func TestCheckSignal(t *testing.T) {
	both := fence.SignalLocal | fence.SignalRemote
	for _, tt := range []struct {
		name string
		sig  fence.Signal
		ok   bool
	}{
		{"both places", fence.Signal{By: fence.InitSelf, Where: both, LocalOffset: 8, RemoteOffset: 4}, true},
		{"peer's operations", fence.Signal{By: fence.InitPeer, Where: fence.SignalLocal}, true},
		{"no side", fence.Signal{Where: both}, false},
		{"both sides", fence.Signal{By: 3, Where: both}, false},
		{"RAS_SELF as a side", fence.Signal{By: 4, Where: both}, false},
		{"place among the sides", fence.Signal{By: 0x11, Where: fence.SignalRemote}, false},
		{"no place", fence.Signal{By: fence.InitSelf}, false},
		{"side among the places", fence.Signal{By: fence.InitSelf, Where: both | 1}, false},
		{"unknown place", fence.Signal{By: fence.InitSelf, Where: both | 0x40}, false},
		{"local offset unaligned", fence.Signal{By: fence.InitSelf, Where: both, LocalOffset: 2}, false},
		{"remote offset unaligned", fence.Signal{By: fence.InitSelf, Where: both, RemoteOffset: 7}, false},
		{"unselected local offset is not looked at",
			fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, LocalOffset: 3}, true},
		{"unselected remote offset is not looked at",
			fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, RemoteOffset: -1}, true},
		{"negative unaligned offset", fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: -1}, false},
		{"negative aligned offset is left to the windows",
			fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: -8}, true},
	} {
		err := fence.CheckSignal(tt.sig)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v, want ok=%v", tt.name, err, tt.ok)
		}
		if err != nil && !errors.Is(err, status.Invalid) {
			t.Errorf("%s: %v, want status.Invalid", tt.name, err)
		}
	}
}

func TestSwapIsItsOwnInverse(t *testing.T) {
	s := fence.Signal{
		By: fence.InitPeer, Where: fence.SignalLocal,
		LocalOffset: 8, LocalValue: 1, RemoteOffset: 16, RemoteValue: 2,
	}
	want := fence.Signal{
		By: fence.InitSelf, Where: fence.SignalRemote,
		LocalOffset: 16, LocalValue: 2, RemoteOffset: 8, RemoteValue: 1,
	}
	if got := s.Swap(); got != want {
		t.Errorf("Swap = %+v, want %+v", got, want)
	}
	if got := s.Swap().Swap(); got != s {
		t.Errorf("Swap twice = %+v, want %+v", got, s)
	}
	s.Where = fence.SignalLocal | fence.SignalRemote
	if got := s.Swap().Where; got != s.Where {
		t.Errorf("Swap of both places = %#x", got)
	}
}
