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

// direct returns the span's bytes if they may be touched directly, else nil.
func direct(sp span) []byte {
	p := sp.Window.Mem.region.Direct()
	if p == nil {
		return nil
	}
	return p[at(sp) : at(sp)+sp.Length]
}

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
	tail := int64(0)
	if p.Ordered {
		tail = lineOf(p.Spans)
	}
	for i, sp := range p.Spans {
		rest := sp.Length
		if i == len(p.Spans)-1 {
			rest -= tail
		}
		sp.Length = rest
		e, err := receiveSpan(r, sp)
		if err != nil {
			return nil, err
		}
		memErr = first(memErr, e)
	}
	if tail > 0 {
		last := p.Spans[len(p.Spans)-1]
		last.Offset += last.Length - tail
		last.Length = tail
		e, err := receiveLine(r, last)
		if err != nil {
			return nil, err
		}
		memErr = first(memErr, e)
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

func receiveSpan(r *wire.Reader, sp span) (memErr, err error) {
	if sp.Length == 0 {
		return nil, nil
	}
	if p := direct(sp); p != nil {
		return nil, r.Payload(p)
	}
	stage := stages.Get().(*[stageLen]byte)
	defer stages.Put(stage)
	region, off := sp.Window.Mem.region, at(sp)
	for n := sp.Length; n > 0; {
		p := stage[:min(n, stageLen)]
		if err := r.Payload(p); err != nil {
			return nil, err
		}
		if memErr == nil {
			memErr = region.WriteAt(p, off)
		}
		off += int64(len(p))
		n -= int64(len(p))
	}
	return memErr, nil
}

var barrier atomic.Uint32 // an atomic on it orders the stores around it

func receiveLine(r *wire.Reader, sp span) (memErr, err error) {
	var buf [line]byte
	p := buf[:sp.Length]
	if err := r.Payload(p); err != nil {
		return nil, err
	}
	return storeLine(sp, p), nil
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
