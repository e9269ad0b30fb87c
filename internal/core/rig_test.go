package core

import (
	"encoding/binary"
	"errors"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

const page = rma.PageSize

// A failer is a *testing.T, *testing.F's or *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// memory is window memory of the tests. Several may share their bytes.
type memory struct {
	bytes []byte
	freed int
}

// A packet is a frame on its way, with the payload behind it.
type packet struct{ frame, payload []byte }

// A segment is a Segment with one frame at most.
type segment struct {
	Segment[*memory]
	moved int64 // bytes of the payload that are written
}

// An end is one end of a connection: a Conn and the least engine that it can
// have. Everything moves only when a test says so.
type end struct {
	t      failer
	conn   *Conn[*memory]
	queue  []segment // queued, not written; see queued
	stream []packet  // written, not handled by the peer
	woken  map[*Waiter]int
	fault  error // the memory's error from now on
	over   bool  // perform has seen the end: nothing is queued or stored any more

	payload  *Payload[*memory] // the payload being received
	bytes    []byte
	refunded int64

	onQueue func(frame []byte)
	onStore func(at rma.Span[*memory], v uint64)
	onWake  func(w *Waiter)
}

func newEnd(t failer, limits Limits) *end {
	return &end{t: t, woken: make(map[*Waiter]int), conn: NewConn[*memory](limits)}
}

func newPair(t failer, limits Limits) (a, b *end) {
	return newEnd(t, limits), newEnd(t, limits)
}

func (e *end) at(sp rma.Span[*memory]) []byte { return spanBytes(e.t, sp) }

// perform takes the Conn's queue, frame by frame, and performs its effects.
func (e *end) perform() {
	if fx := e.conn.Effects(); e.over && (len(e.conn.Queued()) > 0 || fx != nil && len(fx.Stores) > 0) {
		e.t.Fatalf("something was queued or stored after Fail: %+v, %+v", e.conn.Queued(), fx)
	}
	e.over = e.conn.failed != status.OK
	for len(e.conn.Queued()) > 0 {
		s := e.conn.Next()
		if s.Frames == nil {
			e.queue = append(e.queue, segment{Segment: s})
			continue
		}
		for rest := s.Frames; len(rest) > 0; {
			h, err := wire.ParseHeader(rest)
			if err != nil {
				e.t.Fatalf("what is queued is not a frame: %v", err)
			}
			n := wire.HeaderLen + int(h.Len)
			frame := append([]byte(nil), rest[:n]...)
			e.queue = append(e.queue, segment{Segment: Segment[*memory]{Frames: frame}})
			if rest = rest[n:]; e.onQueue != nil {
				e.onQueue(frame)
			}
		}
	}
	if fx := e.conn.Effects(); fx != nil {
		for _, s := range fx.Stores {
			_ = e.store(s.At, s.Value)
		}
		for _, w := range fx.Woken {
			e.wake(w)
		}
		for _, m := range fx.Freed {
			e.free(m)
		}
		e.refunded += fx.Refund
		fx.Clear()
	}
}

// queued returns the segments queued and not written.
func (e *end) queued() []segment {
	e.perform()
	return e.queue
}

func (e *end) wake(w *Waiter) {
	if e.woken[w]++; e.woken[w] > 1 {
		e.t.Fatalf("a waiter was woken twice")
	}
	if e.onWake != nil {
		e.onWake(w)
	}
}

func (e *end) store(at rma.Span[*memory], v uint64) error {
	if e.fault != nil {
		return e.fault
	}
	binary.LittleEndian.PutUint64(e.at(at), v)
	if e.onStore != nil {
		e.onStore(at, v)
	}
	return nil
}

// word performs the action on a word of the handled frame, if there is one.
func (e *end) word() {
	p := e.payload
	if p == nil || p.Word == NoWord {
		return
	}
	e.payload = nil
	err := e.fault
	switch {
	case p.Word == StoreWord:
		err = e.store(p.Spans[0], p.Value)
	case err == nil:
		b := e.at(p.Spans[0])
		var word [8]byte
		copy(word[:], b)
		p.Value = binary.LittleEndian.Uint64(word[:])
		binary.LittleEndian.PutUint64(word[:], rma.Apply(p.Value, p.Atomic))
		copy(b, word[:p.Atomic.Width])
	}
	e.conn.PayloadDone(p, err)
}

func (e *end) free(m *memory) {
	if m.freed++; m.freed > 1 {
		e.t.Fatalf("memory of a window was freed twice")
	}
}

// spanBytes returns the memory of sp, which must not have been freed.
func spanBytes(t failer, sp rma.Span[*memory]) []byte {
	if sp.Window.Mem.freed > 0 {
		t.Fatalf("memory is used after it was freed")
	}
	return sp.Window.Mem.bytes[sp.Offset : sp.Offset+sp.Length]
}

// gather returns n bytes from off on of the memory that an operation reads.
func gather(t failer, spans []rma.Span[*memory], buf []byte, off, n int64) []byte {
	if len(spans) == 0 {
		return append([]byte(nil), buf[off:off+n]...)
	}
	var out []byte
	for _, sp := range Cut(nil, spans, off, n) {
		out = append(out, spanBytes(t, sp)...)
	}
	return out
}

// write writes the first queued frame, or at most limit bytes of a payload. It
// reports false if nothing is queued.
func (e *end) write(limit int64) bool {
	if len(e.queued()) == 0 {
		return false
	}
	s := &e.queue[0]
	if s.Frames != nil {
		e.stream = append(e.stream, packet{frame: append([]byte(nil), s.Frames...)})
		e.skip(status.OK)
		return true
	}
	spans, buf, length := s.Payload()
	n := min(limit, length-s.moved, wire.MaxPayload)
	e.stream = append(e.stream, packet{s.AppendHead(nil, s.moved, n), gather(e.t, spans, buf, s.moved, n)})
	if s.moved += n; s.moved == length {
		e.skip(status.OK)
	}
	return true
}

// skip takes the first segment off the queue, as written or given up.
func (e *end) skip(code status.Code) {
	s := e.queued()[0]
	e.queue = e.queue[1:]
	e.conn.Written(s.Segment, code)
	e.perform()
}

// handle gives p to the Conn. If bytes are to be received, finish does that.
func (e *end) handle(p packet) error {
	h, err := wire.ParseHeader(p.frame)
	if err != nil {
		return err
	}
	e.payload, err = e.conn.Handle(h, p.frame[wire.HeaderLen:])
	if e.payload != nil && e.payload.Length != int64(len(p.payload)) {
		e.t.Fatalf("%v: a payload of %d bytes, want %d", h.Type, e.payload.Length, len(p.payload))
	}
	e.bytes = p.payload
	e.word()
	e.perform()
	return err
}

// finish stores the bytes of the frame that was handled last.
func (e *end) finish() {
	p := e.payload
	if p == nil {
		return
	}
	e.payload = nil
	if p.Buf != nil {
		copy(p.Buf, e.bytes)
	}
	rest := e.bytes
	for _, sp := range p.Spans {
		rest = rest[copy(e.at(sp), rest):]
	}
	if len(p.Spans) > 0 && len(rest) > 0 {
		e.t.Fatalf("%d bytes of a payload have no place", len(rest))
	}
	e.conn.PayloadDone(p, e.fault)
	e.perform()
}

// take handles the oldest packet of peer. It reports false if there is none.
func (e *end) take(peer *end) bool {
	if len(peer.stream) == 0 {
		return false
	}
	p := peer.stream[0]
	peer.stream = peer.stream[1:]
	if err := e.handle(p); err != nil {
		e.t.Fatalf("a frame of an honest peer, %v: %v", wire.Type(p.frame[0]), err)
	}
	e.finish()
	return true
}

// settle moves everything between a and b until nothing is left.
func settle(a, b *end) {
	for a.write(wire.MaxPayload) || b.write(wire.MaxPayload) || a.take(b) || b.take(a) {
	}
}

// window registers a window of n pages at a fixed offset and announces it to the peer.
func (e *end) window(peer *end, off, pages int64, prot rma.Prot) *memory {
	m := &memory{bytes: make([]byte, pages*page)}
	w := new(Waiter)
	if _, err := e.conn.Register(m, pages*page, off, prot, rma.MapFixed, w); err != nil {
		e.t.Fatalf("Register at %#x: %v", off, err)
	}
	settle(e, peer)
	e.wantWoken("Register", w, status.OK)
	return m
}

func (e *end) wantWoken(what string, w *Waiter, code status.Code) {
	e.t.Helper()
	e.perform()
	if e.woken[w] != 1 || w.Code != code {
		e.t.Fatalf("%s: woken %d times with %v, want once with %v", what, e.woken[w], w.Code, code)
	}
}

func (e *end) wantAsleep(what string, w *Waiter) {
	e.t.Helper()
	e.perform()
	if e.woken[w] != 0 {
		e.t.Fatalf("%s: woken with %v, want it to wait", what, w.Code)
	}
}

// framer is every frame.
type framer interface{ AppendTo([]byte) []byte }

// send makes e handle a frame as if the peer had sent it.
func (e *end) send(f framer, payload ...byte) error {
	err := e.handle(packet{f.AppendTo(nil), payload})
	e.finish()
	return err
}

// wantRefused makes e handle a frame that breaks the protocol.
func (e *end) wantRefused(what string, f framer, payload ...byte) {
	e.t.Helper()
	if err := e.send(f, payload...); !errors.Is(err, status.Protocol) {
		e.t.Fatalf("%s: %v, want %v", what, err, status.Protocol)
	}
}

// sent returns the frames that e has queued since the last call.
func (e *end) sent() (types []wire.Type) {
	for e.write(wire.MaxPayload) {
	}
	for _, p := range e.stream {
		types = append(types, wire.Type(p.frame[0]))
	}
	e.stream = nil
	return types
}
