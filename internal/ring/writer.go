package ring

import "sync/atomic"

// A Writer is the writing side of a ring. One goroutine writes at a time; Room,
// Gone and ReaderReady may be called from any.
type Writer struct {
	layout
	tail, head   uint64 // slots: written; consumed, as last read from the reader
	dtail, dhead uint64 // bytes of the data area, likewise

	dshown atomic.Uint64 // dtail, for Room
}

// NewWriter returns the writing side of the ring in mem, which is fresh, zero,
// and aligned to 64 bytes.
func NewWriter(mem []byte, p Params) (*Writer, error) {
	l, err := newLayout(mem, p)
	if err != nil {
		return nil, err
	}
	return &Writer{layout: l}, nil
}

// Start announces that the stream continues in this ring after sent bytes that went another way.
func (w *Writer) Start(sent uint64) {
	w.word64(offStart).Store(sent)
	w.word32(offSwitched).Store(1)
}

// ReaderReady reports whether the reader reads from this ring.
func (w *Writer) ReaderReady() bool { return w.word32(offReady).Load() != 0 }

// Gone reports whether the reader reads no more.
func (w *Writer) Gone() bool { return w.word32(offGone).Load() != 0 }

// Close announces that no more bytes follow. The reader still reads the earlier ones.
func (w *Writer) Close() { w.word32(offClosed).Store(1) }

// Write publishes as many bytes of p as there is room for and returns their number. The reader may
// have to be woken: see WakeReader.
func (w *Writer) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		if rest := p[n:]; len(rest) <= Inline {
			k, err = w.short(rest)
		} else {
			k, err = w.long(rest)
		}
		if k == 0 {
			break
		}
		n += k
	}
	return n, err
}

// short publishes all of p in its slot, or nothing.
func (w *Writer) short(p []byte) (int, error) {
	if ok, err := w.free(); !ok {
		return 0, err
	}
	copy(w.slot(w.tail)[8:], p)
	w.publish(len(p))
	return len(p), nil
}

// long publishes the beginning of p through the data area. It writes nothing if the piece would be
// shorter than least.
func (w *Writer) long(p []byte) (int, error) {
	if ok, err := w.free(); !ok {
		return 0, err
	}
	n := min(len(p), w.chunk())
	if w.Data-int(w.dtail-w.dhead) < n {
		if err := w.look(); err != nil {
			return 0, err
		}
		room := w.Data - int(w.dtail-w.dhead)
		if n = min(n, room); n < min(len(p), w.least()) {
			return 0, nil
		}
	}
	w.put(w.dtail, p[:n])
	w.dtail += uint64(n)
	w.dshown.Store(w.dtail)
	w.publish(n)
	return n, nil
}

// ahead is how many slots in advance a slot's cache line is prefetched. The reader's processor had
// it a lap ago: without the prefetch every store would wait for the line to arrive from there.
const ahead = 4

// publish makes the piece of n bytes at the tail visible: one store.
func (w *Writer) publish(n int) {
	w.at64(w.tail).Store(published(w.tail, n))
	w.tail++
	prefetchWrite(&w.slot(w.tail + ahead)[0])
}

// free reports whether there is a slot for one more piece.
func (w *Writer) free() (bool, error) {
	if w.tail-w.head < uint64(w.Slots) {
		return true, nil
	}
	err := w.look()
	return err == nil && w.tail-w.head < uint64(w.Slots), err
}

// look reads the reader's positions and checks them: each lies between its previous value and the
// writer's own position.
func (w *Writer) look() error {
	head, dhead := w.word64(offHead).Load(), w.word64(offDataHead).Load()
	if head-w.head > w.tail-w.head || dhead-w.dhead > w.dtail-w.dhead {
		return ErrCorrupt
	}
	w.head, w.dhead = head, dhead
	return nil
}

// Room reports whether Write would now accept at least a part of any piece. The slots are full when
// the last one of the lap that begins at the reader's position is published: so a write need not
// publish its own position with a locked store of its own.
func (w *Writer) Room() bool {
	head, dhead := w.word64(offHead).Load(), w.word64(offDataHead).Load()
	last := head + uint64(w.Slots) - 1
	full := w.at64(last).Load()>>32 == published(last, 0)>>32
	return !full && w.dshown.Load()-dhead <= uint64(w.Data-w.least())
}

// WakeReader reports whether the reader waits for written pieces and has to be woken. It reports
// true once.
func (w *Writer) WakeReader() bool {
	want := w.word32(offWantData)
	return want.Load() != 0 && want.Swap(0) != 0
}

// Arm requests that the reader wake this side when there is room again. The caller checks Room
// again before it sleeps.
func (w *Writer) Arm() { w.word32(offWantSpace).Store(1) }
