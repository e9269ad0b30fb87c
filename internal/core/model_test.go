package core

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

const poolPages = 4 // of each of a side's two pools, onto which windows alias

// A place is n bytes of a pool of one side.
type place struct{ pool, off, n int64 }

// A modelWindow is a window that has not been freed.
type modelWindow struct {
	off, n         int64
	prot           rma.Prot
	pool, at       int64
	mem            *memory
	withdrawn      bool // takes no operation of its side
	retired        bool // nor of the peer
	exportedWindow []rma.Span[*memory]
}

// A modelOp is one that a side began.
type modelOp struct {
	kind     OpKind
	places   []place // at the initiator; none for buf
	buf      []byte  // the model's copy of real
	real     []byte
	remote   []place // of a read, at the target
	offset   int64
	length   int64
	moved    int64 // of a write: sent; of a read: received
	served   int64 // of a read: sent
	atomic   rma.Atomic
	old      uint64
	complete bool // its effect is there
}

// A modelSignal is one value of a signal; each is used once.
type modelSignal struct {
	owner  *side // whose operations it covers
	mark   uint64
	on     *side // where it is stored
	off    int64
	place  place // on, if resolved at the call
	known  bool  // place is
	put    bool  // it is behind the write mark alone
	sure   bool  // the call has returned OK
	stored bool
}

// A side is one end with its model: two pools, its windows, the peer's
// windows announced to it, and its operations.
type side struct {
	*end
	name    string
	peer    *side
	real    [2][]byte
	model   [2][]byte
	windows []*modelWindow
	mirror  []*modelWindow // announced by the peer here
	ops     map[uint64]*modelOp
	begun   uint64
	marks   []fence.Mark
	pending map[*Waiter]func(status.Code) // the check when it wakes
	fences  []*Waiter                     // of pending, those that may be forgotten
	receive func()                        // the effect of finish on the model
	answers map[uint64]status.Code        // to the requests of this side, as the peer's model sees them
	request uint64                        // the last that this side sent
	broken  bool                          // its stream
}

// A world is two connected sides.
type world struct {
	t       *rapid.T
	sides   [2]*side
	signals map[uint64]*modelSignal
	values  uint64
}

var modelLimits = Limits{Ops: 5, Windows: 6, Requests: 4}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, signals: make(map[uint64]*modelSignal), values: 0x0101_0101_0101_0000}
	for i := range w.sides {
		s := &side{end: newEnd(t, modelLimits), name: string(rune('A' + i)), ops: make(map[uint64]*modelOp),
			pending: make(map[*Waiter]func(status.Code)), answers: make(map[uint64]status.Code)}
		for p := range s.real {
			s.real[p] = make([]byte, poolPages*page)
			s.model[p] = make([]byte, poolPages*page)
		}
		s.onQueue = func(frame []byte) { w.queued(s, frame) }
		s.onStore = func(_ rma.Span[*memory], v uint64) { w.stored(s, v) }
		s.onWake = func(x *Waiter) { w.wokeUp(s, x) }
		w.sides[i] = s
	}
	w.sides[0].peer, w.sides[1].peer = w.sides[1], w.sides[0]
	return w
}

func (s *side) failedCode() status.Code { return s.conn.failed }

// lookup walks windows page by page, as slowly and as plainly as it can be.
func lookup(windows []*modelWindow, takes func(*modelWindow) bool, off, n int64, need rma.Prot) (out []place, code status.Code) {
	if off < 0 || off+n < off {
		return nil, status.NoAddress
	}
	for n > 0 {
		i := slices.IndexFunc(windows, func(w *modelWindow) bool { return takes(w) && w.off <= off && off < w.off+w.n })
		if i < 0 {
			return nil, status.NoAddress
		}
		w := windows[i]
		if w.prot&need != need {
			return nil, status.Access
		}
		k := min(n, w.off+w.n-off)
		out = append(out, place{w.pool, w.at + off - w.off, k})
		off, n = off+k, n-k
	}
	return out, status.OK
}

// within is lookup in one window.
func within(windows []*modelWindow, takes func(*modelWindow) bool, off, n int64, need rma.Prot) (place, status.Code) {
	first, code := lookup(windows, takes, off, 1, need)
	if code != status.OK {
		return place{}, code
	}
	all, code := lookup(windows, takes, off, n, 0)
	if code != status.OK || len(all) != 1 {
		return place{}, status.NoAddress
	}
	return place{first[0].pool, first[0].off, n}, status.OK
}

func live(w *modelWindow) bool      { return !w.withdrawn }
func forPeer(w *modelWindow) bool   { return !w.retired }
func announced(w *modelWindow) bool { return true }

// bytesAt copies n bytes from off on of places in the model.
func (s *side) bytesAt(places []place, off, n int64) (out []byte) {
	for _, p := range cutPlaces(places, off, n) {
		out = append(out, s.model[p.pool][p.off:p.off+p.n]...)
	}
	return out
}

// setAt stores p in the model from off on of places.
func (s *side) setAt(places []place, off int64, p []byte) {
	for _, x := range cutPlaces(places, off, int64(len(p))) {
		p = p[copy(s.model[x.pool][x.off:x.off+x.n], p):]
	}
}

func cutPlaces(places []place, off, n int64) (out []place) {
	for _, p := range places {
		skip := min(off, p.n)
		off -= skip
		k := min(n, p.n-skip)
		n -= k
		if k > 0 {
			out = append(out, place{p.pool, p.off + skip, k})
		}
	}
	return out
}

// complete reports whether every operation of s up to mark has had its effect.
func (s *side) complete(mark uint64) bool {
	for seq := uint64(1); seq <= mark; seq++ {
		if op := s.ops[seq]; op == nil || !op.complete {
			return false
		}
	}
	return true
}

// added records that s began the operation seq.
func (w *world) added(s *side, seq uint64, op *modelOp) {
	if seq != s.begun+1 {
		w.t.Fatalf("%s began operation %d after %d", s.name, seq, s.begun)
	}
	s.begun = seq
	s.ops[seq] = op
}

// queued sees every frame that s queues.
func (w *world) queued(s *side, frame []byte) {
	body := frame[wire.HeaderLen:]
	switch wire.Type(frame[0]) {
	case wire.TypeSignal:
		f, _ := wire.ParseSignal(frame[1], body)
		if sig := w.signals[f.Value]; sig == nil || sig.on != s.peer || sig.off != int64(f.Offset) {
			w.t.Fatalf("%s stores a value that nobody asked for: %+v", s.name, f)
		}
		w.added(s, f.Op, &modelOp{kind: OpSignal})
	case wire.TypeFail:
		w.t.Fatalf("%s refuses an operation that its peer has checked", s.name)
	case wire.TypeMark, wire.TypeWait, wire.TypePeerSignal:
		s.request = binary.BigEndian.Uint64(body)
	}
}

// stored sees every signal that is stored at s.
func (w *world) stored(s *side, v uint64) {
	sig := w.signals[v]
	if sig == nil || sig.stored || sig.on != s {
		w.t.Fatalf("%s: value %#x was stored, once too often or in vain", s.name, v)
	}
	if sig.put && !sig.owner.ops[sig.mark].complete || !sig.put && !sig.owner.complete(sig.mark) {
		w.t.Fatalf("%s: a signal over %d operations of %s came before their data", s.name, sig.mark, sig.owner.name)
	}
	sig.stored = true
	at := sig.place
	if !sig.known {
		var code status.Code
		if at, code = within(s.windows, forPeer, sig.off, 8, rma.ProtWrite); code != status.OK {
			w.t.Fatalf("%s: a signal was stored at %#x: %v", s.name, sig.off, code)
		}
	}
	binary.LittleEndian.PutUint64(s.model[at.pool][at.off:], v)
}

func (w *world) wokeUp(s *side, x *Waiter) {
	check := s.pending[x]
	if check == nil {
		w.t.Fatalf("%s: a waiter was woken that does not wait", s.name)
	}
	delete(s.pending, x)
	s.fences = slices.DeleteFunc(s.fences, func(y *Waiter) bool { return y == x })
	check(x.Code)
}

// expect makes a waiter whose result is checked when it wakes. A side that has
// failed may answer everything with the reason.
func (w *world) expect(s *side, what string, check func(x *Waiter, code status.Code)) *Waiter {
	x := new(Waiter)
	s.pending[x] = func(code status.Code) {
		if code == status.Reset && s.failedCode() != status.OK {
			return
		}
		if s.failedCode() != status.OK && code != s.failedCode() {
			w.t.Fatalf("%s: %s ended with %v after the end with %v", s.name, what, code, s.failedCode())
		}
		check(x, code)
	}
	return x
}

// want compares the error of a call with the model's. It reports whether the
// call succeeded; if not, x, if any, does not wait.
func (w *world) want(s *side, what string, err error, code status.Code, x *Waiter) bool {
	s.perform()
	if s.failedCode() != status.OK {
		code = s.failedCode()
	}
	if got := status.Of(err); got != code {
		w.t.Fatalf("%s: %s: %v, want %v", s.name, what, got, code)
	}
	if code != status.OK && x != nil {
		delete(s.pending, x)
	}
	return code == status.OK
}

func mustBeOK(w *world, what string) func(*Waiter, status.Code) {
	return func(_ *Waiter, code status.Code) {
		if code != status.OK {
			w.t.Fatalf("%s: %v", what, code)
		}
	}
}

func pages(t *rapid.T, what string, lo, hi int64) int64 {
	return page * rapid.Int64Range(lo, hi).Draw(t, what)
}

// pickOffset draws an offset in or near one of windows, or anywhere.
func pickOffset(t *rapid.T, what string, windows []*modelWindow, align int64) int64 {
	if len(windows) == 0 || rapid.IntRange(0, 9).Draw(t, what+" wild") == 0 {
		return rapid.SampledFrom([]int64{-8, 0, 4, 3 * page, 20 * page, 1<<63 - 8, rma.FirstOffset - 8}).Draw(t, what)
	}
	x := rapid.SampledFrom(windows).Draw(t, what+" window")
	k := rapid.Int64Range(-1, x.n/align).Draw(t, what)
	return x.off + k*align
}

func pickLength(t *rapid.T) int64 {
	return rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(1, 2*page+10), rapid.Just(int64(page))).Draw(t, "length")
}

var pickFlags = rapid.SampledFrom([]rma.Flags{0, 0, 0, rma.Sync, rma.Ordered, rma.UseCPU, 0x10, 0x18})

func flagsCode(f rma.Flags) status.Code {
	if f == 0x10 {
		return status.Invalid
	}
	return status.OK
}

func (w *world) register(t *rapid.T, s *side) {
	n, pool := pages(t, "length", 0, 3), rapid.Int64Range(0, 1).Draw(t, "pool")
	at := pages(t, "place", 0, poolPages-max(1, n/page))
	prot := rapid.SampledFrom([]rma.Prot{3, 3, 3, 3, 1, 2, 0, 4}).Draw(t, "prot")
	off, flags := int64(0), rma.MapFlags(0)
	switch rapid.IntRange(0, 5).Draw(t, "kind of offset") {
	case 0, 1, 2:
		off, flags = pages(t, "fixed", 0, 7), rma.MapFixed
	case 3:
		off = pages(t, "hint", 0, 7)
	case 4:
		off, flags = rapid.SampledFrom([]int64{100, -page, 1<<63 - page}).Draw(t, "bad"), rma.MapFixed
	}
	code, want := w.modelRegister(s, n, off, prot, flags)
	m := &memory{bytes: s.real[pool][at : at+max(n, 0)]}
	x := w.expect(s, "register", mustBeOK(w, "register"))
	got, err := s.conn.Register(m, n, off, prot, flags, x)
	if !w.want(s, "register", err, code, x) {
		return
	}
	if got != want {
		t.Fatalf("%s: registered at %#x, want %#x", s.name, got, want)
	}
	s.windows = append(s.windows, &modelWindow{off: got, n: n, prot: prot, pool: pool, at: at, mem: m})
}

func (w *world) modelRegister(s *side, n, off int64, prot rma.Prot, flags rma.MapFlags) (status.Code, int64) {
	free := func(off int64) bool {
		return !slices.ContainsFunc(s.windows, func(x *modelWindow) bool { return off < x.off+x.n && x.off < off+n })
	}
	fixed := flags == rma.MapFixed
	switch {
	case n == 0, prot > 3, fixed && (off < 0 || off%page != 0 || off+n < 0):
		return status.Invalid, 0
	case fixed && !free(off):
		return status.InUse, 0
	case len(s.windows) >= modelLimits.Windows:
		return status.NoMemory, 0
	case fixed || off > 0 && off%page == 0 && free(off):
		return status.OK, off
	}
	for off = rma.FirstOffset; !free(off); off += page {
	}
	return status.OK, off
}

func (w *world) unregister(t *rapid.T, s *side) {
	off, n := pickOffset(t, "offset", s.windows, page), pages(t, "length", 0, 4)
	if len(s.windows) > 0 && rapid.Bool().Draw(t, "exactly one") {
		x := rapid.SampledFrom(s.windows).Draw(t, "window")
		off, n = x.off, x.n
	}
	code := status.OK
	var hit []*modelWindow
	for _, x := range s.windows {
		if live(x) && off < x.off+x.n && x.off < off+n {
			hit = append(hit, x)
			if x.off < off || x.off+x.n > off+n {
				code = status.Invalid
			}
		}
	}
	if off < 0 || off%page != 0 || n == 0 || off+n < 0 {
		code = status.Invalid
	}
	x := w.expect(s, "unregister", mustBeOK(w, "unregister"))
	pending, err := s.conn.Unregister(off, n, x)
	if !w.want(s, "unregister", err, code, x) {
		return
	}
	if pending != (len(hit) > 0) {
		t.Fatalf("%s: unregister of %d windows waits: %v", s.name, len(hit), pending)
	}
	if !pending {
		delete(s.pending, x)
	}
	for _, x := range hit {
		x.withdrawn = true
	}
}

// transfer begins a read or write, of windows or of plain memory.
func (w *world) transfer(t *rapid.T, s *side, kind OpKind) {
	if !s.conn.Room() {
		return
	}
	here, there := rma.ProtRead, rma.ProtWrite
	begin := s.conn.Write
	if kind == OpRead {
		here, there, begin = there, here, s.conn.Read
	}
	n, flags := pickLength(t), pickFlags.Draw(t, "flags")
	roff := pickOffset(t, "remote", s.mirror, rapid.SampledFrom([]int64{1, 64, page}).Draw(t, "align"))
	op := &modelOp{kind: kind, offset: roff, length: n}
	l, code := Local{Length: n}, flagsCode(flags)
	if code == status.OK && n == 0 {
		code = status.Invalid
	}
	var localCode status.Code
	if rapid.IntRange(0, 2).Draw(t, "plain") == 0 {
		op.real = bytes.Repeat([]byte{byte(s.begun) ^ 0xa5}, int(n))
		op.buf = bytes.Clone(op.real)
		l.Buf = op.real
		if op.real == nil {
			l.Buf = []byte{}
		}
	} else {
		l.Offset = pickOffset(t, "local", s.windows, 32)
		op.places, localCode = lookup(s.windows, live, l.Offset, n, here)
	}
	_, remoteCode := lookup(s.mirror, announced, roff, n, there)
	for _, c := range []status.Code{localCode, remoteCode} {
		if code == status.OK {
			code = c
		}
	}
	var x *Waiter
	if rapid.Bool().Draw(t, "wait") {
		x = w.expect(s, "transfer", func(_ *Waiter, code status.Code) {
			if code != status.OK || !op.complete {
				w.t.Fatalf("%s: a transfer ended with %v, complete: %v", s.name, code, op.complete)
			}
		})
	}
	real, err := begin(l, roff, flags, x)
	if w.want(s, "transfer", err, code, x) {
		w.added(s, real.Seq, op)
	}
}

func (w *world) atomic(t *rapid.T, s *side) {
	if !s.conn.Room() {
		return
	}
	a := rma.Atomic{
		Op:      rma.AtomicOp(rapid.IntRange(0, 9).Draw(t, "op")),
		Width:   rapid.SampledFrom([]uint8{4, 8, 8, 2}).Draw(t, "width"),
		Offset:  pickOffset(t, "word", s.mirror, 4),
		Operand: rapid.Uint64().Draw(t, "operand"), Compare: rapid.SampledFrom([]uint64{0, 1, 1 << 40}).Draw(t, "compare"),
	}
	_, code := within(s.mirror, announced, a.Offset, int64(a.Width), both)
	if a.Op == 0 || a.Op > 8 || a.Width == 2 || a.Offset%int64(a.Width) != 0 {
		code = status.Invalid
	}
	if rapid.Bool().Draw(t, "posted") {
		w.post(s, a, code)
		return
	}
	op := &modelOp{kind: OpAtomic, atomic: a}
	x := w.expect(s, "atomic", func(x *Waiter, code status.Code) {
		if code != status.OK || !op.complete || x.Value != op.old {
			w.t.Fatalf("%s: an atomic: %v, old value %#x, want %#x", s.name, code, x.Value, op.old)
		}
	})
	if w.want(s, "atomic", s.conn.Atomic(a, x), code, x) {
		w.added(s, s.begun+1, op)
	}
}

// post begins an atomic without a result.
func (w *world) post(s *side, a rma.Atomic, code status.Code) {
	op := &modelOp{kind: OpPost, atomic: a}
	x := w.expect(s, "posted atomic", func(_ *Waiter, code status.Code) {
		if code != status.OK || !op.complete {
			w.t.Fatalf("%s: a posted atomic ended with %v, complete: %v", s.name, code, op.complete)
		}
	})
	if w.want(s, "posted atomic", s.conn.Post(a, x), code, x) {
		w.added(s, s.begun+1, op)
	}
}

// put begins a write of plain memory with a signal behind it.
func (w *world) put(t *rapid.T, s *side) {
	if !s.conn.RoomForPut() {
		return
	}
	w.values += 2
	p := rma.Put{Offset: pickOffset(t, "remote", s.mirror, 64), Word: pickOffset(t, "word", s.mirror, 4),
		Value: w.values, More: rapid.SampledFrom([]int64{0, 0, 0, 8, page, -1}).Draw(t, "more")}
	n := pickLength(t)
	op := &modelOp{kind: OpWrite, offset: p.Offset, length: n, real: bytes.Repeat([]byte{byte(s.begun)}, int(n))}
	op.buf = bytes.Clone(op.real)
	code := w.putCode(s, p, n)
	ok := code == status.OK && s.failedCode() == status.OK
	if ok { // the signal is queued before Put returns
		w.added(s, s.begun+1, op)
		if p.More == 0 {
			w.signals[p.Value] = &modelSignal{owner: s, mark: s.begun, on: s.peer, off: p.Word, put: true, sure: true}
		}
	}
	x := w.expect(s, "put", func(_ *Waiter, code status.Code) {
		if code != status.OK || !op.complete {
			w.t.Fatalf("%s: a put's write ended with %v, complete: %v", s.name, code, op.complete)
		}
	})
	_, err := s.conn.Put(Local{Buf: op.real, Length: n}, p, x)
	w.want(s, "put", err, code, x)
}

// putCode is the code of a put of n bytes.
func (w *world) putCode(s *side, p rma.Put, n int64) status.Code {
	if p.More < 0 || p.Word%8 != 0 || n == 0 {
		return status.Invalid
	}
	if _, code := lookup(s.mirror, announced, p.Offset, n, rma.ProtWrite); code != status.OK {
		return code
	}
	if _, code := lookup(s.mirror, announced, p.Offset+n, p.More, rma.ProtWrite); p.More > 0 && code != status.OK {
		return code
	}
	_, code := within(s.mirror, announced, p.Word, 8, rma.ProtWrite)
	return code
}

// applyAtomic returns the word after an atomic.
func applyAtomic(old uint64, a rma.Atomic) uint64 {
	v, c := a.Operand, a.Compare
	if a.Width == 4 {
		v, c = v&0xffffffff, c&0xffffffff
	}
	out := map[rma.AtomicOp]uint64{rma.AtomicAdd: old + v, rma.AtomicAnd: old & v, rma.AtomicOr: old | v,
		rma.AtomicXor: old ^ v, rma.AtomicSwap: v, rma.AtomicCAS: old, rma.AtomicMin: min(old, v), rma.AtomicMax: max(old, v)}[a.Op]
	if a.Op == rma.AtomicCAS && old == c {
		out = v
	}
	return out
}

func (w *world) markSelf(_ *rapid.T, s *side) {
	m := s.conn.MarkSelf()
	if m.Side != fence.InitSelf || m.Seq != s.begun {
		w.t.Fatalf("%s: mark %+v after %d operations", s.name, m, s.begun)
	}
	s.marks = append(s.marks, m)
}

// requestCode is the code of a call that sends the peer a request.
func (s *side) requestCode() status.Code {
	if len(s.conn.requests) >= modelLimits.Requests {
		return status.NoBufs
	}
	return status.OK
}

func (w *world) markPeer(_ *rapid.T, s *side) {
	least, code := s.peer.begun, s.requestCode()
	x := w.expect(s, "mark", func(x *Waiter, code status.Code) {
		if code != status.OK || x.Value < least || x.Value > s.peer.begun {
			w.t.Fatalf("%s: %v, mark %d of its peer, want %d to %d", s.name, code, x.Value, least, s.peer.begun)
		}
		s.marks = append(s.marks, fence.Mark{Side: fence.InitPeer, Seq: x.Value})
	})
	if w.want(s, "mark of the peer", s.conn.MarkPeer(x), code, x) {
		s.fences = append(s.fences, x)
	}
}

func (w *world) wait(t *rapid.T, s *side) {
	m := fence.Mark{Side: fence.InitSelf, Seq: s.begun + 1} // never taken
	if n := len(s.marks); n > 0 && rapid.IntRange(0, 9).Draw(t, "invented") < 9 {
		m = s.marks[n-1]
		if rapid.Bool().Draw(t, "an old one") {
			m = rapid.SampledFrom(s.marks).Draw(t, "mark")
		}
	}
	if m.Side == fence.InitPeer {
		w.waitPeer(s, m)
		return
	}
	x := w.expect(s, "fence", w.honest(s, s, m))
	full := s.conn.waits.Len() >= modelLimits.Requests
	pending, err := s.conn.Wait(m, x)
	switch {
	case m.Seq > s.begun:
		if pending || status.Of(err) != status.Invalid {
			t.Fatalf("%s: wait for a mark that was never taken: %v, %v", s.name, pending, err)
		}
		delete(s.pending, x)
	case err != nil:
		if !full || status.Of(err) != status.NoBufs {
			t.Fatalf("%s: wait: %v", s.name, err)
		}
		delete(s.pending, x)
	case !pending:
		check := s.pending[x]
		delete(s.pending, x)
		check(x.Code)
	default:
		s.fences = append(s.fences, x)
	}
}

// honest says that a fence that s waited for is OK only if every operation of
// owner that it covers has had its effect, and that nothing else ends it.
func (w *world) honest(s, owner *side, m fence.Mark) func(*Waiter, status.Code) {
	return func(_ *Waiter, code status.Code) {
		if code != status.OK || !owner.complete(m.Seq) {
			w.t.Fatalf("%s: fence over %d operations of %s: %v, complete: %v", s.name, m.Seq, owner.name, code, owner.complete(m.Seq))
		}
	}
}

func (w *world) waitPeer(s *side, m fence.Mark) {
	code := s.requestCode()
	var request uint64
	x := w.expect(s, "peer's fence", func(x *Waiter, code status.Code) {
		if want, ok := s.answers[request]; ok && want != status.OK {
			if code != want {
				w.t.Fatalf("%s: peer's fence: %v, want %v", s.name, code, want)
			}
			return
		}
		if s.peer.failedCode() == status.OK {
			w.honest(s, s.peer, m)(x, code)
		}
	})
	_, err := s.conn.Wait(m, x)
	if w.want(s, "wait for the peer", err, code, x) {
		request = s.request
		s.fences = append(s.fences, x)
	}
}

func (w *world) forget(t *rapid.T, s *side) {
	if len(s.fences) == 0 {
		return
	}
	i := rapid.IntRange(0, len(s.fences)-1).Draw(t, "fence")
	x := s.fences[i]
	s.conn.Forget(x)
	s.fences = slices.Delete(s.fences, i, i+1)
	delete(s.pending, x)
}

// newSignal draws a signal with unused values.
func (w *world) newSignal(t *rapid.T, s *side, by fence.Side) fence.Signal {
	w.values += 2
	return fence.Signal{By: by, Where: rapid.SampledFrom([]fence.Where{0x10, 0x20, 0x30, 0}).Draw(t, "where"),
		LocalOffset: pickOffset(t, "local", s.windows, 2), LocalValue: w.values,
		RemoteOffset: pickOffset(t, "remote", s.mirror, 2), RemoteValue: w.values + 1}
}

// judge returns the code of a signal over owner's operations, and enters its
// values, provisionally, before they can be stored.
func (w *world) judge(owner *side, sig fence.Signal) status.Code {
	local, remote := sig.Where&fence.SignalLocal != 0, sig.Where&fence.SignalRemote != 0
	if !local && !remote || local && sig.LocalOffset%4 != 0 || remote && sig.RemoteOffset%4 != 0 {
		return status.Invalid
	}
	var at place
	var code status.Code
	if local {
		if at, code = within(owner.windows, live, sig.LocalOffset, 8, rma.ProtWrite); code != status.OK {
			return code
		}
	}
	if remote {
		if _, code = within(owner.mirror, announced, sig.RemoteOffset, 8, rma.ProtWrite); code != status.OK {
			return code
		}
		w.signals[sig.RemoteValue] = &modelSignal{owner: owner, mark: owner.begun, on: owner.peer, off: sig.RemoteOffset}
	}
	if local {
		w.signals[sig.LocalValue] = &modelSignal{owner: owner, mark: owner.begun, on: owner, off: sig.LocalOffset, place: at, known: true}
	}
	return status.OK
}

// decided confirms or forgets the values of a signal.
func (w *world) decided(sig fence.Signal, accepted bool) {
	for _, v := range []uint64{sig.LocalValue, sig.RemoteValue} {
		if x := w.signals[v]; x != nil && accepted {
			x.sure = true
		} else if x != nil && !x.stored {
			delete(w.signals, v)
		}
	}
}

func (w *world) signal(t *rapid.T, s *side) {
	if !s.conn.Room() {
		return
	}
	sig := w.newSignal(t, s, fence.InitSelf)
	full := s.conn.waits.Len() >= modelLimits.Requests
	code := status.OK
	if s.failedCode() == status.OK {
		code = w.judge(s, sig)
	}
	err := s.conn.Signal(sig)
	if code == status.OK && full && status.Of(err) == status.NoBufs {
		code = status.NoBufs
	}
	w.decided(sig, w.want(s, "signal", err, code, nil))
}

func (w *world) signalByPeer(t *rapid.T, s *side) {
	sig := w.newSignal(t, s, fence.InitPeer)
	code := s.requestCode()
	if sig.Where == 0 || sig.Where&0x10 != 0 && sig.LocalOffset%4 != 0 || sig.Where&0x20 != 0 && sig.RemoteOffset%4 != 0 {
		code = status.Invalid
	}
	var request uint64
	x := w.expect(s, "signal by the peer", func(_ *Waiter, code status.Code) {
		if want, ok := s.answers[request]; !ok || want != code {
			w.t.Fatalf("%s: signal by the peer: %v, want %v (asked: %v)", s.name, code, want, ok)
		}
	})
	if w.want(s, "signal by the peer", s.conn.SignalByPeer(sig, x), code, x) {
		request = s.request
		s.fences = append(s.fences, x)
	}
}

func (w *world) lend(t *rapid.T, s *side) {
	off, n := pickOffset(t, "offset", s.windows, page), pages(t, "length", 1, 2)
	_, code := within(s.windows, live, off, n, rma.ProtRead)
	sp, err := s.conn.Export(off, n, rma.ProtRead)
	if w.want(s, "lend", err, code, nil) {
		i := slices.IndexFunc(s.windows, func(x *modelWindow) bool { return x.mem == sp.Window.Mem })
		s.windows[i].exportedWindow = append(s.windows[i].exportedWindow, sp)
	}
}

func (w *world) giveBack(_ *rapid.T, s *side) {
	for _, x := range s.windows {
		if len(x.exportedWindow) > 0 {
			s.conn.EndExport(x.exportedWindow[0])
			x.exportedWindow = x.exportedWindow[1:]
			return
		}
	}
}

// scribble is a store of the application into its own memory.
func (w *world) scribble(t *rapid.T, s *side) {
	pool, off := rapid.IntRange(0, 1).Draw(t, "pool"), rapid.IntRange(0, poolPages*page-8).Draw(t, "offset")
	w.values += 2
	binary.LittleEndian.PutUint64(s.real[pool][off:], w.values*0x9e3779b97f4a7c15)
	copy(s.model[pool][off:off+8], s.real[pool][off:off+8])
}

func (w *world) fail(t *rapid.T, s *side) {
	if rapid.IntRange(0, 4).Draw(t, "sure") < 4 {
		return // or most programs would be short
	}
	if rapid.Bool().Draw(t, "close") {
		s.conn.Close(status.Reset)
	} else {
		s.conn.Fail(status.Reset)
	}
	w.dead(s)
}

// dead updates the model of the windows of a side that has failed.
func (w *world) dead(s *side) {
	for _, x := range s.windows {
		x.retired = x.retired || x.withdrawn
	}
	s.mirror = nil
}

// write writes a little of the queue of s, and checks its source.
func (w *world) write(t *rapid.T, s *side) {
	if len(s.queued()) == 0 {
		return
	}
	head := s.queue[0]
	if s.broken || s.failedCode() != status.OK && rapid.Bool().Draw(t, "broken") {
		s.broken = true // a stream that lost a frame carries none any more
		s.skip(status.OK)
		return
	}
	var seq uint64
	switch { // the core takes both back once they are written
	case head.Write != nil:
		seq = head.Write.Seq
	case head.Reply != nil:
		seq = head.Reply.Op
	}
	before := len(s.stream)
	s.end.write(rapid.Int64Range(1, 3*page).Draw(t, "at most"))
	if len(s.stream) == before {
		t.Fatalf("%s: nothing was written", s.name)
	}
	got := s.stream[before].payload
	var want []byte
	switch n := int64(len(got)); {
	case head.Write != nil:
		op := s.ops[seq]
		if op.real != nil {
			want = op.buf[op.moved : op.moved+n]
		} else {
			want = s.bytesAt(op.places, op.moved, n)
		}
		op.moved += n
	case head.Reply != nil:
		op := s.peer.ops[seq]
		want = s.bytesAt(op.remote, op.served, n)
		op.served += n
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: the payload of a %v is not what the model has", s.name, wire.Type(s.stream[before].frame[0]))
	}
}

// deliver handles the oldest packet for s, up to its payload.
func (w *world) deliver(t *rapid.T, s *side) {
	if s.payload != nil || len(s.peer.stream) == 0 {
		return
	}
	p := s.peer.stream[0]
	s.peer.stream = s.peer.stream[1:]
	s.receive = nil
	if s.failedCode() == status.OK {
		w.apply(s, p)
	}
	if err := s.handle(p); err != nil {
		t.Fatalf("%s: a frame of an honest peer, %v: %v", s.name, wire.Type(p.frame[0]), err)
	}
	if s.receive != nil && s.payload == nil {
		t.Fatalf("%s: nobody reads a payload", s.name)
	}
}

func (w *world) complete(_ *rapid.T, s *side) {
	if s.payload == nil {
		return
	}
	if s.receive != nil {
		s.receive()
		s.receive = nil
	}
	s.finish()
}

// apply applies a frame to the model of s.
func (w *world) apply(s *side, p packet) {
	flags, body := p.frame[1], p.frame[wire.HeaderLen:]
	switch wire.Type(p.frame[0]) {
	case wire.TypeWrite:
		f, _ := wire.ParseWrite(flags, body)
		w.applyWrite(s, f, p.payload)
	case wire.TypeRead:
		f, _ := wire.ParseRead(flags, body)
		s.peer.ops[f.Op].remote, _ = lookup(s.windows, forPeer, int64(f.Offset), int64(f.Length), rma.ProtRead)
	case wire.TypeReadData:
		f, _ := wire.ParseReadData(flags, body)
		w.applyData(s, f, p.payload)
	case wire.TypeSignal:
		f, _ := wire.ParseSignal(flags, body)
		s.peer.ops[f.Op].complete = true
	case wire.TypeAtomic:
		f, _ := wire.ParseAtomic(flags, body)
		w.applyAtomicOp(s, s.peer.ops[f.Op])
	case wire.TypePeerSignal:
		f, _ := wire.ParsePeerSignal(flags, body)
		w.applyPeerSignal(s, f)
	case wire.TypeWait:
		f, _ := wire.ParseWait(flags, body)
		if s.conn.waits.Len() >= modelLimits.Requests && !s.conn.ops.Reached(f.Seq) {
			s.peer.answers[f.Request] = status.NoBufs
		}
	case wire.TypeRegister:
		f, _ := wire.ParseRegister(flags, body)
		s.mirror = append(s.mirror, &modelWindow{off: int64(f.Offset), n: int64(f.Length), prot: rma.Prot(f.Prot)})
	case wire.TypeUnregister:
		f, _ := wire.ParseUnregister(flags, body)
		s.mirror = slices.DeleteFunc(s.mirror, func(x *modelWindow) bool { return x.off == int64(f.Offset) })
	case wire.TypeUnregistered:
		f, _ := wire.ParseUnregistered(flags, body)
		for _, x := range s.windows {
			if x.off == int64(f.Offset) && !x.retired {
				x.retired = true
			}
		}
	}
}

func (w *world) applyWrite(s *side, f wire.Write, payload []byte) {
	op := s.peer.ops[f.Op]
	places, code := lookup(s.windows, forPeer, int64(f.Offset), int64(f.Length), rma.ProtWrite)
	if code != status.OK {
		w.t.Fatalf("%s: a write of its peer arrives at %#x: %v", s.name, f.Offset, code)
	}
	if !s.peer.complete(f.Op - 1) {
		// Reads are the exception: their answers come when the stream takes them.
		for seq := uint64(1); seq < f.Op; seq++ {
			if x := s.peer.ops[seq]; !x.complete && x.kind != OpRead {
				w.t.Fatalf("%s: operation %d arrives before operation %d is applied", s.name, f.Op, seq)
			}
		}
	}
	s.receive = func() {
		s.setAt(places, 0, payload)
		op.complete = f.Last
	}
}

func (w *world) applyData(s *side, f wire.ReadData, payload []byte) {
	op := s.ops[f.Op]
	at := op.moved
	op.moved += int64(len(payload))
	s.receive = func() {
		if op.real != nil {
			copy(op.buf[at:], payload)
		} else {
			s.setAt(op.places, at, payload)
		}
		op.complete = f.Last
	}
}

func (w *world) applyAtomicOp(s *side, op *modelOp) {
	at, code := within(s.windows, forPeer, op.atomic.Offset, int64(op.atomic.Width), both)
	if code != status.OK {
		w.t.Fatalf("%s: an atomic of its peer arrives: %v", s.name, code)
	}
	p := s.model[at.pool][at.off : at.off+at.n]
	if op.atomic.Width == 4 {
		op.old = uint64(binary.LittleEndian.Uint32(p))
		binary.LittleEndian.PutUint32(p, uint32(applyAtomic(op.old, op.atomic)))
	} else {
		op.old = binary.LittleEndian.Uint64(p)
		binary.LittleEndian.PutUint64(p, applyAtomic(op.old, op.atomic))
	}
	op.complete = true
}

func (w *world) applyPeerSignal(s *side, f wire.PeerSignal) {
	sig := fence.Signal{By: fence.InitSelf, Where: fence.Where(f.Where),
		LocalOffset: int64(f.LocalOffset), LocalValue: f.LocalValue,
		RemoteOffset: int64(f.RemoteOffset), RemoteValue: f.RemoteValue}
	code := w.judge(s, sig)
	reached := s.conn.ops.Reached(s.begun)
	direct := sig.Where == fence.SignalRemote && s.conn.reads == 0 && s.conn.Room()
	if code == status.OK && s.conn.waits.Len() >= modelLimits.Requests && !reached && !direct {
		code = status.NoBufs
	}
	s.peer.answers[f.Request] = code
	w.decided(sig, code == status.OK)
}

// check compares everything after a step.
func (w *world) check(t *rapid.T) {
	for _, s := range w.sides {
		s.perform()
		s.windows = slices.DeleteFunc(s.windows, func(x *modelWindow) bool { return x.mem.freed > 0 })
		for i := range s.real {
			if !bytes.Equal(s.real[i], s.model[i]) {
				t.Fatalf("%s: pool %d differs from the model's", s.name, i)
			}
		}
		for seq, op := range s.ops {
			if !bytes.Equal(op.real, op.buf) {
				t.Fatalf("%s: the memory of operation %d differs from the model's", s.name, seq)
			}
		}
		wantBounded(t, s.name, s.conn)
	}
}

// move moves a few frames or parts of frames of both sides.
func (w *world) move(t *rapid.T, _ *side) {
	moves := []func(*rapid.T, *side){w.write, w.deliver, w.complete}
	for range rapid.IntRange(1, 12).Draw(t, "moves") {
		s := w.anySide(t)
		moves[rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "move")](t, s)
	}
}

// quiesce moves everything until nothing moves.
func (w *world) quiesce(t *rapid.T) {
	for moved := true; moved; {
		moved = false
		for _, s := range w.sides {
			for len(s.queued()) > 0 {
				w.write(t, s)
				moved = true
			}
			for len(s.peer.stream) > 0 || s.payload != nil {
				w.complete(t, s)
				w.deliver(t, s)
				w.complete(t, s)
				moved = true
			}
		}
	}
}

// end lets everything arrive, unless a side has failed, and then closes.
func (w *world) end(t *rapid.T) {
	w.quiesce(t)
	w.check(t)
	a, b := w.sides[0], w.sides[1]
	if a.failedCode() == status.OK && b.failedCode() == status.OK {
		w.wantAllDone(t)
	}
	held := make([][]*modelWindow, 2)
	for i, s := range w.sides {
		s.conn.Close(status.Reset)
		w.dead(s)
		held[i] = slices.Clone(s.windows)
	}
	w.quiesce(t)
	for i, s := range w.sides {
		if len(s.pending) > 0 {
			t.Fatalf("%s: %d waiters are left after the end", s.name, len(s.pending))
		}
		for _, x := range held[i] {
			if freed := x.mem.freed > 0; freed != (len(x.exportedWindow) == 0) {
				t.Fatalf("%s: window %#x freed: %v, exportedWindow %d times", s.name, x.off, freed, len(x.exportedWindow))
			}
			for _, sp := range x.exportedWindow {
				s.conn.EndExport(sp)
			}
			s.perform()
			if x.mem.freed != 1 {
				t.Fatalf("%s: window %#x was freed %d times", s.name, x.off, x.mem.freed)
			}
		}
		wantNothingLeft(t, s.conn)
	}
}

// wantAllDone says that on a connection in order nothing is forgotten.
func (w *world) wantAllDone(t *rapid.T) {
	for _, s := range w.sides {
		if len(s.pending) > 0 || !s.complete(s.begun) || s.conn.ops.Done() != s.begun {
			t.Fatalf("%s: %d waiters left, %d of %d operations ended", s.name, len(s.pending), s.conn.ops.Done(), s.begun)
		}
		for _, x := range s.windows {
			if x.withdrawn && len(x.exportedWindow) == 0 {
				t.Fatalf("%s: window %#x is not freed although nothing uses it", s.name, x.off)
			}
		}
	}
	for v, sig := range w.signals {
		if sig.sure && !sig.stored {
			t.Fatalf("value %#x was never stored", v)
		}
	}
}

// begin gives both sides two adjacent windows, so that a program does something
// from its first step.
func (w *world) begin(t *rapid.T) {
	for _, s := range w.sides {
		for i := range int64(2) {
			m := &memory{bytes: s.real[0][i*page : (i+2)*page]} // they share a page
			x := w.expect(s, "register", mustBeOK(w, "register"))
			if _, err := s.conn.Register(m, 2*page, 2*i*page, both, rma.MapFixed, x); err != nil {
				t.Fatal(err)
			}
			s.windows = append(s.windows, &modelWindow{off: 2 * i * page, n: 2 * page, prot: both, at: i * page, mem: m})
		}
	}
	w.quiesce(t)
}

// actions returns the actions of applications, streams and faults, by name, and the
// names as often as they are to be drawn.
func (w *world) actions() (run map[string]func(*rapid.T, *side), names []string) {
	run = make(map[string]func(*rapid.T, *side))
	for _, a := range []struct {
		weight int
		name   string
		run    func(*rapid.T, *side)
	}{
		{2, "register", w.register}, {2, "unregister", w.unregister},
		{4, "write", func(t *rapid.T, s *side) { w.transfer(t, s, OpWrite) }},
		{4, "read", func(t *rapid.T, s *side) { w.transfer(t, s, OpRead) }},
		{3, "atomic", w.atomic}, {2, "put", w.put},
		{1, "mark", w.markSelf}, {3, "mark of the peer", w.markPeer},
		{4, "wait", w.wait}, {2, "mark and wait", func(t *rapid.T, s *side) { w.markSelf(t, s); w.wait(t, s) }},
		{1, "forget", w.forget},
		{3, "signal", w.signal}, {3, "signal by peer", w.signalByPeer},
		{1, "lend", w.lend}, {1, "give back", w.giveBack}, {1, "scribble", w.scribble},
		{1, "fail", w.fail},
		{12, "move", w.move}, {1, "quiesce", func(t *rapid.T, _ *side) { w.quiesce(t) }},
	} {
		run[a.name] = a.run
		names = append(names, slices.Repeat([]string{a.name}, a.weight)...)
	}
	return run, names
}

func (w *world) anySide(t *rapid.T) *side {
	if rapid.Bool().Draw(t, "on B") {
		return w.sides[1]
	}
	return w.sides[0]
}

// TestRandomProgramsAgreeWithModel runs random programs on both ends of a
// connection whose frames arrive one at a time at random moments, and compares
// every result and every byte with the model. A program takes a millisecond,
// so that there are more of them than rapid runs by itself. rapid prints the
// seed.
func TestRandomProgramsAgreeWithModel(t *testing.T) {
	for range 5 {
		rapid.Check(t, func(t *rapid.T) {
			w := newWorld(t)
			w.begin(t)
			run, names := w.actions()
			for range rapid.SampledFrom([]int{5, 20, 60, 150}).Draw(t, "steps") {
				name := rapid.SampledFrom(names).Draw(t, "action")
				run[name](t, w.anySide(t))
				w.check(t)
			}
			w.end(t)
		})
	}
}
