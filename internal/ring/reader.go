package ring

import "sync/atomic"

// A Reader is the reading side of a ring. One goroutine reads at a time;
// Switched, Closed and Pending may be called from any.
type Reader struct {
	layout
	head, freed   uint64 // slots: consumed; as last reported to the writer
	dhead, dfreed uint64 // bytes of the data area, likewise
	size, taken   int    // of the piece at head; size is 0 before its length is read
	released      bool   // since the last WakeWriter

	batch, dbatch uint64 // slots and bytes consumed before Read reports them to the writer

	shown atomic.Uint64 // twice the head, plus 1 if part of its piece is consumed
}

// NewReader returns the reading side of the ring in mem, which is fresh, zero,
// and aligned to 64 bytes.
func NewReader(mem []byte, p Params) (*Reader, error) {
	l, err := newLayout(mem, p)
	if err != nil {
		return nil, err
	}
	return &Reader{layout: l, batch: share(p.Slots, p.Release), dbatch: share(p.Data, p.Release)}, nil
}

// share returns percent per cent of n, at least 1.
func share(n, percent int) uint64 { return max(1, uint64(n)*uint64(percent)/100) }

// Ready announces that this side reads from this ring from now on.
func (r *Reader) Ready() { r.word32(offReady).Store(1) }

// Switched reports whether the stream has switched to this ring, and how many of its bytes went
// another way before.
func (r *Reader) Switched() (start uint64, ok bool) {
	if r.word32(offSwitched).Load() == 0 {
		return 0, false
	}
	return r.word64(offStart).Load(), true
}

// Closed reports whether the writer has closed the ring. A Read after Closed sees all bytes.
func (r *Reader) Closed() bool { return r.word32(offClosed).Load() != 0 }

// Gone announces that this side reads no more.
func (r *Reader) Gone() { r.word32(offGone).Store(1) }

// Pending reports whether there are bytes to read.
func (r *Reader) Pending() bool {
	shown := r.shown.Load()
	return shown&1 != 0 || r.at64(shown>>1).Load()>>32 == published(shown>>1, 0)>>32
}

// Read copies available bytes to p and returns their number. The writer may have to be woken: see
// WakeWriter.
func (r *Reader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		ok, err := r.look()
		if err != nil {
			return n, err
		}
		if !ok {
			break
		}
		n += r.take(p[n:])
	}
	if n > 0 {
		mark := r.head << 1
		if r.taken > 0 {
			mark |= 1
		}
		r.shown.Store(mark)
		if r.head-r.freed >= r.batch || r.dhead-r.dfreed >= r.dbatch {
			r.Release()
		}
	}
	return n, nil
}

// look reports whether there is a piece at the head. It reads the piece's length once, and checks
// it.
func (r *Reader) look() (bool, error) {
	if r.size > 0 {
		return true, nil
	}
	word := r.at64(r.head).Load()
	if word>>32 != published(r.head, 0)>>32 {
		return false, nil
	}
	size := uint64(uint32(word))
	if size == 0 || size > uint64(r.chunk()) && size > Inline {
		return false, ErrCorrupt
	}
	r.size, r.taken = int(size), 0
	return true, nil
}

// take copies bytes of the piece at the head, and advances to the next piece after its last byte.
func (r *Reader) take(p []byte) int {
	n := min(len(p), r.size-r.taken)
	if r.size <= Inline {
		copy(p[:n], r.slot(r.head)[8+r.taken:])
	} else {
		r.get(r.dhead+uint64(r.taken), p[:n])
	}
	if r.taken += n; r.taken < r.size {
		return n
	}
	if r.size > Inline {
		r.dhead += uint64(r.size)
	}
	r.head++
	r.size, r.taken = 0, 0
	return n
}

// Release reports all free room to the writer. Read does that after each part of the ring given by
// Params.Release; a reader that finds no bytes calls Release before it sleeps.
func (r *Reader) Release() {
	if r.head == r.freed && r.dhead == r.dfreed {
		return
	}
	r.freed, r.dfreed, r.released = r.head, r.dhead, true
	r.word64(offDataHead).Store(r.dhead)
	r.word64(offHead).Store(r.head)
}

// WakeWriter reports whether the writer waits for released room and has to be woken. It reports
// true once.
func (r *Reader) WakeWriter() bool {
	if !r.released {
		return false
	}
	r.released = false
	want := r.word32(offWantSpace)
	return want.Load() != 0 && want.Swap(0) != 0
}

// Arm requests that the writer wake this side when there are bytes to read. The caller checks
// Pending again before it sleeps.
func (r *Reader) Arm() { r.word32(offWantData).Store(1) }
