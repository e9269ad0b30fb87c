package core

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// Limits bound the resources of one connection. A zero field means the default.
type Limits struct {
	Ops      int // operations begun and not ended, of each side; default 1024
	Windows  int // windows of each side; default rma.MaxWindows
	Requests int // fence requests waiting for the peer's answer, and waits; default 1024
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Ops:      cmp.Or(l.Ops, 1024),
		Windows:  cmp.Or(l.Windows, rma.MaxWindows),
		Requests: cmp.Or(l.Requests, 1024),
	}
}

// A Waiter is one call that waits for the peer or for operations to end.
type Waiter struct {
	C     chan struct{} // capacity 1; the engine sends to it when the wait has ended
	Code  status.Code   // the result, set before that
	Value uint64        // of a mark
}

// A Conn is the memory side of one connection at one end: its windows, those
// that the peer announced, the operations under way in both directions, and
// fences. It assumes a stream that keeps the order of frames in each direction,
// so that operations are applied, and answered, in the order of their numbers.
// It is not safe for concurrent use.
type Conn[M any] struct {
	effects Effects[M]
	out     queue[M]
	limits  Limits
	failed  status.Code // OK until Fail
	shut    bool        // CloseWindows was called

	own  rma.Space[M]        // windows registered here
	peer rma.Space[struct{}] // windows that the peer announced

	// Operations of this end.
	ops      fence.Tracker
	open     fifo[*Op[M]] // from ops.Done()+1 to ops.Begun(), without a gap
	free     []*Op[M]     // memory of operations that have ended
	applied  uint64       // the peer's last Done
	firstBad uint64       // number of the first operation that failed, 0 if none
	badCode  status.Code
	waits    fence.Waiters[wait[M]] // for operations of this end
	reads    int                    // of open, how many are reads that have not ended
	deferred int                    // signals in waits that store at the peer

	// The peer's side: its operations, and the answers about its windows.
	in      incoming[M]
	answers fifo[windowAnswer]

	// Requests to the peer.
	asked       fifo[announcement[M]] // answered in order
	requests    map[uint64]request    // Mark, Wait, PeerSignal
	lastRequest uint64

	scratch [96]byte // the longest frame without payload that Conn sends
	peerSp  []rma.Span[struct{}]
}

// An announcement is a Register or Unregister that the peer has not answered.
type announcement[M any] struct {
	window    *rma.Window[M]
	withdrawn bool
	waiter    *Waiter // of an Unregister's last window only
}

// A request is one that the peer has not answered.
type request struct {
	answer wire.Type // the only one that fits
	waiter *Waiter   // nil if the caller gave up
}

// NewConn returns the state of a fresh connection.
func NewConn[M any](limits Limits) *Conn[M] {
	limits = limits.withDefaults()
	c := &Conn[M]{limits: limits, requests: make(map[uint64]request)}
	c.own.Max, c.peer.Max = limits.Windows, limits.Windows
	c.waits.Max = limits.Requests
	return c
}

// Register opens a window onto m and announces it; w wakes when the peer knows
// it (scif_register). On success the connection owns m until it is among [Effects].Freed.
func (c *Conn[M]) Register(m M, n, off int64, prot rma.Prot, flags rma.MapFlags, w *Waiter) (int64, error) {
	switch {
	case c.failed != status.OK:
		return 0, c.failed
	case c.shut:
		return 0, status.Reset
	}
	off, err := c.own.Register(m, n, off, prot, flags)
	if err != nil {
		return 0, err
	}
	c.asked.push(announcement[M]{window: c.own.At(off), waiter: w})
	c.Queue(wire.Register{Offset: uint64(off), Length: uint64(n), Prot: uint8(prot)}.AppendTo(c.scratch[:0]))
	return off, nil
}

// Unregister withdraws the windows in [off, off+n); w wakes when the peer
// begins no more operations on them. It reports false if there are none, so
// that there is nothing to wait for.
func (c *Conn[M]) Unregister(off, n int64, w *Waiter) (bool, error) {
	if c.failed != status.OK {
		return false, c.failed
	}
	windows, err := c.own.Unregister(off, n)
	if err != nil || len(windows) == 0 {
		return false, err
	}
	for i, win := range windows {
		a := announcement[M]{window: win, withdrawn: true}
		if i == len(windows)-1 {
			a.waiter = w
		}
		c.asked.push(a)
		c.Queue(wire.Unregister{Offset: uint64(win.Offset), Length: uint64(win.Length)}.AppendTo(c.scratch[:0]))
	}
	return true, nil
}

// Windows returns the windows registered here, by offset.
func (c *Conn[M]) Windows() []*rma.Window[M] {
	var out []*rma.Window[M]
	for w := range c.own.Windows() {
		out = append(out, w)
	}
	return out
}

// Export finds [off, off+n) in one window of this end for the peer to map and
// adds a reference, which EndExport drops (scif_mmap).
func (c *Conn[M]) Export(off, n int64, need rma.Prot) (rma.Span[M], error) {
	switch {
	case c.failed != status.OK:
		return rma.Span[M]{}, c.failed
	case c.shut:
		return rma.Span[M]{}, status.Reset
	}
	sp, err := c.own.Within(off, n, need)
	if err == nil {
		c.own.Retain(sp.Window)
	}
	return sp, err
}

// EndExport drops a reference that Export added.
func (c *Conn[M]) EndExport(sp rma.Span[M]) { c.release(sp.Window) }

func (c *Conn[M]) release(w *rma.Window[M]) {
	if c.own.Release(w) {
		c.effects.Freed = append(c.effects.Freed, w.Mem)
	}
}

// Fail ends the connection: every operation, wait and request ends with code,
// those whose memory the engine is using as soon as it stops. Nothing is begun,
// applied or sent afterwards. Windows stay. Only the first call counts.
func (c *Conn[M]) Fail(code status.Code) {
	if c.failed != status.OK {
		return
	}
	c.failed = code
	c.endThrough(c.ops.Begun(), code)
	c.answers = fifo[windowAnswer]{}
	for c.asked.len() > 0 {
		a := c.asked.pop()
		if a.withdrawn {
			c.retire(a.window)
		}
		c.wake(a.waiter, code)
	}
	for _, id := range slices.Sorted(maps.Keys(c.requests)) { // in the order in which they were asked
		waiter := c.requests[id].waiter
		delete(c.requests, id)
		c.wake(waiter, code)
	}
}

// CloseWindows freezes the memory of this end's windows and of its callers:
// an operation of either end that would change it afterwards ends with
// status.Reset, and so do the peer's reads. A payload that is being received
// still goes to the memory that Handle has returned.
func (c *Conn[M]) CloseWindows() { c.shut = true }

// Close fails the connection and gives back every window that nothing uses any
// more; the rest follow as their references go.
func (c *Conn[M]) Close(code status.Code) {
	c.Fail(code)
	for _, w := range c.own.UnregisterAll() {
		c.retire(w)
	}
}

func (c *Conn[M]) retire(w *rma.Window[M]) {
	if c.own.Retire(w) {
		c.effects.Freed = append(c.effects.Freed, w.Mem)
	}
}

func (c *Conn[M]) wake(w *Waiter, code status.Code) {
	if w != nil {
		w.Code = code
		c.effects.Woken = append(c.effects.Woken, w)
	}
}

// A fifo is a queue that reuses its memory.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int   { return len(f.items) - f.head }
func (f *fifo[T]) at(i int) T { return f.items[f.head+i] }
func (f *fifo[T]) front() T   { return f.at(0) }
func (f *fifo[T]) all() []T   { return f.items[f.head:] }

func (f *fifo[T]) push(v T) {
	// Half of the memory has to be free before the rest moves, so that a long
	// queue does not move at every push.
	if f.head > len(f.items)/2 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, v)
}

func (f *fifo[T]) pop() T {
	var zero T
	v := f.items[f.head]
	f.items[f.head] = zero
	if f.head++; f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return v
}
