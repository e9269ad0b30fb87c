package conformance

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"

	"github.com/fabricd/fabricd/fabric"
)

// A step is one call of a program, by numbers: their choice depends on the state that
// the steps before have left. Every step can follow every other one.
type step struct {
	do      *programStep
	side    int    // 0 near, 1 far
	slot    int    // of the side's endpoints
	a, b, c uint64 // arguments of do
}

// slots is how many endpoints each side has at most.
const slots = 4

// A programStep is a kind of step, and how often it is drawn.
type programStep struct {
	name   string
	weight int
	want   programState // most often on an endpoint in this state
	run    func(r *programRun, e *programEnd, s step) string
}

// programSteps are the steps possible anywhere.
var programSteps = []programStep{
	{"open", 4, "", (*programRun).open},
	{"bind", 3, isUnbound, (*programRun).bind},
	{"listen", 3, isBound, (*programRun).listen},
	{"connect", 6, isUnbound, (*programRun).connect},
	{"meet", 6, "", (*programRun).meet},
	{"try accept", 1, "", (*programRun).tryAccept},
	{"close", 3, "", (*programRun).close},
	{"send", 6, isConnected, (*programRun).send},
	{"recv", 6, isConnected, (*programRun).recv},
	{"poll", 3, "", (*programRun).poll},
	{"register", 12, isConnected, (*programRun).register},
	{"unregister", 2, isConnected, (*programRun).unregister},
	{"transfer", 14, isConnected, (*programRun).transfer},
	{"atomic", 5, isConnected, (*programRun).atomic},
	{"post", 5, isConnected, (*programRun).post},
	{"put", 6, isConnected, (*programRun).put},
	{"signal", 4, isConnected, (*programRun).signal},
	{"fence", 6, isConnected, (*programRun).fence},
	{"fence of a side", 2, isConnected, (*programRun).fenceBy},
}

// newProgram draws a program of n steps out of the kinds in of.
func newProgram(rng *rand.Rand, n int, of []programStep) []step {
	var weighted []*programStep
	for i := range of {
		for range of[i].weight {
			weighted = append(weighted, &of[i])
		}
	}
	program := make([]step, n)
	for i := range program {
		program[i] = step{do: weighted[rng.IntN(len(weighted))], side: rng.IntN(2), slot: rng.IntN(slots),
			a: rng.Uint64(), b: rng.Uint64(), c: rng.Uint64()}
	}
	return program
}

// A programState is the state of an endpoint, as the results so far show it.
type programState string

const (
	none           programState = "no endpoint"
	isUnbound      programState = "unbound"
	isBound        programState = "bound"
	isListening    programState = "listening"
	isConnected    programState = "connected"
	isDisconnected programState = "disconnected"
	isClosed       programState = "closed"
)

// A programEnd is one endpoint of a program and its known state.
type programEnd struct {
	side    int
	ep      *fabric.Endpoint
	state   programState
	peer    *programEnd // once connected
	unread  int         // bytes that have arrived and were not received
	windows []window
	bufs    [][]byte // of transfers that may be under way
	begun   bool     // so may be transfers
}

// A programRun runs programs on one pair of applications, and writes their visible
// results. It waits for effects that depend on time, so that the same program sees the
// same in every API mode.
type programRun struct {
	ctx  context.Context
	apps [2]*fabric.Node
	// goOver makes a connection of the two go over to shared memory; nil: none is to.
	goOver func(ctx context.Context, a, b *fabric.Endpoint) error
	ends   [2][slots]*programEnd
	mems   []*fabric.Memory
	maps   []*programMap
	n      int // steps so far
	err    error
}

// run runs a program and returns its trace, one line for each step. Everything
// of it is closed afterwards.
func (r *programRun) run(program []step) []string {
	r.begin()
	return r.end(r.steps(program))
}

func (r *programRun) begin() {
	for side := range r.ends {
		for i := range r.ends[side] {
			r.ends[side][i] = &programEnd{side: side, state: none}
		}
	}
}

func (r *programRun) steps(program []step) (trace []string) {
	for _, s := range program {
		if r.err != nil {
			break
		}
		r.n++
		e := r.pick(s)
		before := e.state
		trace = append(trace, fmt.Sprintf("%s %d.%d (%s): %s", s.do.name, s.side, s.slot, before, s.do.run(r, e, s)))
	}
	return trace
}

// end closes everything and returns the whole trace.
func (r *programRun) end(trace []string) []string {
	for side := range r.ends {
		for _, e := range r.ends[side] {
			if e.state != none && e.state != isClosed {
				r.close(e, step{})
			}
		}
	}
	trace = append(trace, r.unmap()...)
	for _, mem := range r.mems {
		r.must("close memory", mem.Close())
	}
	if r.err != nil {
		trace = append(trace, "does not go on: "+r.err.Error())
	}
	return trace
}

// pick returns the endpoint of a step.
func (r *programRun) pick(s step) *programEnd {
	ends := r.ends[s.side]
	for i := range slots {
		if x := ends[(s.slot+i)%slots]; s.a>>60 > 0 && x.state == s.do.want {
			return x
		}
	}
	return ends[s.slot]
}

// must records errors of calls that a program needs.
func (r *programRun) must(what string, err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", what, err)
	}
}

// outcome is an error as programs see it.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	op, ok := errors.AsType[*fabric.OpError](err)
	if !ok {
		return err.Error()
	}
	s := errnoName(op.Errno())
	if errors.Is(err, io.EOF) {
		s += ", end of stream"
	}
	return s
}

// await waits until poll reports events at e.
func (r *programRun) await(e *programEnd, events fabric.Events) {
	items := []fabric.PollItem{{Endpoint: e.ep, Events: events}}
	_, err := r.apps[e.side].Poll(r.ctx, items)
	if err == nil && items[0].Revents&events != events {
		err = fmt.Errorf("revents %#x, want %#x", items[0].Revents, events)
	}
	r.must("await", err)
}

// settle waits until the endpoint's operations are complete. Twice: a signal
// over reads begins only when they have ended.
func (r *programRun) settle(e *programEnd) {
	if !e.begun || e.state != isConnected {
		return
	}
	for range 2 {
		m, err := e.ep.FenceMark(fabric.InitSelf)
		if err == nil {
			err = e.ep.FenceWait(r.ctx, m)
		}
		r.must("fence", err)
	}
	e.begun = false
}

// turn is called before an endpoint begins a transfer: those of one end are in
// order, those of two are not.
func (r *programRun) turn(e *programEnd) {
	if e.peer != nil {
		r.settle(e.peer)
	}
	e.begun = e.state == isConnected
}

func (r *programRun) open(e *programEnd, s step) string {
	if e.state != none && e.state != isClosed {
		return "is open"
	}
	ep, err := r.apps[e.side].Open()
	if err != nil {
		return outcome(err)
	}
	r.ends[s.side][s.slot] = &programEnd{side: e.side, ep: ep, state: isUnbound}
	return "ok"
}

// bind binds to any port, to one of a few of this side, or to one that is not
// to be had.
func (r *programRun) bind(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	want := []fabric.Port{0, 0, fabric.Port(3000 + 1000*e.side), fabric.Port(3001 + 1000*e.side)}[s.a%4]
	got, err := e.ep.Bind(want)
	if err != nil {
		return outcome(err)
	}
	e.state = isBound
	return fmt.Sprintf("ok, the port asked for: %v", want == 0 || got == want)
}

func (r *programRun) listen(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	err := e.ep.Listen([]int{1, 4, 2000, 0, -1}[s.a%5])
	if err == nil {
		e.state = isListening
	}
	return outcome(err)
}

// connect connects to an endpoint of either side, most often one that listens,
// and takes the new endpoint into a free slot there.
func (r *programRun) connect(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	to := r.target(e, s)
	if to == nil {
		_, err := e.ep.Connect(r.ctx, fabric.Addr{Node: 77, Port: 2000})
		r.failed(e, err)
		return "to no node: " + outcome(err)
	}
	free := r.free(to.side)
	if to.state != isListening || free < 0 || e.state != isUnbound && e.state != isBound {
		if to.state == isListening && (e.state == isUnbound || e.state == isBound) {
			return "no slot is free"
		}
		_, err := e.ep.Connect(r.ctx, to.ep.LocalAddr())
		r.failed(e, err)
		return "to one that is " + string(to.state) + ": " + outcome(err)
	}
	return r.join(e, to, free)
}

// join connects e to a listener, whose new endpoint takes a free slot.
func (r *programRun) join(e, to *programEnd, free int) string {
	connected := make(chan error, 1)
	go func() { _, err := e.ep.Connect(r.ctx, to.ep.LocalAddr()); connected <- err }()
	ep, err := to.ep.Accept(r.ctx)
	r.must("connect", <-connected)
	if r.must("accept", err); r.err != nil {
		return "hangs"
	}
	peer := &programEnd{side: to.side, ep: ep, state: isConnected, peer: e}
	e.state, e.peer = isConnected, peer
	r.ends[to.side][free] = peer
	if r.goOver != nil && e.side != peer.side {
		r.must("go over to a shared-memory path", r.goOver(r.ctx, e.ep, ep))
	}
	return fmt.Sprintf("ok, in slot %d.%d, its port the listener's: %v, its peer's port right: %v", to.side, free,
		ep.LocalAddr().Port == to.ep.LocalAddr().Port, ep.RemoteAddr().Port == e.ep.LocalAddr().Port)
}

// meet connects two new endpoints, of both sides or of one, and opens a window
// at each.
func (r *programRun) meet(_ *programEnd, s step) string {
	other := 1 - s.side
	if s.a%6 == 0 {
		other = s.side
	}
	mine := r.free(s.side)
	if mine < 0 || r.free(other) < 0 {
		return "no slot is free"
	}
	e := &programEnd{side: s.side, state: isUnbound}
	listener := &programEnd{side: other, state: isListening}
	var err error
	if e.ep, err = r.apps[s.side].Open(); err == nil {
		listener.ep, err = r.apps[other].Open()
	}
	if err == nil {
		_, err = listener.ep.Bind(0)
	}
	if err == nil {
		err = listener.ep.Listen(1)
	}
	if r.must("listen", err); r.err != nil {
		return "fails"
	}
	r.ends[s.side][mine] = e
	defer listener.ep.Close()
	free := r.free(other)
	if free < 0 {
		return "no slot is free for the peer"
	}
	joined := r.join(e, listener, free)
	if r.err == nil { // each with a window that allows everything
		joined += ", " + r.register(e, step{a: 1}) + ", " + r.register(e.peer, step{a: 2})
	}
	return joined
}

// failed keeps the port that a connect has bound.
func (r *programRun) failed(e *programEnd, err error) {
	if err != nil && e.state == isUnbound && e.ep.LocalAddr().Port != 0 {
		e.state = isBound
	}
}

// target returns the end to connect to: a listener if there is one, else any
// endpoint with a number, nil for none.
func (r *programRun) target(e *programEnd, s step) *programEnd {
	var listeners, others []*programEnd
	for _, side := range []int{1 - e.side, e.side} {
		for _, x := range r.ends[side] {
			switch {
			case x == e || x.ep == nil || x.state == isClosed || x.state == isDisconnected:
				// The port of a connection that has ended may belong to another endpoint now.
			case x.state == isListening:
				listeners = append(listeners, x)
			default:
				others = append(others, x)
			}
		}
	}
	switch {
	case len(listeners) > 0 && s.a%8 > 0:
		return listeners[s.b%uint64(len(listeners))]
	case len(others) > 0 && s.a%8 < 6:
		to := others[s.b%uint64(len(others))]
		for _, l := range listeners { // an accepted endpoint has its listener's port
			if l.ep.LocalAddr() == to.ep.LocalAddr() {
				return l
			}
		}
		return to
	}
	return nil
}

func (r *programRun) free(side int) int {
	for i, x := range r.ends[side] {
		if x.state == none || x.state == isClosed {
			return i
		}
	}
	return -1
}

func (r *programRun) tryAccept(e *programEnd, _ step) string {
	if e.ep == nil {
		return "-"
	}
	_, err := e.ep.TryAccept()
	return outcome(err)
}

// close closes an endpoint, in order: its operations are complete, and its
// peer has seen it when the next step begins.
func (r *programRun) close(e *programEnd, _ step) string {
	if e.ep == nil {
		return "-"
	}
	was := e.state
	if was == isConnected {
		r.settle(e)
		r.settle(e.peer)
	}
	err := e.ep.Close()
	e.state = isClosed
	if was == isConnected && e.peer.state == isConnected {
		r.await(e.peer, fabric.PollHup)
		e.peer.state = isDisconnected
	}
	return outcome(err)
}

// unreadMax keeps every send from waiting for its receiver.
const unreadMax = 2000

func (r *programRun) send(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	p := pattern(int(s.a%500), byte(r.n))
	if e.state == isConnected && e.peer.unread+len(p) > unreadMax {
		return "enough is unread"
	}
	var n int
	var err error
	if s.b%2 == 0 {
		n, err = e.ep.Send(r.ctx, p)
	} else {
		if e.state == isConnected { // the peer's word that there is room may be on its way
			r.await(e, fabric.PollOut)
		}
		n, err = e.ep.TrySend(p)
	}
	if err == nil && n > 0 && e.peer != nil {
		e.peer.unread += n
		r.await(e.peer, fabric.PollIn)
	}
	return fmt.Sprintf("%d of %d, %s", n, len(p), outcome(err))
}

// recv receives the bytes that were sent, or tries to if there are none.
func (r *programRun) recv(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	p := make([]byte, s.a%500)
	var n int
	var err error
	if more := e.state == isDisconnected; e.unread > 0 || more {
		if !more {
			p = p[:min(len(p), e.unread)]
		}
		n, err = e.ep.Recv(r.ctx, p)
	} else {
		n, err = e.ep.TryRecv(p)
	}
	e.unread -= n
	return fmt.Sprintf("%d of %d, %08x, %s", n, len(p), crc32.ChecksumIEEE(p[:n]), outcome(err))
}

func (r *programRun) poll(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	done, cancel := context.WithCancel(r.ctx)
	cancel()
	items := []fabric.PollItem{{Endpoint: e.ep, Events: fabric.Events(s.a % 32)}}
	n, err := r.apps[e.side].Poll(done, items)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return fmt.Sprintf("%d, %#x of %#x, %s", n, items[0].Revents, items[0].Events, outcome(err))
}

func (r *programRun) register(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	mem, err := r.apps[e.side].Alloc(int(1+s.a%3) * page)
	if err != nil {
		return outcome(err)
	}
	r.mems = append(r.mems, mem)
	p := mem.Bytes()
	copy(p, pattern(len(p), byte(r.n)))
	off := []int64{0, 0, page * int64(s.b%8), page * int64(s.b%8), fabric.FirstOffset, 100, -page, math.MaxInt64 &^ (page - 1)}[s.b>>8%8]
	prot := []fabric.Prot{rw, rw, rw, rw, fabric.ProtRead, fabric.ProtWrite, 0, 4}[s.c%8]
	flags := []fabric.MapFlags{0, fabric.MapFixed, fabric.MapFixed, 0x20}[s.c>>8%4]
	got, err := e.ep.Register(p, off, prot, flags)
	if err != nil {
		return outcome(err)
	}
	e.windows = append(e.windows, window{got, p})
	return fmt.Sprintf("ok at %#x", got)
}

// offset chooses an offset in or near one of the endpoint's windows.
func (e *programEnd) offset(v uint64) int64 {
	base := fabric.FirstOffset
	n := int64(page)
	if e != nil && len(e.windows) > 0 {
		w := e.windows[v%uint64(len(e.windows))]
		base, n = w.off, int64(len(w.mem))
	}
	in := int64(v >> 16 % uint64(n))
	return []int64{base + in, base + in, base + in, base + in&^7, base + in&^7, base + in&^7, base, base, base, base + n - 8,
		base + n, base - 8, -8, math.MaxInt64 - 7, base + n - 3, base + 4}[v>>8%16]
}

func (r *programRun) unregister(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	r.settle(e)
	if e.peer != nil {
		r.settle(e.peer)
	}
	off, n := e.offset(s.a), int64(s.b%4)*page
	if len(e.windows) > 0 && s.c%2 == 0 {
		w := e.windows[s.a%uint64(len(e.windows))]
		off, n = w.off, int64(len(w.mem))
	}
	err := e.ep.Unregister(off, n)
	if err == nil {
		left := e.windows[:0]
		for _, w := range e.windows {
			if w.off < off || w.off >= off+n {
				left = append(left, w)
			}
		}
		e.windows = left
	}
	return outcome(err)
}

var programFlags = []fabric.RMAFlags{0, 0, 0, fabric.Sync, fabric.Sync, fabric.Ordered, fabric.UseCPU, 0x10}

func (r *programRun) transfer(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	r.turn(e)
	n := int64(s.a >> 8 % 3000)
	if s.a%8 < 4 {
		n = int64(s.a >> 8 % 64)
	}
	lo, ro := e.offset(s.b), e.peer.offset(s.c)
	flags := programFlags[s.a>>32%uint64(len(programFlags))]
	buf := pattern(int(n), byte(r.n))
	var err error
	switch s.a >> 40 % 4 {
	case 0:
		err = e.ep.WriteTo(lo, n, ro, flags)
	case 1:
		err = e.ep.ReadFrom(lo, n, ro, flags)
	case 2:
		err = e.ep.VWriteTo(buf, ro, flags)
		e.bufs = append(e.bufs, buf)
	default:
		err = e.ep.VReadFrom(buf, ro, flags)
		e.bufs = append(e.bufs, buf)
	}
	return outcome(err)
}

func (r *programRun) atomic(e *programEnd, s step) string {
	return r.anyAtomic(e, s, true)
}

func (r *programRun) post(e *programEnd, s step) string {
	return r.anyAtomic(e, s, false)
}

func (r *programRun) anyAtomic(e *programEnd, s step, fetch bool) string {
	if e.ep == nil {
		return "-"
	}
	var kinds []wordCall
	for _, a := range atomics {
		if a.fetch == fetch {
			kinds = append(kinds, a)
		}
	}
	a := kinds[s.a%uint64(len(kinds))]
	r.turn(e)
	old, err := a.do(r.ctx, end{Endpoint: e.ep}, e.peer.offset(s.c), s.b)
	return fmt.Sprintf("%s: %#x, %s", a.name, old, outcome(err))
}

func (r *programRun) put(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	r.turn(e)
	n := int64(s.a >> 8 % 200)
	sig := fabric.Notice{Offset: e.peer.offset(s.c), Value: s.b}
	ro := e.peer.offset(s.c>>32 | s.c<<32)
	if s.a%2 == 0 {
		return outcome(e.ep.PutSignal(e.offset(s.b), n, ro, sig))
	}
	buf := pattern(int(n), byte(r.n))
	e.bufs = append(e.bufs, buf)
	return outcome(e.ep.VPutSignal(buf, ro, sig))
}

func (r *programRun) signal(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	by := []fabric.Side{fabric.InitSelf, fabric.InitSelf, fabric.InitPeer, 3}[s.a%4]
	if by == fabric.InitPeer { // nothing orders the peer's stores with those of this goroutine
		r.settle(e)
	}
	r.turn(e)
	err := e.ep.FenceSignal(fabric.Signal{By: by, Where: []fabric.Where{0x10, 0x20, 0x30, 0x30, 0}[s.a>>8%5],
		LocalOffset: e.offset(s.b), LocalValue: s.a, RemoteOffset: e.peer.offset(s.c), RemoteValue: s.b})
	if by == fabric.InitPeer && e.peer != nil { // the signal is the peer's operation
		e.peer.begun = true
		r.settle(e)
		r.settle(e.peer)
	}
	return outcome(err)
}

// fence waits for everything that both ends have begun, and looks at all bytes.
func (r *programRun) fence(e *programEnd, _ step) string {
	if e.ep == nil || e.peer == nil {
		return "-"
	}
	r.settle(e)
	r.settle(e.peer)
	sum := crc32.NewIEEE()
	for _, x := range []*programEnd{e, e.peer} {
		// The race detector does not know that a fence of the one end, which came
		// through a socket, is behind the stores at the other: a call there is.
		x.ep.FenceMark(fabric.InitSelf)
		for _, w := range x.windows {
			sum.Write(w.mem)
		}
		for _, p := range x.bufs {
			sum.Write(p)
		}
		x.bufs = nil
	}
	return fmt.Sprintf("%08x", sum.Sum32())
}

// fenceBy marks and waits for one side, or for an invalid mark.
func (r *programRun) fenceBy(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	m, err := e.ep.FenceMark([]fabric.Side{fabric.InitSelf, fabric.InitPeer, 0, 8}[s.a%4])
	if err != nil {
		return outcome(err)
	}
	what := ""
	if s.b%4 == 0 {
		m.Seq += 1000
		what = "invented, "
	}
	return what + outcome(e.ep.FenceWait(r.ctx, m))
}
