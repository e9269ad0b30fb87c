package load

import (
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	guardSize = pageSize // before and behind every window
	guardByte = 0xA5
	// MaxGraves bounds the windows that an application keeps after their connection has
	// ended. It scans them: no peer may write to them any more.
	MaxGraves = 32
	// maxWriters bounds the ends that an application remembers.
	maxWriters = 1 << 14
)

// A Window is memory that a peer writes to, filled with a tag of its own, between two
// guard pages that no peer may touch.
type Window struct {
	ID     uint64
	Offset int64 // in the end's registered space
	env    Env
	g      geometry
	owner  history.ConnEnd // this end
	mem    Memory
	bytes  []byte // of the window, without the guards

	reported uint64 // highest operation that the peer has reported as written
	signal   uint64 // last value seen in the signal word
	covered  uint64 // highest operation that a signal has covered
}

// newWindow makes the memory of a window; it is not registered yet.
func (e *End) newWindow(g geometry) (*Window, error) {
	mem, err := e.env.Alloc(g.window + 2*guardSize)
	if err != nil {
		return nil, err
	}
	w := &Window{ID: e.env.Nonce(), env: e.env, g: g, owner: e.ID, mem: mem, bytes: mem.Bytes()[guardSize : guardSize+g.window]}
	for _, guard := range w.guards() {
		for i := range guard {
			guard[i] = guardByte
		}
	}
	stamp(w.bytes[:g.slotsEnd()], fillOf(w.ID), 0)
	return w, nil
}

func (w *Window) guards() [2][]byte {
	all := w.mem.Bytes()
	return [2][]byte{all[:guardSize], all[guardSize+w.g.window:][:guardSize]}
}

// Len is how many bytes of the window the peer may use.
func (w *Window) Len() int { return w.g.window }

// Free gives the memory back: the window is not looked at any more.
func (w *Window) Free() { _ = w.mem.Close() } // unmaps; there is nothing to do about a failure

// lookForSignal writes down a new value of the signal word, and whether the operations
// that the signal covers are there.
func (w *Window) lookForSignal() {
	v := w.env.Load(w.bytes[w.g.signalAt():])
	if v == w.signal {
		return
	}
	w.signal = v
	w.env.Put(&history.SignalSeen{ConnEnd: w.owner, Value: v, Missing: w.check(&w.covered, v)})
}

// checkReported writes down whether the operations that the peer has reported as written are there.
func (w *Window) checkReported(upto uint64) {
	w.env.Put(&history.Checked{ConnEnd: w.owner, Upto: upto, Missing: w.check(&w.reported, upto)})
}

// check looks at the operations behind *seen up to upto, and returns one that is
// missing. A number that is out of all proportion is not looked at: it is missing itself.
func (w *Window) check(seen *uint64, upto uint64) (missing *uint64) {
	const most = 1 << 20
	if upto <= *seen {
		return nil
	}
	if upto-*seen > most {
		return &upto
	}
	n, ok := w.g.visible(w.bytes, w.env.Load, w.owner.Other(), *seen, upto)
	if *seen = upto; ok {
		return nil
	}
	return &n
}

// A Scan is a look at every word of a window.
type Scan struct {
	w       *Window
	r       history.Scan
	writers []uint32 // of the record's, in its order
	torn    []int    // words that may be half written
}

// Scan looks at every word of the window.
func (w *Window) Scan() *Scan {
	s := &Scan{w: w, r: history.Scan{ID: w.ID}}
	for i := 0; i < w.g.window; i += 8 {
		word := w.env.Load(w.bytes[i:])
		s.r.Words++
		s.r.Sum = (s.r.Sum ^ word) * 0x100000001B3
		if i < w.g.slotsEnd() && !s.place(tag(word), i) { // else a control word, or the rest behind the slots
			s.torn = append(s.torn, i)
		}
	}
	return s
}

// place accounts for the word at byte i, if it belongs there. A word that does not may
// be half new and half old: transfers are not atomic.
func (s *Scan) place(t tag, i int) bool {
	w := s.w
	switch t.writer() {
	case fillOf(w.ID):
		return t.op() == 0 && t.word() == uint64(i/8)&wordMask
	case writerOf(w.owner.Other()):
		if !w.g.fits(t, i) {
			return false
		}
	default: // half a word has no known writer
		if _, known := w.env.Writer(t.writer(), w.owner.Conn); !known {
			return false
		}
	}
	s.attribute(t)
	return true
}

// Torn looks again at the words that may have been half written, and reports whether
// some still may be.
func (s *Scan) Torn() bool {
	s.torn = slices.DeleteFunc(s.torn, func(i int) bool { return s.place(tag(s.w.env.Load(s.w.bytes[i:])), i) })
	return len(s.torn) > 0
}

// Record returns the result of the scan. Words that are still torn are misplaced, or of
// an unknown writer.
func (s *Scan) Record() *history.Scan {
	for _, i := range s.torn {
		switch t := tag(s.w.env.Load(s.w.bytes[i:])); t.writer() {
		case fillOf(s.w.ID), writerOf(s.w.owner.Other()):
			s.r.Misplaced++
		default:
			s.attribute(t)
		}
	}
	s.torn = nil
	for _, guard := range s.w.guards() {
		for _, b := range guard {
			if b != guardByte {
				s.r.Guard++
			}
		}
	}
	return &s.r
}

// attribute counts a word for its writer.
func (s *Scan) attribute(t tag) {
	k := slices.Index(s.writers, t.writer())
	if k < 0 {
		from, ok := s.w.env.Writer(t.writer(), s.w.owner.Conn)
		if !ok || len(s.writers) == history.MaxList {
			s.r.Unknown++
			return
		}
		k = len(s.writers)
		s.writers = append(s.writers, t.writer())
		s.r.Writers = append(s.r.Writers, history.WindowWriter{Conn: from.Conn, Incarnation: from.Incarnation, First: t.op(), Last: t.op()})
	}
	f := &s.r.Writers[k]
	f.First, f.Last = min(f.First, t.op()), max(f.Last, t.op())
	f.Words++
}

// A Known is an end whose operations an application could meet.
type Known struct {
	history.ConnEnd
	Incarnation addr.Incarnation
}

// Writers are the ends of the connections that an application has had. They identify
// the writers of words in its windows.
type Writers struct {
	ends  map[uint32][]Known
	order []uint32 // oldest first
}

// Add remembers both ends of a connection, and forgets the oldest.
func (w *Writers) Add(e *End) {
	if w.ends == nil {
		w.ends = make(map[uint32][]Known)
	}
	for _, k := range []Known{{e.ID, e.Local}, {e.ID.Other(), e.Remote}} {
		hash := writerOf(k.ConnEnd)
		w.ends[hash] = append(w.ends[hash], k)
		w.order = append(w.order, hash)
	}
	for len(w.order) > maxWriters {
		oldest := w.order[0]
		w.order = w.order[1:]
		if w.ends[oldest] = w.ends[oldest][1:]; len(w.ends[oldest]) == 0 {
			delete(w.ends, oldest)
		}
	}
}

// Find returns the end that a writer field stands for. Of several, that of connection
// conn is meant.
func (w *Writers) Find(hash uint32, conn uint64) (Known, bool) {
	all := w.ends[hash]
	for _, k := range all {
		if k.Conn == conn {
			return k, true
		}
	}
	if len(all) == 0 {
		return Known{}, false
	}
	return all[len(all)-1], true
}
