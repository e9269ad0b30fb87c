package fabric

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// A Word64 is a 64-bit word of window memory, of this process or of the peer's
// that is mapped here, in the machine's byte order. Its methods are one atomic
// domain with the atomics, signals and puts of peers, and order the memory
// around them: a reader of a value sees the stores before it. The word must
// not be used after its memory or mapping was closed. Words are values and may
// be copied; the zero one is none.
type Word64 struct{ v *atomic.Uint64 }

// Word64At returns the word at p[off:], which is memory of [Memory] or [Mapping] or
// any other that stays where it is. Errors: ENXIO if the word does not lie in p,
// EINVAL if it is not aligned to 8 bytes in memory.
func Word64At(p []byte, off int64) (Word64, error) {
	if off < 0 || off > int64(len(p))-8 {
		return Word64{}, wordError(status.NoAddress)
	}
	v, aligned := word64(p, off)
	if !aligned {
		return Word64{}, wordError(status.Invalid)
	}
	return Word64{v}, nil
}

// Word64 returns the word at off. Errors are those of [Word64At], and EBADF after
// Close.
func (m *Memory) Word64(off int64) (Word64, error) {
	if m.closed.Load() {
		return Word64{}, wordError(status.BadFD)
	}
	return Word64At(m.Bytes(), off)
}

// Word64 returns the word at off of the mapping. Errors are those of [Word64At],
// EBADF after Close, and EACCES if the mapping was not made for reading and
// writing: [Word64At] has words to load only.
func (m *Mapping) Word64(off int64) (Word64, error) {
	if err := m.wordError(); err != nil {
		return Word64{}, err
	}
	return Word64At(m.Bytes(), off)
}

// Load returns the word.
func (w Word64) Load() uint64 { return w.v.Load() }

// Store stores value.
func (w Word64) Store(value uint64) { w.v.Store(value) }

// Add adds delta and returns the new value.
func (w Word64) Add(delta uint64) uint64 { return w.v.Add(delta) }

// Swap stores value and returns the old one.
func (w Word64) Swap(value uint64) (old uint64) { return w.v.Swap(value) }

// CompareAndSwap stores value if the word is old, and reports whether it was.
func (w Word64) CompareAndSwap(old, value uint64) bool { return w.v.CompareAndSwap(old, value) }

// Wait looks at the word until the function until accepts its value, and
// returns that. It looks often for a moment and then less and less often, at
// least once in a millisecond. The error is the context's.
func (w Word64) Wait(ctx context.Context, until func(value uint64) bool) (uint64, error) {
	var v uint64
	err := poll(ctx, func() bool { v = w.v.Load(); return until(v) })
	return v, err
}

// A Word32 is a [Word64] of 32 bits.
type Word32 struct{ v *atomic.Uint32 }

// Word32At returns the word at p[off:], which is memory of [Memory] or [Mapping] or
// any other that stays where it is. Errors: ENXIO if the word does not lie in p,
// EINVAL if it is not aligned to 4 bytes in memory.
func Word32At(p []byte, off int64) (Word32, error) {
	if off < 0 || off > int64(len(p))-4 {
		return Word32{}, wordError(status.NoAddress)
	}
	v, aligned := word32(p, off)
	if !aligned {
		return Word32{}, wordError(status.Invalid)
	}
	return Word32{v}, nil
}

// Word32 returns the word at off. Errors are those of [Word32At], and EBADF after
// Close.
func (m *Memory) Word32(off int64) (Word32, error) {
	if m.closed.Load() {
		return Word32{}, wordError(status.BadFD)
	}
	return Word32At(m.Bytes(), off)
}

// Word32 returns the word at off of the mapping. Errors are those of [Word32At],
// EBADF after Close, and EACCES if the mapping was not made for reading and
// writing: [Word32At] has words to load only.
func (m *Mapping) Word32(off int64) (Word32, error) {
	if err := m.wordError(); err != nil {
		return Word32{}, err
	}
	return Word32At(m.Bytes(), off)
}

// Load returns the word.
func (w Word32) Load() uint32 { return w.v.Load() }

// Store stores value.
func (w Word32) Store(value uint32) { w.v.Store(value) }

// Add adds delta and returns the new value.
func (w Word32) Add(delta uint32) uint32 { return w.v.Add(delta) }

// Swap stores value and returns the old one.
func (w Word32) Swap(value uint32) (old uint32) { return w.v.Swap(value) }

// CompareAndSwap stores value if the word is old, and reports whether it was.
func (w Word32) CompareAndSwap(old, value uint32) bool { return w.v.CompareAndSwap(old, value) }

// Wait looks at the word until the function until accepts its value, and
// returns that. It looks often for a moment and then less and less often, at
// least once in a millisecond. The error is the context's.
func (w Word32) Wait(ctx context.Context, until func(value uint32) bool) (uint32, error) {
	var v uint32
	err := poll(ctx, func() bool { v = w.v.Load(); return until(v) })
	return v, err
}

func wordError(code status.Code) error {
	return &OpError{Op: "word", Local: Addr{Node: addr.NoNode}, Err: code}
}

func (m *Mapping) wordError() error {
	switch {
	case m.closed.Load():
		return wordError(status.BadFD)
	case m.prot != ProtRead|ProtWrite:
		return wordError(status.Access)
	}
	return nil
}

// How often a word is polled before another goroutine may run, before the
// processor may rest, and how long it rests. The first numbers take some
// microseconds, the round trip between two processes that both run.
const (
	spins      = 1000
	yields     = 100
	firstPause = 10 * time.Microsecond
	lastPause  = time.Millisecond
)

// poll calls ready until it returns true or ctx is done.
func poll(ctx context.Context, ready func() bool) error {
	if runtime.GOMAXPROCS(0) > 1 { // else no goroutine could store meanwhile
		for range spins {
			if ready() {
				return nil
			}
		}
	}
	for range yields {
		if ready() {
			return nil
		}
		runtime.Gosched()
	}
	return pollSlowly(ctx, ready)
}

func pollSlowly(ctx context.Context, ready func() bool) error {
	pause := firstPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		if ready() { // a call that need not wait succeeds even if ctx is done
			return nil
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return &OpError{Op: "wait", Local: Addr{Node: addr.NoNode}, Err: contextEnd{ctx.Err()}}
		}
		pause = min(2*pause, lastPause)
		timer.Reset(pause)
	}
}
