package engine

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// memory is the memory of a window: a part of a region, from off on.
type memory struct {
	region attach.Region
	off    int64
}

type span = rma.Span[memory]

// at returns the region's offset of the span's first byte.
func at(sp span) int64 { return sp.Window.Mem.off + sp.Offset }

// stageLen is the size of the buffers through which foreign memory is copied.
// Frames of small operations are put together in one too.
const stageLen = 64 << 10

var stages = sync.Pool{New: func() any { return new([stageLen]byte) }}

// receive reads the bytes behind a frame into p's memory. memErr is of the
// memory, and the bytes have been read all the same; err is of the stream.
func receive(r *wire.Reader, p *core.Payload[memory]) (memErr, err error) {
	switch {
	case p.Buf != nil:
		return nil, r.Payload(p.Buf)
	case len(p.Spans) == 0:
		return nil, r.Discard(int(p.Length))
	}
	stage := stages.Get().(*[stageLen]byte)
	defer stages.Put(stage)
	var part []span
	for off := int64(0); off < p.Length; {
		n := piece(uint64(p.Length - off))
		if err := r.Payload(stage[:n]); err != nil {
			return nil, err
		}
		if memErr == nil {
			part = core.Cut(part[:0], p.Spans, off, int64(n))
			memErr = storeSpans(part, stage[:n], p.Ordered && off+int64(n) == p.Length)
		}
		off += int64(n)
	}
	return memErr, nil
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

const line = 64 // bytes; the granularity of rma.Ordered

// lineOf returns how many bytes of an ordered payload for spans are its last line.
func lineOf(spans []span) int64 {
	last := spans[len(spans)-1]
	end := last.Window.Offset + last.Offset + last.Length
	n := end % line
	if n == 0 {
		n = line
	}
	return min(n, last.Length)
}

var barrier atomic.Uint32 // an atomic on it orders the stores around it

// piece returns how much of rest bytes is copied at a time. A last line is not cut.
func piece(rest uint64) int {
	n := min(rest, stageLen)
	if rest > n && rest-n < line {
		n -= line
	}
	return int(n)
}

// storeSpans copies p to spans, which are as long; ordered: the last line last.
func storeSpans(spans []span, p []byte, ordered bool) error {
	var tail int64
	if ordered {
		tail = lineOf(spans)
	}
	for i, sp := range spans {
		n := sp.Length
		if i == len(spans)-1 {
			n -= tail
		}
		if n > 0 {
			if err := sp.Window.Mem.region.WriteAt(p[:n], at(sp)); err != nil {
				return err
			}
		}
		p = p[n:]
	}
	if tail == 0 {
		return nil
	}
	last := spans[len(spans)-1]
	last.Offset += last.Length - tail
	last.Length = tail
	return storeLine(last, p)
}

// loadSpans copies spans to p, which is as long.
func loadSpans(spans []span, p []byte) error {
	for _, sp := range spans {
		if err := sp.Window.Mem.region.ReadAt(p[:sp.Length], at(sp)); err != nil {
			return err
		}
		p = p[sp.Length:]
	}
	return nil
}

// storeLine stores the last line of an ordered payload after all else, and its last
// word, if aligned, after the rest of the line.
func storeLine(sp span, p []byte) error {
	region, off := sp.Window.Mem.region, at(sp)
	barrier.Add(1)
	n := sp.Length - 8
	if n < 0 || (off+n)%8 != 0 {
		return region.WriteAt(p, off)
	}
	if n > 0 {
		if err := region.WriteAt(p[:n], off); err != nil {
			return err
		}
	}
	return region.Store(off+n, 8, binary.NativeEndian.Uint64(p[n:]))
}

// store8 stores a signal's value, as one word where it is aligned to eight.
func store8(sp span, v uint64) error {
	region, off := sp.Window.Mem.region, at(sp)
	if off%8 == 0 {
		return region.Store(off, 8, v)
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return region.WriteAt(b[:], off)
}

// doWord performs p's action on one word.
func doWord(p *core.Payload[memory]) (err error) {
	if p.Word == core.StoreWord {
		return store8(p.Spans[0], p.Value)
	}
	p.Value, err = atomicAt(p.Spans[0], p.Atomic)
	return err
}

// atomicAt performs a on the word of sp.
func atomicAt(sp span, a rma.Atomic) (old uint64, err error) {
	region, off, width := sp.Window.Mem.region, at(sp), int(a.Width)
	for {
		old, err := region.Load(off, width)
		if err != nil {
			return 0, err
		}
		swapped, err := region.CompareAndSwap(off, width, old, rma.Apply(old, a))
		if err != nil {
			return 0, err
		}
		if swapped {
			return old, nil
		}
	}
}
