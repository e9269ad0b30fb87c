package load

import (
	"encoding/binary"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// A Verb is the kind of an operation.
type Verb int

// The verbs.
const (
	VWrite       Verb = iota // VWriteTo
	Write                    // WriteTo, from a window of the initiator
	VRead                    // VReadFrom
	Read                     // ReadFrom
	fetchAdd                 // FetchAdd64 of 1
	SyncWrite                // VWriteTo with Sync
	OrderedWrite             // VWriteTo with Ordered
)

// Name is SCIF's name of the call.
func (v Verb) Name() string {
	return [...]string{"vwriteto", "writeto", "vreadfrom", "readfrom", "atomic", "vwriteto", "vwriteto"}[v]
}

// Reads reports whether the operation reads from the peer's window.
func (v Verb) Reads() bool { return v == VRead || v == Read }

// Registered reports whether its memory at this end is named by an offset.
func (v Verb) Registered() bool { return v == Write || v == Read }

func (v Verb) writes() bool { return !v.Reads() && v != fetchAdd }

// A geometry is how the windows of a connection are divided. Both ends know it.
type geometry struct {
	window   int // bytes, whole pages
	min, max int // bytes of an operation, whole words; a slot has max
	slots    int // at least 2
	reads    float64
}

const (
	pageSize = 4096
	// controlSize is the end of each window, behind the slots: the word that
	// signals are stored in and the word that atomics change.
	controlSize = 16
)

// newGeometry divides a window for the operations of r. The window grows until it has
// room for two of the largest.
func newGeometry(r RMA) geometry {
	g := geometry{min: wholeWords(r.Min), max: wholeWords(r.Max), reads: r.Reads}
	g.window = max(wholePages(int(r.Window)), wholePages(2*g.max+controlSize))
	g.slots = (g.window - controlSize) / g.max
	return g
}

func wholeWords(n int64) int { return int(max(n, 8)+7) / 8 * 8 }
func wholePages(n int) int   { return (n + pageSize - 1) / pageSize * pageSize }

// signalAt and counterAt are the offsets in a window of its two control words.
func (g geometry) signalAt() int  { return g.window - 8 }
func (g geometry) counterAt() int { return g.window - 16 }

// slotsEnd is where the slots end.
func (g geometry) slotsEnd() int { return g.slots * g.max }

// slotAt returns the offset of the slot of number n.
func (g geometry) slotAt(n uint64) int { return int(n%uint64(g.slots)) * g.max }

// An Operation is one RMA operation of one end. It follows from the connection, the
// side and its number, so that the target can verify it.
type Operation struct {
	Verb Verb
	Len  int // bytes, whole words; of a read at most
	n    uint64
	off  int // in the peer's window
}

// The verbs are drawn from these lists, with equal weights.
var (
	writeVerbs = [...]Verb{VWrite, VWrite, VWrite, VWrite, Write, Write, Write, SyncWrite, OrderedWrite, fetchAdd}
	readVerbs  = [...]Verb{VRead, Read}
)

// operation returns operation n of end, counted from 1.
func (g geometry) operation(end history.ConnEnd, n uint64) Operation {
	r := mix(keyOf(end) ^ mix(n))
	op := Operation{n: n, Verb: writeVerbs[r>>3%uint64(len(writeVerbs))], Len: g.size(r >> 8)}
	if float64(r>>11)/(1<<53) < g.reads {
		op.Verb = readVerbs[r%uint64(len(readVerbs))]
	}
	switch {
	case op.Verb == fetchAdd:
		op.off, op.Len = g.counterAt(), 8
	case op.Verb.writes():
		op.off = g.slotAt(n)
	default: // any slot
		op.off = g.slotAt(r >> 40)
	}
	return op
}

// size returns a size from min to max. Sizes are spread evenly over the powers of two:
// most are small.
func (g geometry) size(r uint64) int {
	span := (g.max-g.min)/8 + 1
	bits := uint64(0)
	for s := span; s > 1; s >>= 1 {
		bits++
	}
	limit := min(span, 1<<(r%(bits+1)))
	return g.min + 8*int(r>>8%uint64(limit))
}

// fits reports whether a tag of the peer's may be at byte i of the window: the right
// slot, and the right place in it.
func (g geometry) fits(t tag, i int) bool {
	return t.op()%uint64(g.slots) == uint64(i/g.max) && t.word() == uint64(i%g.max/8)&wordMask
}

// visible reports whether the bytes of all writes of end in (after, upto] are in the
// window, and if not, the lowest one of which some are missing. A later write of the
// same slot may have begun to replace them.
func (g geometry) visible(window []byte, load func([]byte) uint64, end history.ConnEnd, after, upto uint64) (missing uint64, ok bool) {
	writer := writerOf(end)
	for n := after + 1; n <= upto; n++ {
		op := g.operation(end, n)
		if !op.Verb.writes() {
			continue
		}
		words := window[op.off : op.off+op.Len]
		for i := range op.Len / 8 {
			t := tag(load(words[i*8:]))
			later := (t.op() - n) & opMask // modulo the field
			if t.writer() != writer || t.word() != uint64(i)&wordMask ||
				later > opMask/2 || later%uint64(g.slots) != 0 {
				return n, false
			}
		}
	}
	return 0, true
}

// The frames between the two ends of a connection with operations.
const (
	frameSize   = 32
	frameWindow = 'W' // id, offset, length of the sender's window
	frameDone   = 'F' // all operations up to the number are there
	frameLent   = 'L' // a window at this offset may be read until its owner takes it back, without a notice
)

// putFrame returns a frame: its numbers are behind its kind and seven zeros.
func putFrame(kind byte, numbers ...uint64) []byte {
	p := make([]byte, frameSize)
	p[0] = kind
	for i, v := range numbers {
		binary.BigEndian.PutUint64(p[8+8*i:], v)
	}
	return p
}

func frameIn(p []byte) (kind byte, a, b uint64) {
	return p[0], binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[16:])
}
