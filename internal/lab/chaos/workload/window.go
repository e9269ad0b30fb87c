package workload

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	guardSize = pageSize // before and behind every window
	guardByte = 0xA5
	// maxGraves bounds the windows that are kept after their connection ended.
	maxGraves = 32
	// maxWriters bounds the ends that an application remembers.
	maxWriters = 1 << 14
)

// A window is memory that a peer writes to, filled with a tag of its own,
// between two guard pages that nobody may touch.
type window struct {
	app    *App
	id     uint64
	g      geometry
	owner  history.ConnEnd // this end
	offset int64           // in the end's registered space
	mem    *fabric.Memory
	bytes  []byte // of the window, without the guards

	mu      sync.Mutex // guards the fields below
	told    uint64     // highest operation that the peer has told to be there
	signal  uint64     // last value seen in the signal word
	covered uint64     // highest operation that a signal has told to be there
	freed   bool
}

// newWindow makes the memory of a window; it is not registered yet.
func newWindow(e *end, g geometry) (*window, error) {
	mem, err := e.s.node.Alloc(g.window + 2*guardSize)
	if err != nil {
		return nil, err
	}
	w := &window{app: e.s.app, id: e.s.app.nonce(), g: g, owner: e.id, mem: mem,
		bytes: mem.Bytes()[guardSize : guardSize+g.window]}
	for _, guard := range w.guards() {
		for i := range guard {
			guard[i] = guardByte
		}
	}
	stamp(w.bytes[:g.slotsEnd()], fillOf(w.id), 0)
	return w, nil
}

func (w *window) guards() [2][]byte {
	all := w.mem.Bytes()
	return [2][]byte{all[:guardSize], all[guardSize+w.g.window:][:guardSize]}
}

// writer is the end that may write the window.
func (w *window) writer() history.ConnEnd {
	return history.ConnEnd{Conn: w.owner.Conn, Side: w.owner.Side.Other()}
}

// lookForSignal writes down a new value of the signal word, and whether what it
// covers is there.
func (w *window) lookForSignal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed {
		return
	}
	v := fabric.LoadUint64(w.bytes[w.g.signalAt():])
	if v == w.signal {
		return
	}
	w.signal = v
	r := &history.SignalSeen{ConnEnd: w.owner, Value: v}
	if missing, ok := w.check(&w.covered, v); !ok {
		r.Missing = &missing
	}
	w.app.log.Put(r)
}

// checkTold writes down whether what the peer has told to be there is there.
func (w *window) checkTold(upto uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &history.Checked{ConnEnd: w.owner, Upto: upto}
	if missing, ok := w.check(&w.told, upto); !ok {
		r.Missing = &missing
	}
	w.app.log.Put(r)
}

// check looks at the operations behind *seen up to upto. A number that is out
// of all proportion is not looked at: it is missing itself.
func (w *window) check(seen *uint64, upto uint64) (missing uint64, ok bool) {
	const most = 1 << 20
	if upto <= *seen {
		return 0, true
	}
	if upto-*seen > most {
		return upto, false
	}
	missing, ok = w.g.visible(w.bytes, w.writer(), *seen, upto)
	*seen = upto
	return missing, ok
}

// scan writes down what is in the window, word by word.
func (w *window) scan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed {
		return
	}
	r := &history.Scan{ID: w.id}
	found := make(map[uint32]*history.WindowWriter)
	var torn []int
	for i := 0; i < w.g.window; i += 8 {
		word := loadWord(w.bytes[i:])
		r.Words++
		r.Sum = (r.Sum ^ word) * 0x100000001B3
		if i < w.g.slotsEnd() && !w.place(r, found, tag(word), i) { // else a control word, or what no slot takes
			torn = append(torn, i)
		}
	}
	w.lookAgain(r, found, torn)
	for _, f := range found {
		r.Writers = append(r.Writers, *f)
	}
	for _, guard := range w.guards() {
		for _, b := range guard {
			if b != guardByte {
				r.Guard++
			}
		}
	}
	w.app.log.Put(r)
}

// place accounts for the word at byte i, if it is one that belongs there. Another one
// may be half of an operation's and half of what was there before: transfers are not
// atomic.
func (w *window) place(r *history.Scan, found map[uint32]*history.WindowWriter, t tag, i int) bool {
	switch t.writer() {
	case fillOf(w.id):
		return t.op() == 0 && t.word() == uint64(i/8)&wordMask
	case writerOf(w.writer()):
		if !w.g.fits(t, i) {
			return false
		}
		w.attribute(r, found, t)
		return true
	}
	if _, known := w.app.known.find(t.writer(), w.owner.Conn); known {
		w.attribute(r, found, t) // half a word is nobody's
		return true
	}
	return false
}

// Words that do not fit are looked at again so often, at such intervals.
const (
	tornLooks = 100
	tornEvery = 5 * time.Millisecond
)

// lookAgain waits until what was under way over these words is there. What stays is
// misplaced, or somebody else's.
func (w *window) lookAgain(r *history.Scan, found map[uint32]*history.WindowWriter, torn []int) {
	if len(torn) == 0 {
		return
	}
	again := time.NewTicker(tornEvery)
	defer again.Stop()
	for range tornLooks {
		<-again.C
		torn = slices.DeleteFunc(torn, func(i int) bool { return w.place(r, found, tag(loadWord(w.bytes[i:])), i) })
		if len(torn) == 0 {
			return
		}
	}
	for _, i := range torn {
		switch t := tag(loadWord(w.bytes[i:])); t.writer() {
		case fillOf(w.id), writerOf(w.writer()):
			r.Misplaced++
		default:
			w.attribute(r, found, t)
		}
	}
}

// attribute counts a word for who has written it.
func (w *window) attribute(r *history.Scan, found map[uint32]*history.WindowWriter, t tag) {
	f := found[t.writer()]
	if f == nil {
		from, ok := w.app.known.find(t.writer(), w.owner.Conn)
		if !ok || len(found) == history.MaxList {
			r.Unknown++
			return
		}
		f = &history.WindowWriter{Conn: from.Conn, Life: from.life, First: t.op(), Last: t.op()}
		found[t.writer()] = f
	}
	f.First, f.Last = min(f.First, t.op()), max(f.Last, t.op())
	f.Words++
}

// fits reports whether a tag of the peer's may be at byte i of the window: the
// right slot, and the right place in it.
func (g geometry) fits(t tag, i int) bool {
	return t.op()%uint64(g.slots) == uint64(i/g.slot) && t.word() == uint64(i%g.slot/8)&wordMask
}

// slotsEnd is where the slots end.
func (g geometry) slotsEnd() int { return g.slots * g.slot }

// free gives the memory back.
func (w *window) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.freed {
		w.freed = true
		w.mem.Close() // unmaps; there is nobody to tell
	}
}

// graves are windows whose connection has ended. They are scanned when that
// happened and again later: nobody may write them any more.
type graves struct {
	app *App

	mu      sync.Mutex // guards the fields below
	pending []grave    // that may still be written for a while
	list    []*window
}

type grave struct {
	w   *window
	due time.Time
}

// bury keeps a window. What may be under way into it has grace to arrive; then,
// at once if that is 0, it is written to be gone.
func (g *graves) bury(w *window, grace time.Duration) {
	g.mu.Lock()
	g.pending = append(g.pending, grave{w, time.Now().Add(grace)})
	g.mu.Unlock()
	g.tend()
}

// tend writes the windows to be gone whose grace is over. The oldest of too many
// is scanned a last time and given up.
func (g *graves) tend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.pending = slices.DeleteFunc(g.pending, func(p grave) bool {
		if p.due.After(now) {
			return false
		}
		g.app.log.Put(&history.WindowGone{ID: p.w.id})
		p.w.scan()
		g.list = append(g.list, p.w)
		return true
	})
	for len(g.list) > maxGraves {
		g.list[0].scan()
		g.list[0].free()
		g.list = g.list[1:]
	}
}

// scan scans the newest of the windows that are kept.
func (g *graves) scan() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.list[max(0, len(g.list)-4):] {
		w.scan()
	}
}

// empty scans all a last time and gives them up.
func (g *graves) empty() {
	g.tend()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.list {
		w.scan()
		w.free()
	}
	for _, p := range g.pending {
		p.w.free()
	}
	g.list, g.pending = nil, nil
}

// A knownEnd is an end whose operations this application could meet.
type knownEnd struct {
	history.ConnEnd
	life fabric.Life
}

// writers are the ends of the connections that an application has had, so that
// it can say whose words it finds.
type writers struct {
	mu    sync.Mutex // guards the fields below
	ends  map[uint32][]knownEnd
	order []uint32 // oldest first
}

func newWriters() *writers { return &writers{ends: make(map[uint32][]knownEnd)} }

// add remembers both ends of a connection, and forgets the oldest.
func (w *writers) add(nonce uint64, e *end) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lives := map[history.Side]fabric.Life{e.id.Side: e.local, e.id.Side.Other(): e.remote}
	for side, life := range lives {
		k := knownEnd{history.ConnEnd{Conn: nonce, Side: side}, life}
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

// find returns the end that a writer field stands for. Of several, that of
// connection conn is meant.
func (w *writers) find(hash uint32, conn uint64) (knownEnd, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.ends[hash]
	for _, k := range all {
		if k.Conn == conn {
			return k, true
		}
	}
	if len(all) == 0 {
		return knownEnd{}, false
	}
	return all[len(all)-1], true
}

// A frame is what the two ends of an RMA connection tell each other.
const (
	frameSize   = 32
	frameWindow = 'W' // id, offset, length of the sender's window
	frameDone   = 'F' // all operations up to the number are there
)

// A frame's numbers are behind its kind and seven zeros.
func putFrame(kind byte, a, b, c uint64) []byte {
	p := make([]byte, frameSize)
	p[0] = kind
	for i, v := range []uint64{a, b, c} {
		binary.BigEndian.PutUint64(p[8+8*i:], v)
	}
	return p
}

func frameIn(p []byte) (kind byte, a, b, c uint64) {
	return p[0], binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[16:]), binary.BigEndian.Uint64(p[24:])
}
