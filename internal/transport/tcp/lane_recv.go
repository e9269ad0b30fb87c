package tcp

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A recvLane is the receiving end of a lane. It lives in its session's table
// until its last byte has come and its reader has seen the end or canceled it.
type recvLane struct {
	hand // of its reader
	s    *session
	id   uint64

	// ready says that there is something for the reader: it must not wait.
	ready     atomic.Bool
	lastFrame atomic.Uint64 // the session's count of frames when the last one for this lane came
	last      atomic.Bool   // the lane has an end: its reader will soon read no more
	far       atomic.Int32  // Reads in a row that a bulk connection has filled
	owes      bool          // of the reader: it has put off to say its credit

	mu        sync.Mutex // guards the fields below
	asm       assembly
	limit     uint64 // what the peer may send up to
	got       uint64 // bytes that have come, with those that were dropped
	final     uint64 // where the lane ends, once ended
	ended     bool   // by the peer: FIN or RESET
	reset     bool   // by RESET
	canceled  bool   // by the reader
	sawEnd    bool   // the reader got io.EOF
	accepted  bool
	discarded bool // what had arrived was dropped
	retired   bool // it has left the table
	err       error
	deadline  time.Time
	timer     *time.Timer // wakes the reader at deadline; nil if none was ever needed

	want   []byte           // memory of a Read that waits, if its bytes may go straight there
	filled int              // bytes of want that are there
	filler *bulk            // the one that is writing to want; nil: nobody
	take   func([]byte) int // of that Read: what comes is offered to it first; nil: to nobody
	taking bool             // it is being called; want is nil meanwhile
}

func newRecvLane(s *session, id uint64) *recvLane {
	l := &recvLane{s: s, id: id, limit: uint64(s.p.cfg.LaneWindow)}
	l.hand.wake, l.hand.lane = make(chan struct{}, 1), l
	return l
}

// Read implements transport.RecvLane.
func (l *recvLane) Read(p []byte) (int, error) { return l.ReadOr(p, nil) }

// ReadOr implements transport.Offerer. What comes on bulk connections is not
// offered.
func (l *recvLane) ReadOr(p []byte, take func([]byte) int) (int, error) {
	for {
		n, err := l.begin(p, take)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		l.await(take != nil)
		if n := l.finish(); n > 0 {
			return n, nil
		}
	}
}

// begin takes what is there, or says that p waits for more.
func (l *recvLane) begin(p []byte, take func([]byte) int) (int, error) {
	l.mu.Lock()
	l.ready.Store(false)
	if err := l.failure(); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	if n := l.asm.take(p); n > 0 {
		grant := l.taken(n)
		l.mu.Unlock()
		l.s.freed(l, n, grant)
		return n, nil
	}
	if l.atEnd() {
		l.sawEnd = true
		retire := l.over()
		l.mu.Unlock()
		if retire {
			l.s.retire(l)
		}
		return 0, io.EOF
	}
	if len(p) > 0 {
		l.want, l.filled, l.take = p, 0, take
	}
	l.mu.Unlock()
	return 0, nil
}

// failure says why nothing can be read. mu is held.
func (l *recvLane) failure() error {
	switch {
	case l.sawEnd:
		return io.EOF
	case l.err != nil:
		return l.err
	case l.canceled || l.reset:
		return transport.ErrLaneCanceled
	case !l.deadline.IsZero() && !time.Now().Before(l.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// await waits until there is something to see, and reads the session's first
// connection meanwhile if nobody else does; it need not if yields.
func (l *recvLane) await(yields bool) {
	if l.owes {
		l.settle()
	}
	l.s.flush()
	h := &l.s.helm
	for !l.ready.Load() {
		if h.take(&l.hand, yields) {
			l.s.lead(&l.hand)
			break
		}
		<-l.wake
	}
	h.leave(&l.hand, l.s.frames.Load())
}

// settle says the credit that was put off, unless a bulk connection is in the middle
// of a frame for the lane: its reader says what there is at the end of that. What is
// still to come of a frame needs no credit, and the peer has half a window besides.
func (l *recvLane) settle() {
	l.mu.Lock()
	coming := len(l.asm.ahead) > 0
	l.mu.Unlock()
	if coming {
		return
	}
	l.owes = false
	if l.s.owes.Load() {
		l.s.settle()
	}
}

// finish takes p back from who may be filling it and returns how many bytes it
// has got.
func (l *recvLane) finish() int {
	l.mu.Lock()
	l.want, l.take = nil, nil // first, or who fills it would begin again
	for l.filler != nil || l.taking {
		if l.filler != nil {
			l.filler.interrupt(l)
		}
		l.mu.Unlock()
		<-l.wake
		l.mu.Lock()
	}
	n := l.filled
	l.filled = 0
	var grant uint64
	if n > 0 {
		grant = l.taken(n)
	}
	l.mu.Unlock()
	if n > 0 {
		l.s.freed(l, n, grant)
	}
	return n
}

// taken accounts for n bytes that the reader has got, and returns the new limit
// if the peer should hear of one. mu is held.
func (l *recvLane) taken(n int) (limit uint64) {
	window := uint64(l.s.p.cfg.LaneWindow)
	if l.ended || l.canceled || l.asm.taken+window < l.limit+window/2 {
		return 0
	}
	l.limit = l.asm.taken + window
	return l.limit
}

// isFar reports whether the reader's bytes come on bulk connections.
func (l *recvLane) isFar() bool { return l.far.Load() >= farReads }

// farReads is how often that must have been so.
const farReads = 3

// look makes the reader look at what has changed.
func (l *recvLane) look() {
	l.ready.Store(true)
	notify(l.wake)
	l.s.helm.stop(&l.hand)
}

// admit checks a frame of data against the lane's credit and what has come. mu
// is held.
func (l *recvLane) admit(h header) error {
	end := h.value + uint64(h.length)
	switch {
	case l.retired:
		return fmt.Errorf("%w: lane %d is over", errMalformed, l.id)
	case end > l.limit:
		return fmt.Errorf("%w: lane %d: byte %d, the credit ends at %d", errMalformed, l.id, end, l.limit)
	case l.ended && end > l.final:
		return fmt.Errorf("%w: lane %d: byte %d of %d", errMalformed, l.id, end, l.final)
	case h.flags&flagFin != 0:
		if err := l.end(end); err != nil {
			return err
		}
	}
	return l.asm.announce(h.value, end)
}

// end says where the lane ends. mu is held.
func (l *recvLane) end(final uint64) error {
	switch {
	case l.ended:
		return fmt.Errorf("%w: lane %d ends twice", errMalformed, l.id)
	case final > l.limit:
		return fmt.Errorf("%w: lane %d ends at %d, beyond its credit", errMalformed, l.id, final)
	case len(l.asm.ahead) > 0 && l.asm.ahead[len(l.asm.ahead)-1].end > final || l.asm.next > final:
		return fmt.Errorf("%w: lane %d ends before its last byte", errMalformed, l.id)
	}
	l.ended, l.final = true, final
	l.last.Store(true)
	return nil
}

// dead reports whether bytes that come are dropped. mu is held.
func (l *recvLane) dead() bool { return l.canceled || l.reset || l.err != nil }

// deliver puts a frame of the first connection in place. It reports whether the
// lane's reader, if it is not the one who calls, was woken.
func (l *recvLane) deliver(h header, p []byte, caller *recvLane) (woken bool, err error) {
	n, grant, woken, err := l.put(h, p, caller)
	if n > 0 {
		l.s.freedFor(l, n, grant)
	}
	return woken, err
}

// put is the part of deliver with mu held, which a panic lets go of: the session
// must be able to end. n bytes were taken, and grant is what the peer may send for
// them.
func (l *recvLane) put(h header, p []byte, caller *recvLane) (n int, grant uint64, woken bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.admit(h); err != nil {
		return 0, 0, false, err
	}
	l.got += uint64(len(p))
	if l.take != nil && len(p) > 0 && l.filled == 0 && l.isNext(h.value) {
		if n = l.offer(p); n > 0 {
			l.asm.skip(n)
			grant = l.taken(n)
		}
	}
	if n < len(p) || h.flags&flagFin != 0 || n > 0 && l.isBehind() {
		woken = l.place(h.value+uint64(n), p[n:], caller)
	}
	return n, grant, woken, nil
}

// isBehind reports whether what the reader is to see next was there before the bytes
// that have just been taken: bytes, or the end. mu is held.
func (l *recvLane) isBehind() bool { return l.asm.readable() > 0 || l.atEnd() }

// atEnd reports whether the reader has got all that the lane will ever have. mu is
// held.
func (l *recvLane) atEnd() bool { return l.ended && l.asm.taken == l.final }

// isNext reports whether bytes at offset at can go straight to the reader that
// waits. mu is held.
func (l *recvLane) isNext(at uint64) bool {
	return l.want != nil && l.filler == nil && !l.dead() && at == l.asm.next && l.asm.readable() == 0
}

// offer calls take. mu is held, but not over the call: nobody else puts anything
// in place meanwhile.
func (l *recvLane) offer(p []byte) int {
	take, want := l.take, l.want
	l.want, l.taking = nil, true
	l.mu.Unlock()
	defer func() { // also when take panics
		l.mu.Lock()
		l.taking = false
		if l.take != nil { // the Read still waits
			l.want = want
		} else { // for the end of this
			notify(l.wake)
		}
	}()
	return take(p)
}

// place puts bytes at offset at where they belong. mu is held.
func (l *recvLane) place(at uint64, p []byte, caller *recvLane) (woken bool) {
	l.far.Store(0)
	if l.dead() {
		l.asm.drop(at, len(p))
		l.s.dropped(len(p))
		if l.over() {
			l.s.retireSoon(l)
		}
		return false
	}
	if l.isNext(at) {
		n := copy(l.want[l.filled:], p)
		l.filled += n
		if n > 0 {
			l.asm.skip(n)
		}
		p, at = p[n:], at+uint64(n)
	}
	if len(p) > 0 {
		l.asm.put(at, p)
	}
	if l.filled == 0 && l.asm.readable() == 0 && !l.ended {
		return false // behind bytes that are still under way
	}
	return l.show(caller)
}

// show tells the reader that there is something. mu is held.
func (l *recvLane) show(caller *recvLane) (woken bool) {
	l.ready.Store(true)
	if l == caller {
		return false
	}
	notify(l.wake)
	l.s.helm.stop(&l.hand)
	return l.want != nil
}

// over reports, once, whether the lane can leave the table. mu is held.
func (l *recvLane) over() bool {
	if l.retired || !l.accepted || !l.ended || l.got < l.final || !l.sawEnd && !l.reset && !l.canceled {
		return false
	}
	l.retired = true
	return true
}

// onReset handles the peer's RESET.
func (l *recvLane) onReset(final uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.end(final); err != nil {
		return err
	}
	l.reset = true
	l.discard()
	l.look()
	if l.over() {
		l.s.retireSoon(l)
	}
	return nil
}

// discard drops what has arrived, once. mu is held.
func (l *recvLane) discard() {
	if !l.discarded {
		l.discarded = true
		l.s.dropped(l.asm.discard())
	}
}

// Cancel implements transport.RecvLane.
func (l *recvLane) Cancel() {
	l.mu.Lock()
	if l.canceled || l.sawEnd || l.err != nil {
		l.mu.Unlock()
		return
	}
	l.canceled = true
	l.discard()
	tell, retire := !l.ended, l.over()
	l.mu.Unlock()
	l.look()
	if tell {
		l.s.say(header{kind: typeStop, lane: l.id})
	}
	if retire {
		l.s.retire(l)
	}
}

// fail ends the lane with its session.
func (l *recvLane) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.look()
}

// SetReadDeadline implements transport.RecvLane.
func (l *recvLane) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	setTimer(&l.timer, t, l.look)
	return nil
}

// setTimer makes timer call f at t, never if t is zero.
func setTimer(timer **time.Timer, t time.Time, f func()) {
	if *timer != nil {
		(*timer).Stop()
	}
	if t.IsZero() {
		return
	}
	in := max(time.Until(t), 0)
	if *timer == nil {
		*timer = time.AfterFunc(in, f)
	} else {
		(*timer).Reset(in)
	}
}
