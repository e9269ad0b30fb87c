package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// An atomicKind is one of the operations on a remote word.
type atomicKind int

const (
	fetchAdd64 atomicKind = iota
	fetchAdd32
	swap64
	swap32
	compareSwap64
	compareSwap32
)

// An atomics load does atomic operations on one word of the responder, one after
// the other, and checks the old value of each.
type atomics struct {
	passive
	job
	ch     *channel
	ctx    context.Context
	kind   atomicKind
	shared bool // the word is that of all pairs
	there  int64

	began uint64 // the word before the first operation
	old   uint64 // what the last operation returned
}

func onWord(kind atomicKind, shared bool) builder {
	return func(ctx context.Context, _ side, ch *channel, j job) (load, error) {
		a := &atomics{job: j, ch: ch, ctx: ctx, kind: kind, shared: shared}
		op := uint64(opWindow)
		if shared {
			op = opShare
		}
		off, err := ask(ch, a.command(op))
		a.there = int64(off)
		return a, err
	}
}

func (a *atomics) command(op uint64) command { return command{Op: op, Size: 8, Count: 1, Seed: a.seed} }

func (a *atomics) begin(int64) (err error) {
	if a.shared {
		a.began, err = ask(a.ch, a.command(opWord))
		a.old = a.began
		return err
	}
	_, err = ask(a.ch, a.command(opClear))
	return err
}

func (a *atomics) op(i int64) (err error) {
	switch a.kind {
	case fetchAdd32:
		var old uint32
		old, err = a.ch.ep.FetchAdd32(a.ctx, a.there, 1)
		a.old = uint64(old)
	case swap64:
		a.old, err = a.ch.ep.Swap64(a.ctx, a.there, uint64(i)+1)
	case swap32:
		var old uint32
		old, err = a.ch.ep.Swap32(a.ctx, a.there, uint32(i)+1)
		a.old = uint64(old)
	case compareSwap32:
		var old uint32
		old, err = a.ch.ep.CompareAndSwap32(a.ctx, a.there, uint32(i), uint32(i)+1)
		a.old = uint64(old)
	case compareSwap64:
		a.old, err = a.ch.ep.CompareAndSwap64(a.ctx, a.there, uint64(i), uint64(i)+1)
	default:
		before := a.old
		a.old, err = a.ch.ep.FetchAdd64(a.ctx, a.there, 1)
		if err == nil && a.shared && i > 0 && a.old <= before {
			err = fmt.Errorf("a word that only grows was %d and then %d", before, a.old)
		}
	}
	return err
}

// check implements load: every operation raises the word by one, if nobody else
// does.
func (a *atomics) check(i int64) (int64, error) {
	if !a.shared && a.old != uint64(i) {
		return 1, nil
	}
	return 0, nil
}

// verify checks that no addition of any pair is lost.
func (a *atomics) verify(n int64) (int64, error) {
	if !a.shared {
		return 0, nil
	}
	now, err := ask(a.ch, a.command(opWord))
	if want := uint64(n * max(a.pairs, 1)); err == nil && now-a.began != want {
		return 1, nil
	}
	return 0, err
}

// atomicWindow is how many additions atomic_rate has under way, unless the run
// says so.
const atomicWindow = 16

// An adders load adds to one word from several goroutines at once.
type adders struct{ atomics }

func newAdders(ctx context.Context, s side, ch *channel, j job) (load, error) {
	l, err := onWord(fetchAdd64, false)(ctx, s, ch, j)
	if err != nil {
		return nil, err
	}
	return &adders{*l.(*atomics)}, nil
}

// run implements runner.
func (a *adders) run(n int64, s *sample) error {
	window := a.window
	if window == 0 {
		window = atomicWindow
	}
	errs := make([]error, window)
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for w := range window {
		all.Go(func() {
			for next.Add(1) <= n && errs[w] == nil {
				_, errs[w] = a.ch.ep.FetchAdd64(a.ctx, a.there, 1)
			}
		})
	}
	all.Wait()
	s.elapsed = time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	old, err := a.ch.ep.FetchAdd64(a.ctx, a.there, 0)
	if old != uint64(n) {
		s.errors++
	}
	return err
}

// A posted load adds to one word without being told what it was.
type posted struct{ atomics }

func onPosted(kind atomicKind) builder {
	return func(ctx context.Context, s side, ch *channel, j job) (load, error) {
		l, err := onWord(kind, false)(ctx, s, ch, j)
		if err != nil {
			return nil, err
		}
		return &posted{*l.(*atomics)}, nil
	}
}

func (p *posted) op(int64) error {
	if p.kind == fetchAdd32 {
		return p.ch.ep.Add32(p.there, 1)
	}
	return p.ch.ep.Add64(p.there, 1)
}

// drain waits for the last addition.
func (p *posted) drain() (int64, error) {
	m, err := p.ch.ep.FenceMark(fabric.InitSelf)
	if err != nil {
		return 0, err
	}
	return 0, p.ch.ep.FenceWait(p.ctx, m)
}

// verify checks that none is lost. An addition of 32 bits leaves the other half of
// the word alone, unless it wraps.
func (p *posted) verify(n int64) (int64, error) {
	sum, err := p.ch.ep.FetchAdd64(p.ctx, p.there, 0)
	want := uint64(n)
	if p.kind == fetchAdd32 {
		want = uint64(uint32(n))
	}
	if err == nil && sum != want {
		return 1, nil
	}
	return 0, err
}

// A signals load sends a signal, which the responder answers with one.
type signals struct {
	passive
	ch          *channel
	memory      *fabric.Memory
	word        *atomic.Uint64
	here, there int64
	last        uint64 // value of the last signal
}

func newSignals(_ context.Context, _ side, ch *channel, _ job) (load, error) {
	s := &signals{ch: ch}
	var err error
	if s.memory, s.here, err = register(ch.node, ch.ep, 8); err != nil {
		return nil, err
	}
	s.word = wordAt(s.memory.Bytes())
	off, err := ask(ch, command{Op: opWindow, Size: 8, Count: 1})
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	s.there = int64(off)
	return s, nil
}

func (s *signals) begin(n int64) error {
	_, err := s.ch.Write(command{Op: opSignal, Size: 1, Count: n, Seed: s.last, Index: s.here}.bytes())
	return err
}

func (s *signals) op(int64) error {
	s.last++
	err := s.ch.ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: s.there, RemoteValue: s.last})
	if err != nil {
		return err
	}
	return await(nil, func() bool { return s.word.Load() >= s.last })
}

func (s *signals) check(int64) (int64, error) {
	if s.word.Load() != s.last {
		return 1, nil
	}
	return 0, nil
}

func (s *signals) drain() (int64, error) {
	wrong, err := readWord(s.ch)
	return int64(wrong), err
}

func (s *signals) end() error { return s.memory.Close() }

// A registering load opens windows and removes them again; one of both is timed.
type registering struct {
	passive
	ch     *channel
	memory *fabric.Memory
	remove bool // to remove is what is timed
	off    int64
}

func onRegistration(remove bool) builder {
	return func(_ context.Context, _ side, ch *channel, j job) (load, error) {
		mem, err := ch.node.Alloc(int(pages(j.size)))
		return &registering{ch: ch, memory: mem, remove: remove}, err
	}
}

// pages rounds a size up to whole pages.
func pages(size int64) int64 {
	return (size + fabric.PageSize - 1) / fabric.PageSize * fabric.PageSize
}

func (r *registering) register() (err error) {
	r.off, err = r.ch.ep.Register(r.memory.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	return err
}

func (r *registering) unregister() error {
	return r.ch.ep.Unregister(r.off, int64(len(r.memory.Bytes())))
}

func (r *registering) prepare(int64) error {
	if r.remove {
		return r.register()
	}
	return nil
}

func (r *registering) op(int64) error {
	if r.remove {
		return r.unregister()
	}
	return r.register()
}

func (r *registering) check(int64) (int64, error) {
	if r.remove {
		return 0, nil
	}
	return 0, r.unregister()
}

func (r *registering) end() error { return r.memory.Close() }

// A mapping load maps the responder's window and unmaps it, which is timed, and
// checks what it sees there.
type mapping struct {
	rmaLoad
	m *fabric.Mapping
}

func newMapping(ctx context.Context, _ side, ch *channel, j job) (load, error) {
	l, err := newRMA(ctx, ch, j, rmaLoad{read: true, heap: true})
	if err != nil {
		return nil, err
	}
	return &mapping{rmaLoad: *l}, nil
}

func (m *mapping) prepare(int64) error { return nil }

func (m *mapping) op(int64) (err error) {
	m.m, err = m.ch.ep.Mmap(m.there, pages(m.size), fabric.ProtRead)
	return err
}

func (m *mapping) check(int64) (wrong int64, err error) {
	if m.job.check {
		wrong = m.fill.wrong(m.m.Bytes(), 1)
	}
	return wrong, m.m.Close()
}

// A mapped load copies into a mapping of the responder's window, or out of it.
type mapped struct {
	rmaLoad
	m *fabric.Mapping
}

func onMapped(read bool) builder {
	return func(ctx context.Context, _ side, ch *channel, j job) (load, error) {
		l, err := newRMA(ctx, ch, j, rmaLoad{read: read, heap: true, style: streamed})
		if err != nil {
			return nil, err
		}
		m, err := ch.ep.Mmap(l.there, pages(l.size*l.slots), fabric.ProtRead|fabric.ProtWrite)
		return &mapped{rmaLoad: *l, m: m}, err
	}
}

func (s *mapped) op(i int64) error {
	at := i % s.slots * s.size
	own, peers := s.mem[at:at+s.size], s.m.Bytes()[at:at+s.size]
	if s.read {
		copy(own, peers)
	} else {
		copy(peers, own)
	}
	return nil
}

func (s *mapped) drain() (int64, error) { return 0, nil }

func (s *mapped) end() error { return errors.Join(s.m.Close(), s.rmaLoad.end()) }

// mirrorAt is where the responder answers in the window of mmap_rtt, in bytes: a
// cache line of its own.
const (
	mirrorAt   = 64
	mirrorSize = 2 * mirrorAt
)

// A mirrored load stores a number into a mapping of the responder's window and
// waits until the responder, which looks at its own memory, has stored it beside.
type mirrored struct {
	passive
	ch           *channel
	m            *fabric.Mapping
	ours, theirs *atomic.Uint64
	last         uint64 // the last number
}

func newMirrored(_ context.Context, _ side, ch *channel, _ job) (load, error) {
	off, err := ask(ch, command{Op: opWindow, Size: mirrorSize, Count: 1})
	if err != nil {
		return nil, err
	}
	m, err := ch.ep.Mmap(int64(off), pages(mirrorSize), fabric.ProtRead|fabric.ProtWrite)
	if err != nil {
		return nil, err
	}
	return &mirrored{ch: ch, m: m, ours: wordAt(m.Bytes()), theirs: wordAt(m.Bytes()[mirrorAt:])}, nil
}

func (m *mirrored) begin(n int64) error {
	_, err := m.ch.Write(command{Op: opMirror, Size: 1, Count: n, Seed: m.last}.bytes())
	return err
}

func (m *mirrored) op(int64) error {
	m.last++
	m.ours.Store(m.last)
	return await(nil, func() bool { return m.theirs.Load() >= m.last })
}

func (m *mirrored) check(int64) (int64, error) {
	if m.theirs.Load() != m.last {
		return 1, nil
	}
	return 0, nil
}

func (m *mirrored) drain() (int64, error) {
	wrong, err := readWord(m.ch)
	return int64(wrong), err
}

func (m *mirrored) end() error { return m.m.Close() }
