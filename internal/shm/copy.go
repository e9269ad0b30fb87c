package shm

import (
	"encoding/binary"
	"runtime/debug"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/status"
)

// How [Copy] cuts a long copy into pieces, measured. Go's copy bypasses the
// caches from 1 MiB on. That is right for a destination that fits into none of them,
// and half as fast for one that does. The scheduler can stop the goroutine only
// between two pieces.
const (
	cached     = 4 << 20   // up to here the destination is left in the caches,
	piece      = 256 << 10 // by pieces of this size
	largePiece = 4 << 20   // of all that is longer
)

// Copy copies src to dst, which have the same length. Either may be mapped memory
// of another process; a fault is status.Fault, and the copied part is then
// unspecified. Memory that other processes change meanwhile yields any mixture
// of old and new bytes.
func Copy(dst, src []byte) (err error) {
	if len(dst) != len(src) {
		return status.Invalid
	}
	defer caught(debug.SetPanicOnFault(true), &err)
	copyPieces(dst, src)
	return nil
}

func copyPieces(dst, src []byte) {
	if len(src) <= piece {
		copy(dst, src)
		return
	}
	size := piece
	if len(src) > cached {
		size = largePiece
	}
	for len(src) > size {
		copy(dst[:size], src[:size])
		dst, src = dst[size:], src[size:]
	}
	copy(dst, src)
}

// LineSize is the granularity of CopyOrdered in bytes.
const LineSize = 64

// fence orders stores: an atomic operation on it orders the stores around it.
var fence atomic.Uint32

// CopyOrdered copies p to [off, off+len(p)) of the region. A reader that sees the
// last line of 64 bytes sees the rest. One that sees the line's last word, if that is
// aligned to eight, sees the rest of the line. Faults are as in [Copy].
func (r *Region) CopyOrdered(off int64, p []byte) (err error) {
	if !r.has(off, len(p)) {
		return status.Invalid
	}
	defer caught(debug.SetPanicOnFault(true), &err)
	dst := r.mem[off : off+int64(len(p))]
	last := min(int((off+int64(len(p))-1)%LineSize)+1, len(p))
	head := len(p) - last
	copyPieces(dst[:head], p[:head])
	fence.Add(1)
	word := len(p) - 8
	if word < head || (off+int64(word))%8 != 0 {
		copy(dst[head:], p[head:])
		return nil
	}
	copy(dst[head:word], p[head:word])
	r.touch(off + int64(word))
	r.word64(off + int64(word)).Store(binary.NativeEndian.Uint64(p[word:]))
	return nil
}

// CloseFile closes the region's descriptor, which File no longer returns; the
// memory stays mapped. It is called before the region is shared.
func (r *Region) CloseFile() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// Word returns the word of 8 bytes at off, a multiple of 8, for access without
// a function call. The memory must be of a kind that cannot fault, like memory that
// [Check] has accepted, and the caller holds a reference while it uses the word.
// It is nil outside the region.
func (r *Region) Word(off int64) *atomic.Uint64 {
	if !r.hasWord(off, 8) {
		return nil
	}
	return r.word64(off)
}
