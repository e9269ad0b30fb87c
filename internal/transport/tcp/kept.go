package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A kept is the frames that were written to a bulk connection and that the peer has
// not said to have: if the connection is cut, they go another way. Their bytes are
// copies, or lie where they were when they were written and are held there. What is
// kept is at most keepMax and one frame, so that a cut, which makes copies of all,
// needs no more memory than that.
type kept struct {
	bytes atomic.Int64 // of frames

	mu      sync.Mutex // guards the fields below; no hold is released under it
	frames  []keptFrame
	first   int    // of frames, that is still there
	written uint64 // position in the connection's bytes behind the last frame
	acked   uint64 // the peer has what is before; a border between frames
	closed  bool   // the peer has said what it got, or the session is over: nothing more is kept
}

// A keptFrame is one frame of data.
type keptFrame struct {
	end    uint64 // position behind it
	lane   uint64
	at     uint64 // offset in the lane
	length int
	sheaf  *sheaf // where its bytes are; nil: in chunks
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

// keepFrame returns the frame of s, whose payload is n bytes at offset at of a lane.
// If s has a hold, the bytes stay where they are and are held.
func keepFrame(lane, at uint64, n int, s *sheaf) keptFrame {
	f := keptFrame{lane: lane, at: at, length: n, sheaf: s}
	if s.hold == nil {
		return f.copied(0)
	}
	s.users.Add(1)
	s.hold.Retain()
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
	if position < k.acked || position > k.written {
		defer k.mu.Unlock()
		return fmt.Errorf("%w: position %d of a bulk connection, %d are acknowledged and %d written", errMalformed, position, k.acked, k.written)
	}
	k.acked = position
	k.mu.Unlock()
	for {
		f, ok := k.pop(position)
		if !ok {
			return nil
		}
		f.free()
	}
}

// pop takes out the first frame if it ends at position or before.
func (k *kept) pop(position uint64) (f keptFrame, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.first == len(k.frames) || k.frames[k.first].end > position {
		return f, false
	}
	f, k.frames[k.first] = k.frames[k.first], keptFrame{}
	k.bytes.Add(-int64(f.length))
	if k.first++; k.first == len(k.frames) {
		k.frames, k.first = k.frames[:0], 0
	}
	return f, true
}

// lost ends it: the peer has got the bytes before position, and no more will
// come this way. It returns copies of the frames, of which the first may be in
// part, that have to be sent again; they are the caller's.
func (k *kept) lost(position uint64) ([]keptFrame, error) {
	if err := k.ack(position); err != nil {
		return nil, err
	}
	k.mu.Lock()
	again := k.frames[k.first:]
	k.frames, k.first, k.closed = nil, 0, true
	var old []keptFrame
	for i := range again {
		f := &again[i]
		had := 0
		if begin := f.end - uint64(f.length); position > begin {
			had = int(position - begin)
		}
		if had > 0 || f.sheaf != nil {
			old = append(old, *f)
			*f = f.copied(had)
		}
	}
	k.mu.Unlock()
	freeAll(old)
	return again, nil
}

// detach makes copies of a lane's frames whose bytes are held. It returns those
// frames, which the caller frees.
func (k *kept) detach(lane uint64) (held []keptFrame) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := k.first; i < len(k.frames); i++ {
		if f := &k.frames[i]; f.lane == lane && f.sheaf != nil {
			held = append(held, *f)
			*f = f.copied(0)
		}
	}
	return held
}

// close forgets everything: the session is over. The caller frees the frames.
func (k *kept) close() []keptFrame {
	k.mu.Lock()
	defer k.mu.Unlock()
	frames := k.frames[k.first:]
	k.frames, k.first, k.closed = nil, 0, true
	return frames
}

// copied returns the frame without its first n bytes, in memory of its own.
func (f *keptFrame) copied(n int) keptFrame {
	rest := keptFrame{end: f.end, lane: f.lane, at: f.at + uint64(n), length: f.length - n}
	for done := 0; done < rest.length; {
		c := chunks.Get().(*chunk)
		rest.chunks[done/chunkLen] = c
		for k := 0; k < chunkLen && done < rest.length; {
			m := copy(c[k:min(chunkLen, k+rest.length-done)], f.piece(n+done))
			k, done = k+m, done+m
		}
	}
	return rest
}

// piece returns the frame's bytes from offset from on, as many as lie together.
func (f *keptFrame) piece(from int) []byte {
	if f.sheaf != nil {
		return f.sheaf.payload(from)
	}
	c := f.chunks[from/chunkLen]
	return c[from%chunkLen : min(chunkLen, f.length-from/chunkLen*chunkLen)]
}

// free gives the frame's memory back. The caller holds no lock.
func (f *keptFrame) free() {
	if s := f.sheaf; s != nil {
		f.sheaf = nil
		hold := s.hold
		s.free()
		hold.Release()
		return
	}
	for i, c := range f.chunks {
		if c != nil {
			chunks.Put(c)
			f.chunks[i] = nil
		}
	}
}

func freeAll(frames []keptFrame) {
	for i := range frames {
		frames[i].free()
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
