package ring

import (
	"sync/atomic"
	"unsafe"
)

// This file replaces the one of the same name: every access to a word that both sides see goes
// through Step.

// Step performs an access and returns the value read.
var Step = func(what string, off int, access func() uint64) uint64 { return access() }

func aligned(mem []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%slotSize == 0
}

func (l *layout) word32(off int) stepped32 {
	return stepped32{(*atomic.Uint32)(unsafe.Pointer(&l.mem[off])), off}
}

func (l *layout) word64(off int) stepped64 {
	return stepped64{(*atomic.Uint64)(unsafe.Pointer(&l.mem[off])), off}
}

func (l *layout) at64(at uint64) stepped64 {
	slot := l.slot(at)
	return stepped64{(*atomic.Uint64)(unsafe.Pointer(&slot[0])), headSize + int(at&uint64(l.Slots-1))*slotSize}
}

// State is the writer's private state.
func (w *Writer) State() []uint64 {
	return []uint64{w.tail, w.head, w.dtail, w.dhead}
}

// State is the reader's private state.
func (r *Reader) State() []uint64 {
	all := []uint64{r.head, r.freed, r.dhead, r.dfreed, uint64(r.size), uint64(r.taken), 0}
	if r.released {
		all[len(all)-1] = 1
	}
	return all
}

// readerPlace and writerPlace replace the words that a side shares with the pollers of its own
// process.
type (
	readerPlace struct{ word atomic.Uint64 }
	writerPlace struct{ word atomic.Uint64 }
)

// The offsets of these for Step.
const (
	OffReaderPlace = -1
	OffWriterPlace = -2
)

func (p *readerPlace) Load() uint64   { return stepped64{&p.word, OffReaderPlace}.Load() }
func (p *readerPlace) Store(v uint64) { stepped64{&p.word, OffReaderPlace}.Store(v) }
func (p *writerPlace) Load() uint64   { return stepped64{&p.word, OffWriterPlace}.Load() }
func (p *writerPlace) Store(v uint64) { stepped64{&p.word, OffWriterPlace}.Store(v) }

type stepped32 struct {
	word *atomic.Uint32
	off  int
}

func (s stepped32) Load() uint32 {
	return uint32(Step("loads", s.off, func() uint64 { return uint64(s.word.Load()) }))
}

func (s stepped32) Store(v uint32) {
	Step("stores", s.off, func() uint64 { s.word.Store(v); return uint64(v) })
}

func (s stepped32) Swap(v uint32) uint32 {
	return uint32(Step("swaps", s.off, func() uint64 { return uint64(s.word.Swap(v)) }))
}

type stepped64 struct {
	word *atomic.Uint64
	off  int
}

func (s stepped64) Load() uint64 {
	return Step("loads", s.off, func() uint64 { return s.word.Load() })
}

func (s stepped64) Store(v uint64) {
	Step("stores", s.off, func() uint64 { s.word.Store(v); return v })
}
