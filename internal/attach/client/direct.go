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

// Bounds of direct use.
const (
	// maxPeerWindows bounds the peer's windows that an endpoint has mapped.
	maxPeerWindows = 256
	// maxDirectMappings bounds those of a session: a process may have 65530
	// mappings, and its memory is made of them.
	maxDirectMappings = 4096
	// restAfter is how many uses of others a mapping must have missed before it
	// makes room for a new one: windows that are used in turn and do not all
	// fit must not be mapped again and again.
	restAfter = 4 * maxPeerWindows
	// maxDirectTries bounds what is tried for a reason that may pass.
	maxDirectTries = 16
	// fewUses of a mapping are less than it costs to make it.
	fewUses = 2
	// mostPassed bounds the uses that go through the node without asking, after
	// mappings that did not pay.
	mostPassed = 1024
)

// backOff returns how many uses go through the node after n failures.
func backOff(n int) uint64 { return min(uint64(1)<<min(n, 30), mostPassed) }

// A directSession is what the endpoints of a session share for the direct use of
// windows.
type directSession struct {
	c        *client
	over     atomic.Bool  // the session has ended
	mappings atomic.Int64 // of all endpoints

	mu     sync.Mutex  // guards the fields below
	page   *shm.Region // the epochs
	closed bool
}

// epochs returns the memory of the epochs, which stays until the session's
// Close has closed every endpoint. ctx and quit end the wait for the node.
func (s *directSession) epochs(ctx context.Context, quit <-chan struct{}) (*shm.Region, error) {
	s.mu.Lock()
	page := s.page
	s.mu.Unlock()
	if page != nil {
		return page, nil
	}
	var out proto.MemAdd
	f, err := s.c.ask(ctx, question{op: proto.OpEpochs, quit: quit, ended: status.Reset}, &out)
	if err != nil {
		return nil, err
	}
	if page, err = mapShared(f, 0, out.Size, out.Size, false); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page != nil || s.closed { // by a call beside this one
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

// mapShared maps [off, off+n) of the memory behind f, which it takes. The memory
// is checked as the node checks what it is handed: it cannot be taken away.
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

// A peerWindow is a window of the peer, mapped: its region is exactly the window. One
// without a region is the node's to copy, and allows nothing here.
type peerWindow struct {
	window
	epoch   uint64 // at which the node told of it
	lastUse uint64 // on the endpoint's clock of uses
	uses    uint64
}

func (w *peerWindow) release() {
	if w.region != nil {
		w.region.Release()
	}
}

// A direct is one endpoint's use of the peer's windows without the node. It
// does what plainly succeeds and leaves the rest to the node, whose answers are
// the contract's: transfers between windows that are there and allow them, and
// what orders those.
//
// mu is held while memory is copied, so that operations of one endpoint are
// whole, have an order, and find the mappings that they use until they end.
type direct struct {
	e *clientEndpoint

	sweeping atomic.Bool // stale mappings are about to be given back

	mu     sync.Mutex // guards the fields below
	closed bool
	own    ownWindows
	peer   []*peerWindow  // by offset, not overlapping
	word   *atomic.Uint64 // the endpoint's epoch; nil before the first window
	slot   uint32
	sure   bool   // there has been a window, and the epoch was
	lives  uint64 // when the node last told of one
	clock  uint64 // counts uses

	// parts of the range that is being copied; empty without mu, so that nothing
	// points to memory that is not mapped any more.
	theirs, ours [][]byte

	nodeOps

	without error  // why no window is asked for any more
	tries   int    // that failed for a reason that may pass
	pass    uint64 // how many times not to ask
	churned int    // mappings in a row that did not pay
}

// writeTo copies n bytes from the own windows to the peer's, and reports whether
// it has. If not, the node decides: nothing has happened that it may not do
// again.
func (d *direct) writeTo(loff, n, roff int64, flags rma.Flags) bool {
	there := d.begin(roff, n, flags, rma.ProtWrite)
	if there == nil {
		return false
	}
	defer d.mu.Unlock()
	here := d.own.find(loff, n, rma.ProtRead)
	switch {
	case here == nil:
		return false
	case len(here) == 1 && simple(there, flags):
		return d.copied(shm.Copy(there[0].bytes(roff, n), here[0].bytes(loff, n)))
	}
	return d.move(d.peers(there, roff, n), d.owns(here, loff, n), n, flags)
}

// readFrom is writeTo in the other direction.
func (d *direct) readFrom(loff, n, roff int64, flags rma.Flags) bool {
	there := d.begin(roff, n, flags, rma.ProtRead)
	if there == nil {
		return false
	}
	defer d.mu.Unlock()
	here := d.own.find(loff, n, rma.ProtWrite)
	switch {
	case here == nil:
		return false
	case len(here) == 1 && simple(there, flags):
		return d.copied(shm.Copy(here[0].bytes(loff, n), there[0].bytes(roff, n)))
	}
	return d.move(d.owns(here, loff, n), d.peers(there, roff, n), n, flags)
}

// vwriteTo is writeTo from p.
func (d *direct) vwriteTo(p []byte, roff int64, flags rma.Flags) bool {
	n := int64(len(p))
	there := d.begin(roff, n, flags, rma.ProtWrite)
	if there == nil {
		return false
	}
	defer d.mu.Unlock()
	if simple(there, flags) {
		return d.copied(shm.Copy(there[0].bytes(roff, n), p))
	}
	return d.move(d.peers(there, roff, n), reach{first: p}, n, flags)
}

// vreadFrom is readFrom into p, which nobody sees before it is full.
func (d *direct) vreadFrom(p []byte, roff int64, flags rma.Flags) bool {
	n := int64(len(p))
	there := d.begin(roff, n, flags, rma.ProtRead)
	if there == nil {
		return false
	}
	defer d.mu.Unlock()
	flags &^= rma.Ordered
	if simple(there, flags) {
		return d.copied(shm.Copy(p, there[0].bytes(roff, n)))
	}
	return d.move(reach{first: p}, d.peers(there, roff, n), n, flags)
}

// simple reports whether one copy does it at the peer's end: most transfers are
// so small that a reach costs more than they do.
func simple(there []*peerWindow, flags rma.Flags) bool {
	return len(there) == 1 && flags&rma.Ordered == 0
}

// peers is the memory of [off, off+n), which lies in ws, until move.
func (d *direct) peers(ws []*peerWindow, off, n int64) (r reach) {
	r, d.theirs = reachOf(d.theirs, ws, off, n)
	return r
}

// owns is peers for the own windows.
func (d *direct) owns(ws []*window, off, n int64) (r reach) {
	r, d.ours = reachOf(d.ours, ws, off, n)
	return r
}

// move copies n bytes, and ends the operation that begin began.
func (d *direct) move(dst, src reach, n int64, flags rma.Flags) bool {
	var err error
	if flags&rma.Ordered != 0 {
		err = copyOrdered(&dst, &src, n)
	} else {
		err = copyReach(&dst, &src, n)
	}
	clear(d.theirs)
	clear(d.ours)
	d.theirs, d.ours = d.theirs[:0], d.ours[:0]
	return d.copied(err)
}

// atomic performs a on the mapping, as the node would on its own.
func (d *direct) atomic(ctx context.Context, a rma.Atomic) (old uint64, done bool) {
	if rma.CheckAtomic(a) != nil {
		return 0, false
	}
	ws := d.beginFor(ctx, a.Offset, int64(a.Width), 0, rma.ProtRead|rma.ProtWrite)
	if ws == nil {
		return 0, false
	}
	defer d.mu.Unlock()
	old, err := swap(ws[0].region, ws[0].at(a.Offset), a) // aligned: it lies in one window
	return old, d.copied(err)
}

// swap replaces the word at off by what a makes of it, and returns what it was.
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

// copied is the end of a copy. Memory that was checked does not fault; if it
// does, the node copies from now on, which survives that as well.
func (d *direct) copied(err error) bool {
	if err != nil {
		d.without = err
		d.drop(func(*peerWindow) bool { return true })
	}
	return err == nil
}

// begin returns the peer's windows that make up [roff, roff+n), with mu held, if
// a transfer with these flags may use them as need says. Nil means that the node
// is to do it.
func (d *direct) begin(roff, n int64, flags rma.Flags, need rma.Prot) []*peerWindow {
	return d.beginFor(context.Background(), roff, n, flags, need)
}

// beginFor is begin for a call whose waits for the node ctx ends.
func (d *direct) beginFor(ctx context.Context, roff, n int64, flags rma.Flags, need rma.Prot) []*peerWindow {
	if d.e.far.is.Load() { // there is no memory to copy to
		return nil
	}
	return d.beginAt(ctx, roff, n, flags, need)
}

// beginAt is beginFor for a peer on any node.
func (d *direct) beginAt(ctx context.Context, roff, n int64, flags rma.Flags, need rma.Prot) []*peerWindow {
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

// An obstacle is what keeps an operation from being done directly.
type obstacle uint8

const (
	nothing   obstacle = iota
	unknown            // the node may know a window
	busy               // an earlier operation is under way in the node
	undecided          // it may be wrong, or is too much
)

// maxObstacles bounds what one operation removes from its way. Of a range over
// more windows the next one finds these known.
const maxObstacles = 16

// look is begin as far as it goes without asking the node, and says at which
// offset a window is missing. The caller holds mu.
func (d *direct) look(roff, n int64, need rma.Prot) (ws []*peerWindow, missing int64, o obstacle) {
	if n <= 0 || roff < 0 || roff > math.MaxInt64-n || d.closed || d.e.c.direct.over.Load() {
		return nil, 0, undecided
	}
	if d.word == nil {
		return nil, roff, unknown
	}
	epoch := d.word.Load() // from here on the operation counts as begun
	first := d.at(roff)
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

// used notes that windows pay for having been mapped.
func (d *direct) used(ws []*peerWindow) {
	d.clock++
	for _, w := range ws {
		w.lastUse = d.clock
		if w.uses++; w.uses > fewUses {
			d.churned = 0
		}
	}
}

// at returns the index of the first window that ends after roff.
func (d *direct) at(roff int64) int {
	lo, hi := 0, len(d.peer)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if d.peer[mid].end <= roff {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// sweep gives the mappings back that the peer has withdrawn. The caller holds mu.
func (d *direct) sweep() {
	if d.word == nil {
		return
	}
	now := d.word.Load()
	d.drop(func(w *peerWindow) bool {
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

// drop gives mappings back. The caller holds mu.
func (d *direct) drop(which func(*peerWindow) bool) {
	d.peer = slices.DeleteFunc(d.peer, func(w *peerWindow) bool {
		out := which(w)
		if out && w.region != nil {
			w.region.Release()
			d.e.c.direct.mappings.Add(-1)
		}
		return out
	})
}

// told makes the mappings that are stale go soon. It is called by the session's
// reader, which must not wait for a copy.
func (d *direct) told() {
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

// close gives everything up, after the copy that is under way.
func (d *direct) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.own.close()
	d.drop(func(*peerWindow) bool { return true })
}

// register registers a window over w's memory with ask, and keeps it in mind.
func (d *direct) register(w *window, n int64, ask func() (int64, error)) (int64, error) {
	d.mu.Lock()
	a := d.own.add()
	d.mu.Unlock()
	off, err := ask()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.own.failed(a)
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
