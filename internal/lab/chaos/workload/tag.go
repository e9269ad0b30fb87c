package workload

import (
	"encoding/binary"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// A tag is what every 8-byte word of a window holds: who wrote it.
//
//	63      36 35          12 11        0
//	+---------+--------------+-----------+
//	| writer  | operation    | word      |
//	+---------+--------------+-----------+
//
// writer is a hash of the connection and the initiator's side, or of the
// window for its own fill; operation the number of the operation, 0 in a fill;
// word the position in the operation or the window. Operations and words are
// counted modulo their fields.
type tag uint64

const (
	wordBits = 12
	opBits   = 24
	opMask   = 1<<opBits - 1
	wordMask = 1<<wordBits - 1
)

func (t tag) writer() uint32 { return uint32(t >> (opBits + wordBits)) }
func (t tag) op() uint64     { return uint64(t) >> wordBits & opMask }
func (t tag) word() uint64   { return uint64(t) & wordMask }

// writerOf returns the writer field of the operations of one end.
func writerOf(end history.ConnEnd) uint32 {
	return uint32(mix(streamKey(end.Conn, end.Side)) >> (opBits + wordBits))
}

// fillOf returns the writer field of a window's own fill.
func fillOf(window uint64) uint32 { return uint32(mix(^mix(window)) >> (opBits + wordBits)) }

// tagAt returns the tag of word i of an operation.
func tagAt(writer uint32, op uint64, i int) tag {
	return tag(uint64(writer)<<(opBits+wordBits) | op&opMask<<wordBits | uint64(i)&wordMask)
}

// stamp fills p, whole words, with the tags of an operation.
func stamp(p []byte, writer uint32, op uint64) {
	for i := range len(p) / 8 {
		binary.LittleEndian.PutUint64(p[i*8:], uint64(tagAt(writer, op, i)))
	}
}
