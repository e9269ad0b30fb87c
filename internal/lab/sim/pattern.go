package sim

import (
	"encoding/binary"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/rma"
)

// What applications send and write follows from the connection and the
// position, so that its receiver compares alone. It is the convention of the
// workload of real labs, not its bytes.

// mix returns a number that depends on all bits of x.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

func endKey(e history.ConnEnd) uint64 {
	if e.Side == history.Server {
		return mix(^e.Conn)
	}
	return mix(e.Conn)
}

// fill fills p with the bytes that an end sends from position pos on.
func fill(p []byte, key uint64, pos int64) {
	for i := 0; i < len(p); {
		at := uint64(pos) + uint64(i)
		word := mix(key ^ at>>3)
		if at&7 == 0 && len(p)-i >= 8 {
			binary.LittleEndian.PutUint64(p[i:], word)
			i += 8
			continue
		}
		p[i] = byte(word >> (8 * (at & 7)))
		i++
	}
}

// verify returns the index of the first byte of p that is not what fill puts
// there, -1 if there is none.
func verify(p []byte, key uint64, pos int64) int {
	for i := 0; i < len(p); {
		at := uint64(pos) + uint64(i)
		word := mix(key ^ at>>3)
		if at&7 == 0 && len(p)-i >= 8 {
			if binary.LittleEndian.Uint64(p[i:]) != word {
				for k := range 8 {
					if p[i+k] != byte(word>>(8*k)) {
						return i + k
					}
				}
			}
			i += 8
			continue
		}
		if p[i] != byte(word>>(8*(at&7))) {
			return i
		}
		i++
	}
	return -1
}

// A tag is what every 8-byte word of a window holds: who wrote it (28 bits),
// in which operation (24), and its place there (12).
type tag uint64

const (
	wordBits = 12
	opBits   = 24
	opMask   = 1<<opBits - 1
	wordMask = 1<<wordBits - 1
)

func (t tag) writer() uint32 { return uint32(t >> (opBits + wordBits)) }
func (t tag) op() uint64     { return uint64(t) >> wordBits & opMask }

func writerOf(e history.ConnEnd) uint32 { return uint32(endKey(e) >> (opBits + wordBits)) }
func fillOf(window uint64) uint32       { return uint32(mix(^mix(window)) >> (opBits + wordBits)) }

func tagAt(writer uint32, op uint64, i int) tag {
	return tag(uint64(writer)<<(opBits+wordBits) | op&opMask<<wordBits | uint64(i)&wordMask)
}

// stamp fills p, whole words, with the tags of an operation.
func stamp(p []byte, writer uint32, op uint64) {
	for i := range len(p) / 8 {
		binary.LittleEndian.PutUint64(p[i*8:], uint64(tagAt(writer, op, i)))
	}
}

// stamped reports whether p holds nothing but the tags of the operation.
func stamped(p []byte, writer uint32, op uint64) bool {
	for i := range len(p) / 8 {
		if tag(binary.LittleEndian.Uint64(p[i*8:])) != tagAt(writer, op, i) {
			return false
		}
	}
	return true
}

// A geometry is how the windows of a connection are divided into slots. Both
// ends know it.
type geometry struct {
	window   int // bytes, whole pages
	min, max int // bytes of an operation, whole words
	slots    int
	reads    float64
}

const controlSize = 16 // behind the slots: the signal's word and the atomics'

func newGeometry(size [2]int64, window int64, reads float64) geometry {
	words := func(n int64) int { return int(max(n, 8)+7) / 8 * 8 }
	pages := func(n int) int { return (n + rma.PageSize - 1) / rma.PageSize * rma.PageSize }
	g := geometry{min: words(size[0]), max: words(size[1]), reads: reads}
	g.window = max(pages(int(window)), pages(2*g.max+controlSize))
	g.slots = (g.window - controlSize) / g.max
	return g
}

func (g geometry) signalAt() int       { return g.window - 8 }
func (g geometry) counterAt() int      { return g.window - 16 }
func (g geometry) slotsEnd() int       { return g.slots * g.max }
func (g geometry) slotAt(n uint64) int { return int(n%uint64(g.slots)) * g.max }

// A verb is what an operation does.
type verb int

const (
	vwrite verb = iota
	write
	syncWrite
	orderedWrite
	fetchAdd
	vread
	read
)

func (v verb) name() string {
	return [...]string{"vwriteto", "writeto", "vwriteto", "vwriteto", "atomic", "vreadfrom", "readfrom"}[v]
}

func (v verb) writes() bool { return v <= orderedWrite }

// An operation is one RMA operation of one end. It follows from the connection,
// the side and its number, so that the target knows what to look for.
type operation struct {
	n    uint64
	verb verb
	off  int // in the peer's window
	len  int // bytes, whole words
}

var writeVerbs = [...]verb{vwrite, vwrite, vwrite, write, write, write, syncWrite, orderedWrite, orderedWrite, fetchAdd}

// operation returns operation n of an end, counted from 1.
func (g geometry) operation(e history.ConnEnd, n uint64) operation {
	r := mix(endKey(e) ^ mix(n))
	span := (g.max-g.min)/8 + 1
	op := operation{n: n, verb: writeVerbs[r>>3%uint64(len(writeVerbs))], len: g.min + 8*int(r>>8%uint64(span))}
	if float64(r>>11)/(1<<53) < g.reads {
		op.verb = vread + verb(r&1)
	}
	switch {
	case op.verb == fetchAdd:
		op.off, op.len = g.counterAt(), 8
	case op.verb.writes():
		op.off = g.slotAt(n)
	default:
		op.off = g.slotAt(r >> 40)
	}
	return op
}

// visible returns the lowest write of end in (after, upto] of which some bytes
// are not in the window; ok says that there is none. A later write of the same
// slot may have begun to replace them.
func (g geometry) visible(window []byte, end history.ConnEnd, after, upto uint64) (missing uint64, ok bool) {
	writer := writerOf(end)
	for n := after + 1; n <= upto; n++ {
		op := g.operation(end, n)
		if !op.verb.writes() {
			continue
		}
		words := window[op.off : op.off+op.len]
		for i := range op.len / 8 {
			t := tag(binary.LittleEndian.Uint64(words[i*8:]))
			later := (t.op() - n) & opMask // modulo the field
			if t.writer() != writer || uint64(t)&wordMask != uint64(i)&wordMask ||
				later > opMask/2 || later%uint64(g.slots) != 0 {
				return n, false
			}
		}
	}
	return 0, true
}
