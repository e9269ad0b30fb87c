// Package ring is one direction of a byte stream through memory that two
// processes share: one writes, one reads, and neither trusts the other.
//
// The memory is a head, a table of slots and a data area. A short piece of the
// stream travels inside its slot, in one cache line with the word that
// publishes it; a longer one goes through the data area. Each side keeps its
// own place to itself: what the other side stores can make it wait or fail with
// [ErrCorrupt], never touch memory outside of the ring.
//
// The package moves bytes and says when somebody has to be woken; sleeping and
// waking are its user's affair. SPEC.md of internal/attach/proto describes the layout.
package ring

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrCorrupt is returned when the other side has stored what a correct one
// cannot have stored. The ring is of no use any more.
var ErrCorrupt = errors.New("ring: the other side broke the protocol")

// The layout, in bytes.
const (
	headSize = 512
	slotSize = 64 // a cache line
	// Inline is how many bytes a slot holds beside the word that publishes it.
	Inline = slotSize - 8
)

// The words of the head. Each line of 64 bytes has one side that writes it, but
// for the two that are armed by one and disarmed by the other.
const (
	offSwitched  = 0   // u32, writer: the stream goes on here
	offClosed    = 4   // u32, writer: nothing more will come
	offStart     = 8   // u64, writer: bytes that went another way before
	offWantSpace = 64  // u32, armed by the writer: wake me when there is room
	offHead      = 128 // u64, reader: slots consumed
	offDataHead  = 136 // u64, reader: bytes of the data area consumed
	offReady     = 192 // u32, reader: it reads here
	offGone      = 196 // u32, reader: it reads no more
	offWantData  = 256 // u32, armed by the reader: wake me when there is something
)

// The bounds of Params.
const (
	MinSlots, MaxSlots = 4, 1 << 16
	MinData, MaxData   = 4 << 10, 64 << 20
	// MaxRelease leaves a writer room for its shortest piece beside what a reader
	// that has read everything keeps: less than a sixteenth of the data area would
	// not do, and both would wait.
	MaxRelease = 90
)

// Params are the sizes of a ring, which are the same on both sides, and the
// habit of its reader, which is the reader's own.
type Params struct {
	Slots int // pieces on their way at most: a power of two from 4 to 65,536
	Data  int // bytes of longer pieces on their way at most: a power of two from 4 KiB to 64 MiB

	// Release is the part of the slots, or of the data area, that a reader takes
	// before it says so to the writer, in per cent from 0 to 90; 0: after every
	// read.
	Release int
}

// Default is what suits most connections.
var Default = Params{Slots: 256, Data: 256 << 10, Release: 25}

// Check returns an error that names the field, its value and what is allowed.
func (p Params) Check() error {
	if p.Slots < MinSlots || p.Slots > MaxSlots || bits.OnesCount(uint(p.Slots)) != 1 {
		return fmt.Errorf("ring: slots %d, want a power of two from %d to %d", p.Slots, MinSlots, MaxSlots)
	}
	if p.Data < MinData || p.Data > MaxData || bits.OnesCount(uint(p.Data)) != 1 {
		return fmt.Errorf("ring: data %d bytes, want a power of two from %d to %d", p.Data, MinData, MaxData)
	}
	if p.Release < 0 || p.Release > MaxRelease {
		return fmt.Errorf("ring: release %d%%, want 0 to %d", p.Release, MaxRelease)
	}
	return nil
}

// Size returns the bytes of memory that a ring of valid p takes, a multiple of
// 64.
func (p Params) Size() int { return headSize + p.Slots*slotSize + p.Data }

// chunk bounds the bytes of one piece: several of them make a long write, so
// that the reader copies the first while the next is copied in.
func (p Params) chunk() int { return p.Data / 4 }

// least is the shortest piece that a write is cut into for want of room.
func (p Params) least() int { return p.Data / 16 }

// A layout is the memory of a ring, cut up.
type layout struct {
	Params
	mem  []byte
	data []byte
}

func newLayout(mem []byte, p Params) (layout, error) {
	if err := p.Check(); err != nil {
		return layout{}, err
	}
	if len(mem) < p.Size() {
		return layout{}, fmt.Errorf("ring: %d bytes of memory, want %d", len(mem), p.Size())
	}
	if !aligned(mem) {
		return layout{}, errors.New("ring: memory is not aligned to 64 bytes")
	}
	mem = mem[:p.Size():p.Size()]
	return layout{Params: p, mem: mem, data: mem[headSize+p.Slots*slotSize:]}, nil
}

// slot returns the slot at a place of the stream of slots.
func (l *layout) slot(at uint64) []byte {
	off := headSize + int(at&uint64(l.Slots-1))*slotSize
	return l.mem[off : off+slotSize : off+slotSize]
}

// published is the word that publishes the piece of n bytes at a place: it
// differs from the one of the lap before, and from zero.
func published(at uint64, n int) uint64 { return uint64(uint32(at)+1)<<32 | uint64(uint32(n)) }

// put copies p into the data area at a place of its stream, get copies out.

func (l *layout) put(at uint64, p []byte) {
	off := int(at & uint64(l.Data-1))
	n := copy(l.data[off:], p)
	copy(l.data, p[n:])
}

func (l *layout) get(at uint64, p []byte) {
	off := int(at & uint64(l.Data-1))
	n := copy(p, l.data[off:])
	copy(p[n:], l.data)
}
