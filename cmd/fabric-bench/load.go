package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/fabricd/fabricd/fabric"
)

// A job is what one repetition of a test is to do.
type job struct {
	size  int64
	seed  uint64 // of the contents
	check bool   // fill and check all bytes

	pairs  int64   // how many do this at once; 0: one
	window int64   // operations under way at once; 0: what the test does by itself
	rate   float64 // operations a second that a test of a fixed rate begins; 0: its default
}

// wireSeed is the seed that the responder gets: none if it need not check.
func (j job) wireSeed() uint64 {
	if j.check {
		return j.seed
	}
	return 0
}

// A load is the operations of one repetition, on a channel of its own. Only op
// and drain are timed; of bandwidth, prepare is too.
type load interface {
	// begin announces that n operations follow, before the warm-up and again
	// before what is timed.
	begin(n int64) error
	// prepare readies operation i.
	prepare(i int64) error
	// op does operation i.
	op(i int64) error
	// check returns how many bytes or messages of operation i are wrong.
	check(i int64) (wrong int64, err error)
	// drain waits until all that was begun has been delivered, and returns how
	// much of it was wrong.
	drain() (wrong int64, err error)
	// end frees what the load holds.
	end() error
}

// passive is the methods that a load has no use for.
type passive struct{}

func (passive) begin(int64) error     { return nil }
func (passive) prepare(int64) error   { return nil }
func (passive) drain() (int64, error) { return 0, nil }
func (passive) end() error            { return nil }

// messages sends messages and receives what answers them.
type messages struct {
	passive
	job
	ch     *channel
	kind   uint64 // opEcho, opSink, opAck, opReply, opSource
	fill   *pattern
	out    []byte // what an operation sends; nil: nothing
	in     []byte // what it receives; nil: nothing
	echoed bool   // what comes back is what was sent
	token  []byte // what the responder sends after every window; nil: nothing
}

func newMessages(ch *channel, j job, kind uint64) *messages {
	m := &messages{job: j, ch: ch, kind: kind, fill: newPattern(j.seed, int(j.size))}
	payload := func() []byte { return make([]byte, j.size) }
	token := make([]byte, tokenSize)
	switch kind {
	case opEcho:
		m.out, m.in, m.echoed = m.fill.message(0), payload(), true
	case opSink:
		m.out = m.fill.message(0)
		if j.window > 0 {
			m.token = token
		}
	case opAck:
		m.out, m.in = m.fill.message(0), token
	case opReply:
		m.out, m.in = token, payload()
	case opSource:
		m.in = payload()
	}
	return m
}

func (m *messages) begin(n int64) error {
	c := command{Op: m.kind, Size: m.size, Count: n, Seed: m.wireSeed()}
	if m.token != nil {
		c.Index = m.window
	}
	_, err := m.ch.Write(c.bytes())
	return err
}

func (m *messages) prepare(i int64) error {
	if m.job.check && (m.kind == opEcho || m.kind == opSink) {
		m.out = m.fill.next(m.out, i)
	}
	return nil
}

func (m *messages) op(i int64) error {
	if m.kind == opSource && i == 0 { // the responder waits for it
		if _, err := m.ch.Write(make([]byte, tokenSize)); err != nil {
			return err
		}
	}
	if m.out != nil {
		if _, err := m.ch.Write(m.out); err != nil {
			return err
		}
	}
	in := m.in
	if m.token != nil && (i+1)%m.window == 0 {
		in = m.token
	}
	if in != nil {
		_, err := io.ReadFull(m.ch, in)
		return err
	}
	return nil
}

func (m *messages) check(int64) (int64, error) {
	if m.job.check && m.echoed && !bytes.Equal(m.in, m.out) {
		return 1, nil
	}
	return 0, nil
}

func (m *messages) drain() (int64, error) {
	if m.kind != opSink {
		return 0, nil
	}
	wrong, err := readWord(m.ch)
	return int64(wrong), err
}

// An rmaLoad writes to or reads from the responder's window.
type rmaLoad struct {
	job
	ch     *channel
	ctx    context.Context
	read   bool
	heap   bool // the own side is not registered
	style  rmaStyle
	flags  fabric.RMAFlags // of every transfer, beside those of its style
	window int64           // operations under way at once, of stream
	slots  int64           // that these use in turn

	fill        *pattern
	memory      *fabric.Memory
	mem         []byte
	here, there int64 // offsets of the two windows
	last        fabric.Mark
}

// An rmaStyle is how an operation completes.
type rmaStyle int

const (
	synced   rmaStyle = iota // the call returns when it has completed
	fenced                   // a mark is taken behind it and waited for
	streamed                 // many are under way
)

// streamSpan bounds the memory, in bytes, over which a stream of operations
// goes in turn, so that it measures the way and not the caches.
const streamSpan = 1 << 20

// slotsOf returns how many slots a stream of operations of this size goes over.
func slotsOf(size int64) int64 { return min(max(streamSpan/size, 1), minUnderWay) }

// newRMA returns a load of transfers that are as in model: read, heap, style.
func newRMA(ctx context.Context, ch *channel, j job, model rmaLoad) (_ *rmaLoad, err error) {
	l := &model
	l.job, l.ch, l.ctx, l.slots, l.fill = j, ch, ctx, 1, newPattern(j.seed, int(j.size))
	l.window = cmp.Or(j.window, underWay(j.size))
	if l.style == streamed {
		l.slots = slotsOf(j.size)
	}
	if l.heap {
		l.mem = make([]byte, j.size*l.slots)
	} else if l.memory, l.here, err = register(ch.node, ch.ep, j.size*l.slots); err != nil {
		return nil, err
	} else {
		l.mem = l.memory.Bytes()
	}
	off, err := ask(ch, l.command(opWindow, 0))
	if err != nil {
		return nil, errors.Join(err, l.end())
	}
	l.there = int64(off)
	return l, nil
}

func (l *rmaLoad) command(op uint64, index int64) command {
	return command{Op: op, Size: l.size, Count: l.slots, Seed: l.seed, Index: index}
}

func (l *rmaLoad) begin(int64) error {
	if l.read {
		wipe(l.mem)
		_, err := ask(l.ch, l.command(opFill, 0))
		return err
	}
	l.fill.fill(l.mem, l.slots)
	_, err := ask(l.ch, l.command(opClear, 0))
	return err
}

func (l *rmaLoad) prepare(i int64) error {
	if !l.job.check || l.style == streamed {
		return nil
	}
	if !l.read {
		l.fill.put(l.mem, i)
		return nil
	}
	_, err := ask(l.ch, l.command(opStore, i))
	return err
}

func (l *rmaLoad) op(i int64) error {
	switch l.style {
	case synced:
		return l.transfer(0, fabric.Sync)
	case fenced:
		if err := l.transfer(0, 0); err != nil {
			return err
		}
		return l.fence()
	}
	if half := max(l.window/2, 1); i%half == 0 {
		// The half before the one just begun may still be under way.
		if err := l.turn(); err != nil {
			return err
		}
	}
	return l.transfer(i%l.slots*l.size, 0)
}

func (l *rmaLoad) transfer(at int64, flags fabric.RMAFlags) error {
	flags |= l.flags
	switch own := l.mem[at : at+l.size]; {
	case l.heap && l.read:
		return l.ch.ep.VReadFrom(own, l.there+at, flags)
	case l.heap:
		return l.ch.ep.VWriteTo(own, l.there+at, flags)
	case l.read:
		return l.ch.ep.ReadFrom(l.here+at, l.size, l.there+at, flags)
	}
	return l.ch.ep.WriteTo(l.here+at, l.size, l.there+at, flags)
}

// turn marks what was begun, and waits for what was begun before the last
// turn.
func (l *rmaLoad) turn() error {
	m, err := l.ch.ep.FenceMark(fabric.InitSelf)
	if err == nil && l.last != (fabric.Mark{}) {
		err = l.ch.ep.FenceWait(l.ctx, l.last)
	}
	l.last = m
	return err
}

func (l *rmaLoad) fence() error {
	m, err := l.ch.ep.FenceMark(fabric.InitSelf)
	if err != nil {
		return err
	}
	return l.ch.ep.FenceWait(l.ctx, m)
}

func (l *rmaLoad) check(i int64) (int64, error) {
	if !l.job.check || l.style == streamed {
		return 0, nil
	}
	if l.read {
		if !l.fill.is(l.mem[:l.size], i) {
			return 1, nil
		}
		return 0, nil
	}
	wrong, err := ask(l.ch, l.command(opCompare, i))
	return int64(wrong), err
}

func (l *rmaLoad) drain() (int64, error) {
	if l.style != streamed {
		return 0, nil
	}
	return 0, l.fence()
}

// verify checks every slot after a stream. It is not timed.
func (l *rmaLoad) verify(ops int64) (int64, error) {
	if !l.job.check || l.style != streamed || ops < l.slots {
		return 0, nil
	}
	if l.read {
		return l.fill.wrong(l.mem, l.slots), nil
	}
	wrong, err := ask(l.ch, l.command(opVerify, 0))
	return int64(wrong), err
}

// end gives the memory back; the window keeps its pages until the endpoint has
// closed.
func (l *rmaLoad) end() error {
	if l.memory == nil {
		return nil
	}
	return l.memory.Close()
}

// closes closes connections, one after the other, that it has opened before.
type closes struct{ connects }

func onCloses(ctx context.Context, s side, _ *channel, _ job) (load, error) {
	return &closes{connects{ctx: ctx, side: s}}, nil
}

func (c *closes) prepare(i int64) error { return c.connects.op(i) }

func (c *closes) op(int64) error {
	ch := c.ch
	c.ch = nil
	return ch.close()
}

func (c *closes) check(int64) (int64, error) { return 0, nil }

// connects opens connections, one after the other.
type connects struct {
	passive
	ctx  context.Context
	side side
	ch   *channel
}

func (c *connects) op(int64) (err error) {
	c.ch, err = c.side.dial(c.ctx, 0)
	return err
}

func (c *connects) check(int64) (int64, error) {
	ch := c.ch
	c.ch = nil
	return 0, ch.close()
}
