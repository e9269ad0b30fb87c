package fabric_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/rma"
)

var linearSeed = flag.Uint64("linear-seed", 0, "what the clients of TestAtomicsAreLinearizable do; 0: chosen at random, and printed")

// linearProviders are the transports between the nodes of a history.
var linearProviders = []struct {
	name string
	opts []fabrictest.Option
}{
	{"mem", nil},
	{"mem with delays", []fabrictest.Option{fabrictest.Delay(50*time.Microsecond, 200*time.Microsecond, 1)}},
	{"quic", []fabrictest.Option{fabrictest.QUIC()}},
	{"tcp", []fabrictest.Option{fabrictest.TCP()}},
	{"tcp plaintext", []fabrictest.Option{fabrictest.TCPPlaintext()}},
	{"tcp, nothing between", []fabrictest.Option{fabrictest.TCP(), fabrictest.Unbroken()}},
	{"quic from one, tcp from the other", []fabrictest.Option{fabrictest.Mixed()}},
}

// The words of a history, in a window: two of 64 bits, in one line, and one of
// 32 bits in another.
var linearWords = []struct {
	off   int64
	width uint8
}{{0, 8}, {8, 8}, {1024, 4}}

// A wordOp is one call on one word. A load is an add of nothing.
type wordOp struct {
	word   int
	atomic rma.Atomic // without an offset
}

// A wordResult is the result of a call: the word's old value, only whether it
// was the one compared with, or nothing.
type wordResult struct {
	value   uint64
	known   bool // value is the old value
	decided bool // swapped reports whether that was Compare
	swapped bool
}

// atomicWord is the model of one word.
var atomicWord = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, len(linearWords))
		for _, op := range all {
			w := op.Input.(wordOp).word
			parts[w] = append(parts[w], op)
		}
		return parts
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		old, in, out := state.(uint64), input.(wordOp), output.(wordResult)
		if out.known && out.value != old || out.decided && out.swapped != (old == in.atomic.Compare) {
			return false, old
		}
		return true, rma.Apply(old, in.atomic)
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// A wordClient does operations on the words. After an error it is unknown whether
// the last one was done.
type wordClient func(ctx context.Context, op wordOp, rng *rand.Rand) (wordResult, error)

// remoteClient works through an endpoint whose peer has the words at off, and
// bytes at data that are this client's alone.
func remoteClient(ep *fabric.Endpoint, off, data int64) wordClient {
	return func(ctx context.Context, op wordOp, rng *rand.Rand) (wordResult, error) {
		at, a := off+linearWords[op.word].off, op.atomic
		if a.Op == rma.AtomicCAS || rng.IntN(2) == 0 {
			old, err := fetchWord(ctx, ep, at, a)
			return wordResult{value: old, known: true}, err
		}
		err := postWord(ep, data, at, a, rng)
		if err == nil {
			var m fabric.Mark
			if m, err = ep.FenceMark(fabric.InitSelf); err == nil {
				err = ep.FenceWait(ctx, m)
			}
		}
		return wordResult{}, err
	}
}

func fetchWord(ctx context.Context, ep *fabric.Endpoint, at int64, a rma.Atomic) (uint64, error) {
	if a.Width == 4 {
		old, err := fetchWord32(ctx, ep, at, a)
		return uint64(old), err
	}
	switch a.Op {
	case rma.AtomicAdd:
		return ep.FetchAdd64(ctx, at, a.Operand)
	case rma.AtomicAnd:
		return ep.FetchAnd64(ctx, at, a.Operand)
	case rma.AtomicOr:
		return ep.FetchOr64(ctx, at, a.Operand)
	case rma.AtomicXor:
		return ep.FetchXor64(ctx, at, a.Operand)
	case rma.AtomicSwap:
		return ep.Swap64(ctx, at, a.Operand)
	case rma.AtomicMin:
		return ep.FetchMin64(ctx, at, a.Operand)
	case rma.AtomicMax:
		return ep.FetchMax64(ctx, at, a.Operand)
	}
	return ep.CompareAndSwap64(ctx, at, a.Compare, a.Operand)
}

func fetchWord32(ctx context.Context, ep *fabric.Endpoint, at int64, a rma.Atomic) (uint32, error) {
	v := uint32(a.Operand)
	switch a.Op {
	case rma.AtomicAdd:
		return ep.FetchAdd32(ctx, at, v)
	case rma.AtomicAnd:
		return ep.FetchAnd32(ctx, at, v)
	case rma.AtomicOr:
		return ep.FetchOr32(ctx, at, v)
	case rma.AtomicXor:
		return ep.FetchXor32(ctx, at, v)
	case rma.AtomicSwap:
		return ep.Swap32(ctx, at, v)
	case rma.AtomicMin:
		return ep.FetchMin32(ctx, at, v)
	case rma.AtomicMax:
		return ep.FetchMax32(ctx, at, v)
	}
	return ep.CompareAndSwap32(ctx, at, uint32(a.Compare), v)
}

// postWord does a without a result. A store of 64 bits may also be a signal, or the
// word of a put of some bytes.
func postWord(ep *fabric.Endpoint, data, at int64, a rma.Atomic, rng *rand.Rand) error {
	v := a.Operand
	if a.Width == 4 {
		return postWord32(ep, at, a)
	}
	switch a.Op {
	case rma.AtomicAdd:
		return ep.Add64(at, v)
	case rma.AtomicAnd:
		return ep.And64(at, v)
	case rma.AtomicOr:
		return ep.Or64(at, v)
	case rma.AtomicXor:
		return ep.Xor64(at, v)
	case rma.AtomicMin:
		return ep.Min64(at, v)
	case rma.AtomicMax:
		return ep.Max64(at, v)
	}
	switch rng.IntN(3) {
	case 0:
		return ep.VPutSignal(make([]byte, 100), data, fabric.Notice{Offset: at, Value: v})
	case 1:
		return ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: at, RemoteValue: v})
	}
	return ep.Store64(at, v)
}

func postWord32(ep *fabric.Endpoint, at int64, a rma.Atomic) error {
	v := uint32(a.Operand)
	switch a.Op {
	case rma.AtomicAdd:
		return ep.Add32(at, v)
	case rma.AtomicAnd:
		return ep.And32(at, v)
	case rma.AtomicOr:
		return ep.Or32(at, v)
	case rma.AtomicXor:
		return ep.Xor32(at, v)
	case rma.AtomicMin:
		return ep.Min32(at, v)
	case rma.AtomicMax:
		return ep.Max32(at, v)
	}
	return ep.Store32(at, v)
}

// localClient works on the words in memory that it can touch, with loads,
// stores, adds and swaps; everything else becomes a compare-and-swap.
func localClient(t *testing.T, p []byte) wordClient {
	return func(_ context.Context, op wordOp, _ *rand.Rand) (wordResult, error) {
		a := op.atomic
		if a.Width == 4 {
			w, err := fabric.Word32At(p, linearWords[op.word].off)
			if err != nil {
				t.Error(err)
			}
			return onWord(a, wordOf[uint32](w)), nil
		}
		w, err := fabric.Word64At(p, linearWords[op.word].off)
		if err != nil {
			t.Error(err)
		}
		return onWord(a, wordOf[uint64](w)), nil
	}
}

// wordOf has the common methods of Word32 and Word64.
type wordOf[V uint32 | uint64] interface {
	Load() V
	Store(V)
	Add(V) V
	Swap(V) V
	CompareAndSwap(old, value V) bool
}

func onWord[V uint32 | uint64](a rma.Atomic, w wordOf[V]) wordResult {
	v := V(a.Operand)
	switch {
	case a.Op == rma.AtomicAdd && v == 0:
		return wordResult{value: uint64(w.Load()), known: true}
	case a.Op == rma.AtomicAdd:
		return wordResult{value: uint64(w.Add(v) - v), known: true}
	case a.Op == rma.AtomicSwap && v%2 == 0:
		w.Store(v)
		return wordResult{}
	case a.Op == rma.AtomicSwap:
		return wordResult{value: uint64(w.Swap(v)), known: true}
	case a.Op == rma.AtomicCAS:
		return wordResult{decided: true, swapped: w.CompareAndSwap(V(a.Compare), v)}
	}
	for {
		if old := w.Load(); w.CompareAndSwap(old, V(rma.Apply(uint64(old), a))) {
			return wordResult{value: uint64(old), known: true}
		}
	}
}

// drawOp draws an operation. It compares with the value that the client has seen
// last, which is the word's value often enough.
func drawOp(rng *rand.Rand, seen []uint64) wordOp {
	op := wordOp{word: rng.IntN(len(linearWords))}
	op.atomic = rma.Atomic{Op: rma.AtomicOp(1 + rng.IntN(8)), Width: linearWords[op.word].width,
		Operand: rng.Uint64N(8), Compare: seen[op.word]}
	if rng.IntN(4) == 0 {
		op.atomic.Op, op.atomic.Operand = rma.AtomicAdd, 0 // a load
	}
	if rng.IntN(8) == 0 {
		op.atomic.Operand = math.MaxUint64 >> (64 - 8*op.atomic.Width) // carries, and all bits
	}
	return op
}

// A wordHistory has the operations of all clients of one cluster.
type wordHistory struct {
	clock  atomic.Int64 // a moment is a number of its own
	middle func()       // called once, in the middle
	begun  atomic.Int64
	turns  chan struct{} // one for each operation that a remote client begins

	mu   sync.Mutex // guards ops
	ops  []porcupine.Operation
	open []porcupine.Operation // whose results are unknown
	err  error                 // of the last of them
}

// opsEach is how many operations a remote client begins.
const opsEach = 120

// do has a client do one operation, and reports whether it is known to be done.
func (h *wordHistory) do(ctx context.Context, id int, c wordClient, rng *rand.Rand, seen []uint64) bool {
	op := porcupine.Operation{ClientId: id, Input: drawOp(rng, seen), Call: h.clock.Add(1)}
	in := op.Input.(wordOp)
	out, err := c(ctx, in, rng)
	op.Return = h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		op.Output = wordResult{}
		h.open, h.err = append(h.open, op), err
		return false
	}
	op.Output = out
	h.ops = append(h.ops, op)
	if out.known {
		seen[in.word] = rma.Apply(out.value, in.atomic)
	}
	return true
}

// remote runs a client through an endpoint until it has done enough, or an
// operation ends in the dark.
func (h *wordHistory) remote(ctx context.Context, id int, c wordClient, rng *rand.Rand) {
	seen := make([]uint64, len(linearWords))
	for range opsEach {
		select {
		case h.turns <- struct{}{}: // while it is under way
		default:
		}
		if h.begun.Add(1) == opsEach {
			h.middle()
		}
		if !h.do(ctx, id, c, rng, seen) {
			return
		}
	}
}

// local runs a client that accesses the words itself, once for each operation of the
// others: otherwise it would end before they had begun.
func (h *wordHistory) local(ctx context.Context, id int, c wordClient, rng *rand.Rand) {
	seen := make([]uint64, len(linearWords))
	for range h.turns {
		h.do(ctx, id, c, rng, seen)
	}
}

// check looks for an order of the operations that the words could have done
// one after the other. An operation with an unknown result may have been done
// at any later time, or never, which is the same as after all other operations.
func (h *wordHistory) check(t *testing.T) {
	t.Helper()
	all := h.ops
	for _, op := range h.open {
		op.Return = h.clock.Add(1)
		all = append(all, op)
	}
	res, info := porcupine.CheckOperationsVerbose(atomicWord, all, time.Minute)
	if res == porcupine.Ok {
		return
	}
	t.Errorf("a history of %d operations, %d of them without an end, is %s", len(all), len(h.open), res)
	path := t.ArtifactDir() + "/history.html"
	if err := porcupine.VisualizePath(atomicWord, info, path); err == nil {
		t.Logf("the history is in %s", path)
	}
}

// TestAtomicsAreLinearizable lets clients of every kind of Node, near and far, act
// on a few words of one window: through endpoints, through a mapping, and the
// owner of the memory by itself. Their results must fit an order in which the operations
// happened one after the other. In half of the histories connections end in the middle.
func TestAtomicsAreLinearizable(t *testing.T) {
	seed := *linearSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-linear-seed %d", seed)
	for _, provider := range linearProviders {
		for owner, mode := range apiModes {
			for trouble, strike := range linearTroubles {
				t.Run(provider.name+"/owner "+owner+"/"+trouble, func(t *testing.T) {
					c := fabrictest.NewCluster(t, 3, provider.opts...)
					linearHistory(t, c, mode(t, c, 0), strike, seed)
				})
			}
		}
	}
}

// linearTroubles are the disturbances in the middle of a history. ends are the
// owner's ends of the connections.
var linearTroubles = map[string]func(c *fabrictest.Cluster, ends []*fabric.Endpoint){
	"no trouble": nil,
	"half of the connections end": func(_ *fabrictest.Cluster, ends []*fabric.Endpoint) {
		for i := 0; i < len(ends); i += 2 {
			ends[i].Close()
		}
	},
	"another node crashes": func(c *fabrictest.Cluster, _ []*fabric.Endpoint) { c.Kill(1) },
}

func linearHistory(t *testing.T, c *fabrictest.Cluster, owner *fabric.Node, strike func(*fabrictest.Cluster, []*fabric.Endpoint), seed uint64) {
	trouble := strike != nil
	p := gather(t, c, owner)
	var remotes, locals []wordClient
	for i, ep := range p.from {
		remotes = append(remotes, remoteClient(ep, p.off[i], p.off[i]+2048+int64(128*i)))
	}
	for _, mem := range p.views {
		locals = append(locals, localClient(t, mem))
	}
	h := runClients(t, remotes, locals, func() {
		if trouble {
			strike(c, p.at)
		}
	}, seed)
	h.check(t)
	if len(h.open) > 0 && !trouble {
		t.Errorf("%d operations failed on connections in order: %v", len(h.open), h.err)
	}
	if got := binary.NativeEndian.Uint64(p.views[0][16:]); got != 0 {
		t.Errorf("the word behind the words is %#x", got)
	}
}

// A pageUsers is all applications that access one page: its owner, five applications
// that are connected to it, on its node, another and a third one, and those of them
// that have mapped it.
type pageUsers struct {
	at, from []*fabric.Endpoint // of each connection
	off      []int64            // of the page, for from
	views    [][]byte           // the owner's and the mappings
}

func gather(t *testing.T, c *fabrictest.Cluster, owner *fabric.Node) (p pageUsers) {
	t.Helper()
	mem, err := owner.Alloc(fabric.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	p.views = append(p.views, mem.Bytes())
	for _, app := range []*fabric.Node{attacher(t, c, 0)(), c.Node(1), attacher(t, c, 1)(), c.App(0, false), c.Node(2)} {
		at, from := joined(t, owner, app)
		off, err := at.Register(mem.Bytes(), 0, rw, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.at, p.from, p.off = append(p.at, at), append(p.from, from), append(p.off, off)
		// On one node, memory in a file can be mapped by an attached application, that of
		// a process by an application in it.
		switch m, err := from.Mmap(off, fabric.PageSize, rw); {
		case err == nil:
			t.Cleanup(func() { m.Close() })
			p.views = append(p.views, m.Bytes())
		case !errors.Is(err, syscall.EOPNOTSUPP):
			t.Fatal(err)
		}
	}
	if len(p.views) < 2 {
		t.Error("nobody has mapped the page")
	}
	return p
}

// TestNoUpdateIsLost has all applications add to two words, so often that an atomic
// in two steps, however short, soon loses an update.
func TestNoUpdateIsLost(t *testing.T) {
	for _, provider := range linearProviders {
		for owner, mode := range apiModes {
			t.Run(provider.name+"/owner "+owner, func(t *testing.T) {
				c := fabrictest.NewCluster(t, 3, provider.opts...)
				p := gather(t, c, mode(t, c, 0))
				want := addUntilAllHaveAdded(t, p)
				if got := fabric.LoadUint64(p.views[0]); got != want {
					t.Errorf("%d were added to the word, which is %d", want, got)
				}
				half, err := fabric.Word32At(p.views[0], 64)
				if err != nil {
					t.Fatal(err)
				}
				if got := half.Load(); got != uint32(want) {
					t.Errorf("%d were added to the word of 32 bits, which is %d", want, got)
				}
			})
		}
	}
}

// addUntilAllHaveAdded adds ones to the words at 0 and 64 from everywhere, and
// returns how many. A goroutine with a mapping adds many for each call of the
// others, and rests between: it would keep the processor from them.
func addUntilAllHaveAdded(t *testing.T, p pageUsers) uint64 {
	const calls, burst = 200, 2000
	turns := make(chan struct{}, len(p.views))
	var far, near sync.WaitGroup
	var counted atomic.Uint64
	for i, ep := range p.from {
		far.Go(func() {
			for range calls {
				select {
				case turns <- struct{}{}:
				default:
				}
				if err := errors.Join(ep.Add64(p.off[i], 1), ep.Add32(p.off[i]+64, 1)); err != nil {
					t.Error(err)
					return
				}
				counted.Add(1)
			}
			m, err := ep.FenceMark(fabric.InitSelf)
			if err == nil {
				err = ep.FenceWait(t.Context(), m)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for _, mem := range p.views {
		w, err := fabric.Word64At(mem, 0)
		half, err2 := fabric.Word32At(mem, 64)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		near.Go(func() {
			for range turns {
				for range burst {
					w.Add(1)
					half.Add(1)
				}
				counted.Add(burst)
			}
		})
	}
	far.Wait()
	close(turns)
	near.Wait()
	return counted.Load()
}

// runClients runs all clients at the same time and middle beside them.
func runClients(t *testing.T, remotes, locals []wordClient, middle func(), seed uint64) *wordHistory {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // only a hang uses it up
	defer cancel()
	var near, far sync.WaitGroup
	h := &wordHistory{turns: make(chan struct{}, len(locals))}
	h.middle = func() { near.Go(middle) }
	rng := func(id int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(id))) }
	for id, c := range remotes {
		far.Go(func() { h.remote(ctx, id, c, rng(id)) })
	}
	for i, c := range locals {
		id := len(remotes) + i
		near.Go(func() { h.local(ctx, id, c, rng(id)) })
	}
	far.Wait()
	close(h.turns)
	near.Wait()
	last := len(remotes) + len(locals)
	h.do(ctx, last, locals[0], rng(last), make([]uint64, len(linearWords)))
	if ctx.Err() != nil {
		t.Error("a client hangs")
	}
	return h
}

// TestLinearizabilityIsDecided gives the checker a lost update and a value that
// never was.
func TestLinearizabilityIsDecided(t *testing.T) {
	add := wordOp{atomic: rma.Atomic{Op: rma.AtomicAdd, Width: 8, Operand: 1}}
	for name, x := range map[string]struct {
		second uint64
		third  wordResult
		want   porcupine.CheckResult
	}{
		"one after the other":      {1, wordResult{value: 2, known: true}, porcupine.Ok},
		"a lost update":            {0, wordResult{value: 1, known: true}, porcupine.Illegal},
		"a value that never was":   {1, wordResult{value: 7, known: true}, porcupine.Illegal},
		"one that nobody knows of": {1, wordResult{}, porcupine.Ok},
	} {
		ops := []porcupine.Operation{
			{ClientId: 0, Input: add, Call: 1, Output: wordResult{value: 0, known: true}, Return: 3},
			{ClientId: 1, Input: add, Call: 2, Output: wordResult{value: x.second, known: true}, Return: 4},
			{ClientId: 0, Input: add, Call: 5, Output: x.third, Return: 6},
		}
		if got := porcupine.CheckOperationsTimeout(atomicWord, ops, time.Minute); got != x.want {
			t.Errorf("%s is %s, want %s", name, got, x.want)
		}
	}
}
