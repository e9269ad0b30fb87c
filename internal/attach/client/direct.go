package client

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// Bounds of direct access.
const (
	// maxPeerWindows bounds the peer's windows that an endpoint has mapped.
	maxPeerWindows = 256
	// maxDirectMappings bounds those of a session: Linux allows a process 65530 mappings, and other
	// memory of the process needs mappings too.
	maxDirectMappings = 4096
	// restAfter is how many accesses to other mappings must pass since the last use of a mapping
	// before a new one may replace it: windows that are used alternately and do not all fit must not be
	// remapped again and again.
	restAfter = 4 * maxPeerWindows
	// maxDirectTries bounds the attempts that fail for a transient reason.
	maxDirectTries = 16
	// fewUses: a mapping used no more often has cost more than it saved.
	fewUses = 2
	// mostPassed bounds the accesses that go straight to the node after mappings that were used too
	// little.
	mostPassed = 1024
)

// backOff returns how many accesses go straight to the node after n failures.
func backOff(n int) uint64 { return min(uint64(1)<<min(n, 30), mostPassed) }

// A directSession is the state for direct access to windows that a session's endpoints share.
type directSession struct {
	c        *session
	over     atomic.Bool  // the session has ended
	mappings atomic.Int64 // of all endpoints

	mu     sync.Mutex  // guards the fields below
	page   *shm.Region // the epochs
	closed bool
}

// epochs returns the memory of the epochs, which stays mapped until the session's Close has closed
// every endpoint. ctx and quit end the wait for the node.
func (s *directSession) epochs(ctx context.Context, quit <-chan struct{}) (*shm.Region, error) {
	s.mu.Lock()
	page := s.page
	s.mu.Unlock()
	if page != nil {
		return page, nil
	}
	var out proto.MemAdd
	f, err := s.c.ask(ctx, request{op: proto.OpEpochs, quit: quit, ended: status.Reset}, &out)
	if err != nil {
		return nil, err
	}
	if page, err = mapShared(f, 0, out.Size, out.Size, false); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page != nil || s.closed { // by a concurrent call
		page.Release()
		if s.closed {
			return nil, status.BadFD
		}
		return s.page, nil
	}
	s.page = page
	return page, nil
}

func (s *directSession) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.page != nil {
		s.page.Release()
		s.page = nil
	}
}

// mapShared maps [off, off+n) of the memory behind f, which it owns. It checks the memory as the
// node checks an application's: it must be sealed against shrinking.
func mapShared(f *os.File, off, n, size int64, writable bool) (*shm.Region, error) {
	if f == nil {
		return nil, fmt.Errorf("node sent no memory: %w", status.Protocol)
	}
	err := shm.Check(f, size, shm.MaxSize)
	var region *shm.Region
	if err == nil {
		region, err = shm.Map(f, off, n, writable)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	region.CloseFile() // an application has many windows and few descriptors
	return region, nil
}

// A direct performs one endpoint's operations on the peer's windows without the node. It performs
// only operations that certainly succeed: transfers between known windows that permit them, and
// fences over those. The node decides on all others and returns the contract's results.
//
// mu is held while memory is copied, so that operations of one endpoint are atomic and ordered
// among themselves, and their mappings stay until they end.
type direct struct {
	e *endpoint

	sweeping atomic.Bool // stale mappings are about to be unmapped

	mu           sync.Mutex // guards the fields below
	closed       bool
	own          ownWindows
	peer         []*window      // by offset, not overlapping
	word         *atomic.Uint64 // the endpoint's epoch; nil before the first window
	slot         uint32
	sure         bool   // a window was reported, and incarnations is valid
	incarnations uint64 // the epoch at the node's last report of a window
	clock        uint64 // counts uses

	// parts of the range that is being copied; empty while mu is not held, so that nothing refers
	// to unmapped memory.
	theirs, ours [][]byte

	nodeOps

	without error  // why no window is requested any more; nil: requests go on
	tries   int    // requests that failed for a transient reason
	pass    uint64 // number of accesses for which no request is made
	churned int    // consecutive mappings that were used too little
}

// move copies n bytes and ends the operation that begin started.
func (d *direct) move(dst, src byteRange, n int64, ordered bool) bool {
	var err error
	if ordered {
		err = copyOrdered(&dst, &src, n)
	} else {
		err = copyRange(&dst, &src, n)
	}
	clear(d.theirs)
	clear(d.ours)
	d.theirs, d.ours = d.theirs[:0], d.ours[:0]
	return d.copied(err)
}

// atomic performs a on the mapping with the result that the node would give.
func (d *direct) atomic(ctx context.Context, a rma.Atomic) (old uint64, done bool) {
	if rma.CheckAtomic(a) != nil {
		return 0, false
	}
	ws := d.begin(ctx, a.Offset, int64(a.Width), 0, rma.ProtRead|rma.ProtWrite)
	if ws == nil {
		return 0, false
	}
	defer d.mu.Unlock()
	old, err := swap(ws[0].region, ws[0].at(a.Offset), a) // aligned: it lies in one window
	return old, d.copied(err)
}

// swap replaces the word at off by the result of a, and returns the old value.
func swap(r *shm.Region, off int64, a rma.Atomic) (uint64, error) {
	for {
		old, err := r.Load(off, int(a.Width))
		if err != nil {
			return 0, err
		}
		swapped, err := r.CompareAndSwap(off, int(a.Width), old, rma.Apply(old, a))
		if swapped || err != nil {
			return old, err
		}
	}
}

// copied ends a copy. Checked memory does not fault; if it faults nevertheless, the node copies
// from now on: its copies survive faults.
func (d *direct) copied(err error) bool {
	if err != nil {
		d.without = err
		d.drop(func(*window) bool { return true })
	}
	return err == nil
}

// begin returns the peer's windows that make up [roff, roff+n), with mu held, if a transfer with
// these flags may access them as need requires. Nil means that the node must perform it. Its requests
// to the node end with ctx.
func (d *direct) begin(ctx context.Context, roff, n int64, flags rma.Flags, need rma.Prot) []*window {
	if d.e.far.is.Load() { // there is no memory to copy to
		return nil
	}
	return d.beginAt(ctx, roff, n, flags, need)
}

// beginAt is begin without the restriction to peers on this node.
func (d *direct) beginAt(ctx context.Context, roff, n int64, flags rma.Flags, need rma.Prot) []*window {
	if rma.CheckFlags(flags) != nil {
		return nil
	}
	for range maxObstacles {
		d.mu.Lock()
		ws, missing, obstacle := d.look(roff, n, need)
		if obstacle == nothing {
			return ws
		}
		posted := d.posted
		d.mu.Unlock()
		switch {
		case obstacle == unknown && d.fetch(ctx, missing):
		case obstacle == busy && d.drain(ctx, posted):
		default:
			return nil
		}
	}
	return nil
}

// An obstacle prevents an operation from being performed directly.
type obstacle uint8

const (
	nothing   obstacle = iota
	unknown            // the node may know a window
	busy               // an earlier operation in the node is incomplete
	undecided          // the operation may be invalid, or is too large; the node decides
)

// maxObstacles bounds the obstacles that one operation removes. The next operation over the same
// range finds the windows fetched so far.
const maxObstacles = 16

// look is begin without requests to the node. It returns the offset at which a window is missing.
// The caller holds mu.
func (d *direct) look(roff, n int64, need rma.Prot) (ws []*window, missing int64, o obstacle) {
	if n <= 0 || roff < 0 || roff > math.MaxInt64-n || d.closed || d.e.c.direct.over.Load() {
		return nil, 0, undecided
	}
	if d.word == nil {
		return nil, roff, unknown
	}
	epoch := d.word.Load() // linearization point: the operation counts as begun from here
	first := endAfter(d.peer, roff)
	last := first
	for end := roff + n; roff < end; last++ {
		if last == len(d.peer) || d.peer[last].off > roff {
			return nil, roff, unknown
		}
		w := d.peer[last]
		if w.epoch != epoch {
			d.sweep()
			return nil, roff, unknown
		}
		if w.prot&need != need {
			return nil, 0, undecided
		}
		roff = w.end
	}
	if d.posted != d.drained {
		return nil, 0, busy
	}
	ws = d.peer[first:last]
	d.used(ws)
	return ws, 0, nothing
}

// used records a use of windows, which shows that their mappings pay off.
func (d *direct) used(ws []*window) {
	d.clock++
	for _, w := range ws {
		w.lastUse = d.clock
		if w.uses++; w.uses > fewUses {
			d.churned = 0
		}
	}
}

// sweep unmaps the windows that the peer has unregistered. The caller holds mu.
func (d *direct) sweep() {
	if d.word == nil {
		return
	}
	now := d.word.Load()
	d.drop(func(w *window) bool {
		if w.epoch == now {
			return false
		}
		if w.uses <= fewUses && w.region != nil {
			d.churned++
			d.pass = backOff(d.churned - 1)
		}
		return true
	})
}

// drop unmaps the selected windows. The caller holds mu.
func (d *direct) drop(which func(*window) bool) {
	d.peer = slices.DeleteFunc(d.peer, func(w *window) bool {
		out := which(w)
		if out && w.region != nil {
			w.region.Release()
			d.e.c.direct.mappings.Add(-1)
		}
		return out
	})
}

// invalidated causes stale mappings to be unmapped soon. The session's reader calls it and must not wait
// for a copy.
func (d *direct) invalidated() {
	if d.sweeping.Swap(true) {
		return
	}
	d.e.c.wg.Go(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.sweeping.Store(false)
		d.sweep()
	})
}

// close releases everything, after the running copy.
func (d *direct) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.own.close()
	d.drop(func(*window) bool { return true })
}

// register registers a window over w's memory with ask, and records it.
func (d *direct) register(w *window, n int64, ask func() (int64, error)) (int64, error) {
	d.mu.Lock()
	a := d.own.add()
	d.mu.Unlock()
	off, err := ask()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.own.forget(a)
		return 0, err
	}
	if off >= 0 && off <= math.MaxInt64-n {
		w.off, w.end = off, off+n
		d.own.added(a, w)
	}
	return off, nil
}

// unregister unregisters r with ask.
func (d *direct) unregister(r proto.Span, ask func() error) error {
	d.mu.Lock()
	windows := d.own.remove(r)
	d.mu.Unlock()
	err := ask()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.own.removed(r, windows, err)
	return err
}
