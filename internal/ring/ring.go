// Package ring is one direction of a byte stream through memory that two processes share: one
// writes, one reads, and neither trusts the other.
//
// The memory is a head, a table of slots and a data area. A short piece of the stream travels
// inside its slot, in one cache line with the word that publishes it; a longer one goes through the
// data area. Each side keeps its own position in private memory: the other side's stores can make
// it wait or fail with [ErrCorrupt], but never access memory outside the ring.
//
// The package moves bytes and reports when the other side has to be woken; its user sleeps and
// wakes. SPEC.md of internal/attach/proto describes the layout.
package ring

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrCorrupt is returned when the other side has stored a value that a correct one cannot store.
// The ring is unusable from then on.
var ErrCorrupt = errors.New("ring: the other side broke the protocol")

// The layout, in bytes.
const (
	headSize = 512
	slotSize = 64 // a cache line
	// Inline is how many bytes a slot holds after the word that publishes it.
	Inline = slotSize - 8
)

// The words of the head. Each line of 64 bytes is written by one side, except for the two words
// that one side arms and the other disarms.
const (
	offSwitched  = 0   // u32, writer: the stream has switched to this ring
	offClosed    = 4   // u32, writer: no more bytes follow
	offStart     = 8   // u64, writer: bytes of the stream sent another way before
	offWantSpace = 64  // u32, armed by the writer: wake me when there is room
	offHead      = 128 // u64, reader: slots consumed
	offDataHead  = 136 // u64, reader: bytes of the data area consumed
	offReady     = 192 // u32, reader: reads from this ring
	offGone      = 196 // u32, reader: reads no more
	offWantData  = 256 // u32, armed by the reader: wake me when there are bytes
)

// The bounds of Params.
const (
	MinSlots, MaxSlots = 4, 1 << 16
	MinData, MaxData   = 4 << 10, 64 << 20
	// MaxRelease leaves a writer room for its shortest piece in addition to the room that a reader
	// that has read everything may not have reported: with less than a sixteenth of the data area
	// left both sides would wait.
	MaxRelease = 90
)

// Params are the sizes of a ring, which are the same on both sides, and Release, which concerns
// only the reader.
type Params struct {
	Slots int // pieces in flight, at most: a power of two from 4 to 65,536
	Data  int // bytes of longer pieces in flight, at most: a power of two from 4 KiB to 64 MiB

	// Release is the part of the slots, or of the data area, that a reader consumes before it
	// reports the room to the writer, in per cent from 0 to 90; 0: after every read.
	Release int
}

// Default suits most connections.
var Default = Params{Slots: 256, Data: 256 << 10, Release: 25}

// Check returns an error that names the field, its value and the allowed range.
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

// Size returns the bytes of memory of a ring with valid p, a multiple of 64.
func (p Params) Size() int { return headSize + p.Slots*slotSize + p.Data }

// chunk bounds the bytes of one piece: a long write becomes several pieces, so that the reader
// copies the first while the writer copies the next.
func (p Params) chunk() int { return p.Data / 4 }

// least is the shortest piece that a write is cut into if the ring is nearly full.
func (p Params) least() int { return p.Data / 16 }

// A layout is the memory of a ring, divided into its parts.
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

// slot returns the slot at a position of the stream of slots.
func (l *layout) slot(at uint64) []byte {
	off := headSize + int(at&uint64(l.Slots-1))*slotSize
	return l.mem[off : off+slotSize : off+slotSize]
}

// published is the word that publishes the piece of n bytes at a position: it differs from the word
// of the lap before, and from zero.
func published(at uint64, n int) uint64 { return uint64(uint32(at)+1)<<32 | uint64(uint32(n)) }

// put copies p into the data area at a position of its stream; get copies bytes out.

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
