package workload

import (
	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// A verb is what an operation does.
type verb int

const (
	vwrite       verb = iota // VWriteTo
	write                    // WriteTo, from a window of the initiator
	vread                    // VReadFrom
	read                     // ReadFrom
	fetchAdd                 // FetchAdd64 of 1
	syncWrite                // VWriteTo with Sync
	orderedWrite             // VWriteTo with Ordered
)

// name is SCIF's name of the call.
func (v verb) name() string {
	switch v {
	case write:
		return "writeto"
	case read:
		return "readfrom"
	case vread:
		return "vreadfrom"
	case fetchAdd:
		return "atomic"
	}
	return "vwriteto"
}

func (v verb) writes() bool { return v == vwrite || v == write || v == syncWrite || v == orderedWrite }

// A geometry is how the windows of a connection are divided. Both ends know it.
type geometry struct {
	window   int // bytes, whole pages
	min, max int // bytes of an operation, whole words
	slot     int // bytes
	slots    int // at least 2
	reads    float64
}

// newGeometry divides a window for the operations of r. The window grows until
// it has room for two of the largest.
func newGeometry(r RMA) geometry {
	g := geometry{min: wholeWords(r.Min), max: wholeWords(r.Max), reads: r.Reads}
	g.slot = g.max
	g.window = int(r.Window+pageSize-1) / pageSize * pageSize
	if least := (2*g.slot + controlSize + pageSize - 1) / pageSize * pageSize; g.window < least {
		g.window = least
	}
	g.slots = (g.window - controlSize) / g.slot
	return g
}

func wholeWords(n int64) int { return int(max(n, 8)+7) / 8 * 8 }

const (
	pageSize = 4096
	// controlSize is the end of each window, behind the slots: the word that
	// signals are stored in and the word that atomics change.
	controlSize = 16
)

// signalAt and counterAt are the offsets in a window of its two control words.
func (g geometry) signalAt() int  { return g.window - 8 }
func (g geometry) counterAt() int { return g.window - 16 }

// An operation is one RMA operation of one end. It follows from the connection,
// the side and its number, so that the target knows what to look for.
type operation struct {
	n    uint64
	verb verb
	off  int // in the peer's window
	len  int // bytes, whole words; of a read at most
}

// What operations are drawn from, with equal weights each.
var (
	writeVerbs = [...]verb{vwrite, vwrite, vwrite, vwrite, write, write, write, syncWrite, orderedWrite, fetchAdd}
	readVerbs  = [...]verb{vread, read}
)

// operation returns operation n of end, counted from 1.
func (g geometry) operation(end history.ConnEnd, n uint64) operation {
	r := mix(streamKey(end.Conn, end.Side) ^ mix(n))
	op := operation{n: n, verb: writeVerbs[r>>3%uint64(len(writeVerbs))], len: g.size(r >> 8)}
	if float64(r>>11)/(1<<53) < g.reads {
		op.verb = readVerbs[r%uint64(len(readVerbs))]
	}
	switch {
	case op.verb == fetchAdd:
		op.off, op.len = g.counterAt(), 8
	case op.verb.writes():
		op.off = g.slotAt(n)
	default: // any slot
		op.off = g.slotAt(r >> 40)
	}
	return op
}

// slotAt returns the offset of the slot of number n.
func (g geometry) slotAt(n uint64) int { return int(n%uint64(g.slots)) * g.slot }

// size returns a size from min to max. Sizes are spread evenly over the powers
// of two: most are small.
func (g geometry) size(r uint64) int {
	span := (g.max-g.min)/8 + 1
	bits := uint64(0)
	for s := span; s > 1; s >>= 1 {
		bits++
	}
	limit := min(span, 1<<(r%(bits+1)))
	return g.min + 8*int(r>>8%uint64(limit))
}

// visible reports whether the bytes of all writes of end in (after, upto] are in
// the window, and if not, the lowest one of which some are missing. A later
// write of the same slot may have begun to replace them.
func (g geometry) visible(window []byte, end history.ConnEnd, after, upto uint64) (missing uint64, ok bool) {
	writer := writerOf(end)
	for n := after + 1; n <= upto; n++ {
		op := g.operation(end, n)
		if !op.verb.writes() {
			continue
		}
		words := window[op.off : op.off+op.len]
		for i := range op.len / 8 {
			t := tag(loadWord(words[i*8:]))
			later := (t.op() - n) & opMask // modulo the field
			if t.writer() != writer || t.word() != uint64(i)&wordMask ||
				later > opMask/2 || later%uint64(g.slots) != 0 {
				return n, false
			}
		}
	}
	return 0, true
}

// loadWord loads one word of a window, which the peer may be writing.
func loadWord(p []byte) uint64 { return fabric.LoadUint64(p) }
