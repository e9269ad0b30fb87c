package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A kept holds copies of the frames that were written to a bulk connection and
// that the peer has not said to have: if the connection is cut, they go another
// way. Its memory is at most keepMax and one frame.
type kept struct {
	bytes atomic.Int64 // of frames

	mu      sync.Mutex // guards the fields below
	frames  []keptFrame
	first   int    // of frames, that is still there
	written uint64 // position in the connection's bytes behind the last frame
	acked   uint64 // the peer has what is before; a border between frames
	closed  bool   // the peer has said what it got: nothing more is kept
}

// A keptFrame is one frame of data.
type keptFrame struct {
	end    uint64 // position behind it
	lane   uint64
	at     uint64 // offset in the lane
	length int
	chunks [maxPiece / chunkLen]*chunk
}

// A chunk is memory for some bytes of a frame.
type chunk [chunkLen]byte

const (
	chunkLen = 64 << 10
	// keepMax is how much is kept before nothing more is written, in bytes.
	keepMax = 4 << 20
)

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// room reports whether another frame may be written.
func (k *kept) room() bool { return k.bytes.Load() <= keepMax-maxPiece }

// copyFrame returns a copy of v, which is sent at offset at of a lane.
func copyFrame(lane, at uint64, v vector) keptFrame {
	f := keptFrame{lane: lane, at: at, length: v.len()}
	for i := 0; v.len() > 0; i++ {
		f.chunks[i] = chunks.Get().(*chunk)
		v = v.skip(v.copyTo(f.chunks[i][:]))
	}
	return f
}

// add keeps a frame that is about to be written. It reports false if it is too
// late: the connection was cut.
func (k *kept) add(f keptFrame) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.written += headerLen + uint64(f.length)
	f.end = k.written
	k.bytes.Add(int64(f.length))
	if k.first > 0 && len(k.frames) == cap(k.frames) {
		n := copy(k.frames, k.frames[k.first:])
		clear(k.frames[n:])
		k.frames, k.first = k.frames[:n], 0
	}
	k.frames = append(k.frames, f)
	return true
}

// ack forgets the frames before position, which the peer has.
func (k *kept) ack(position uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if position < k.acked || position > k.written {
		return fmt.Errorf("%w: position %d of a bulk connection, %d are acknowledged and %d written", errMalformed, position, k.acked, k.written)
	}
	k.acked = position
	for k.first < len(k.frames) && k.frames[k.first].end <= position {
		k.frames[k.first].free()
		k.bytes.Add(-int64(k.frames[k.first].length))
		k.frames[k.first] = keptFrame{}
		k.first++
	}
	if k.first == len(k.frames) {
		k.frames, k.first = k.frames[:0], 0
	}
	return nil
}

// lost ends it: the peer has got the bytes before position, and no more will
// come this way. It returns the frames, of which the first may be in part, that
// have to be sent again; they are the caller's.
func (k *kept) lost(position uint64) ([]keptFrame, error) {
	if err := k.ack(position); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	again := k.frames[k.first:]
	k.frames, k.first = nil, 0
	if len(again) > 0 {
		f := &again[0]
		if begin := f.end - uint64(f.length); position > begin {
			f.had(int(position - begin))
		}
	}
	return again, nil
}

// had says that the peer has the first n bytes of the frame.
func (f *keptFrame) had(n int) {
	rest := keptFrame{end: f.end, lane: f.lane, at: f.at + uint64(n), length: f.length - n}
	for i := 0; i*chunkLen < rest.length; i++ {
		c := chunks.Get().(*chunk)
		for k := 0; k < chunkLen && i*chunkLen+k < rest.length; {
			k += copy(c[k:], f.piece(n+i*chunkLen+k))
		}
		rest.chunks[i] = c
	}
	f.free()
	*f = rest
}

// piece returns the frame's bytes from offset from on, as many as lie together.
func (f *keptFrame) piece(from int) []byte {
	c := f.chunks[from/chunkLen]
	return c[from%chunkLen : min(chunkLen, f.length-from/chunkLen*chunkLen)]
}

// free gives the frame's memory back.
func (f *keptFrame) free() {
	for i, c := range f.chunks {
		if c != nil {
			chunks.Put(c)
			f.chunks[i] = nil
		}
	}
}

// A vector is what one write consists of: the bytes of a, then those of b.
type vector struct{ a, b []byte }

func (v vector) len() int { return len(v.a) + len(v.b) }

// cut returns the first n bytes of v.
func (v vector) cut(n int) vector {
	if n <= len(v.a) {
		return vector{a: v.a[:n]}
	}
	return vector{v.a, v.b[:n-len(v.a)]}
}

// skip returns what follows the first n bytes of v.
func (v vector) skip(n int) vector {
	if n < len(v.a) {
		return vector{v.a[n:], v.b}
	}
	return vector{b: v.b[n-len(v.a):]}
}

// copyTo copies as much of v to p as fits and returns how much that is.
func (v vector) copyTo(p []byte) int {
	n := copy(p, v.a)
	return n + copy(p[n:], v.b)
}
