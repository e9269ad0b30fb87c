package load

import (
	"encoding/binary"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// The bytes that applications send and write follow from the connection and the
// position: a receiver verifies them by itself.

// mix returns a number that depends on all bits of x.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Nonce returns the n-th number that an application gives its connections and windows.
// No other of the run has it.
func Nonce(seed uint64, app history.Source, n uint64) uint64 {
	return mix(seed^uint64(app.Node)<<48^uint64(app.Run)<<32^n) | 1
}

// keyOf returns the key of the bytes that an end sends.
func keyOf(sender history.ConnEnd) uint64 {
	if sender.Side == history.Server {
		return mix(^sender.Conn)
	}
	return mix(sender.Conn)
}

// fill fills p with the bytes that sender sends from position pos on.
func fill(p []byte, sender history.ConnEnd, pos int64) {
	key := keyOf(sender)
	var word [8]byte
	for i := 0; i < len(p); {
		at := uint64(pos) + uint64(i)
		binary.LittleEndian.PutUint64(word[:], mix(key^at>>3))
		i += copy(p[i:], word[at&7:])
	}
}

// verify returns the index of the first byte of p that differs from the output of
// [fill], -1 if there is none.
func verify(p []byte, sender history.ConnEnd, pos int64) int {
	key := keyOf(sender)
	var word [8]byte
	for i := 0; i < len(p); {
		at := uint64(pos) + uint64(i)
		binary.LittleEndian.PutUint64(word[:], mix(key^at>>3))
		for _, b := range word[at&7:] {
			if i == len(p) {
				break
			}
			if p[i] != b {
				return i
			}
			i++
		}
	}
	return -1
}

// A tag is the content of every 8-byte word of a window: it identifies the writer.
//
//	63      36 35          12 11        0
//	+---------+--------------+-----------+
//	| writer  | operation    | word      |
//	+---------+--------------+-----------+
//
// writer is a hash of the connection and the initiator's side, or of the window for
// its own fill; operation the number of the operation, 0 in a fill; word the position
// in the operation or the window. Operations and words are counted modulo their fields.
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
func writerOf(end history.ConnEnd) uint32 { return uint32(keyOf(end) >> (opBits + wordBits)) }

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
