package fabric

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
)

// A Mirror is a copy here of a range of the peer's windows, for programs that
// map memory on one node and run on two, as [Endpoint.Mmap] cannot across
// nodes. Nothing moves by itself. Acquire copies the peer's bytes to here,
// Release copies the changes made here to the peer; between the two, neither
// side sees the other. It is not coherent memory and does not become it.
//
// There must be one writer at a time: either this mirror or the
// peer's application changes a range, and the two agree by other means which, by a
// message or a word of an atomic. Of two that change the same bytes, the one
// that releases last wins.
//
//	m, err := fabric.NewMirror(ep, roffset, 1<<20, nil)
//	err = m.Acquire(ctx, 0, 4096)            // as the peer has it now
//	err = m.Write(128, []byte("changed"))    // here
//	err = m.Release(ctx)                     // and there, when it returns
//
// The methods may be called from any goroutine; one that moves bytes waits for
// the one that does. The bytes are plain memory: bytes that change while they are moved
// arrive as any mixture of old and new.
type Mirror struct {
	mem    []byte
	moving chan struct{} // held by the call that moves bytes, or changes them

	mu    sync.Mutex // guards the fields below
	ep    *Endpoint
	off   int64    // of the mirror, in the peer's space
	dirty rangeSet // not released
	loose bool     // transfers of a call that ended early may be under way
}

// MaxDirtyRanges is how many separate ranges of a mirror may be dirty.
const MaxDirtyRanges = 4096

// mirrorPiece is how many bytes a mirror moves between two checks of its context.
const mirrorPiece = 1 << 20

// NewMirror returns a mirror of [roffset, roffset+n) of the peer's windows. mem
// is the mirror's memory, at least n bytes, and belongs to it; with nil it makes
// its own. Through [Attach], memory of [Node.Alloc] saves a copy. Whether the
// range is registered shows when it is acquired or released.
//
// Errors: EINVAL for an n less than 1, a range that is none, or too little mem.
func NewMirror(ep *Endpoint, roffset, n int64, mem []byte) (*Mirror, error) {
	if n < 1 || roffset < 0 || roffset+n < roffset || mem != nil && int64(len(mem)) < n {
		return nil, ep.fail("mirror", status.Invalid)
	}
	if mem == nil {
		mem = make([]byte, n)
	}
	return &Mirror{mem: mem[:n:n], moving: make(chan struct{}, 1), ep: ep, off: roffset}, nil
}

// Bytes returns the copy. Changes are reported by MarkDirty.
func (m *Mirror) Bytes() []byte { return m.mem }

// Acquire copies [off, off+n) from the peer. Bytes that are dirty stay as they
// are: the mirror's are the newer ones. After an error the bytes that were to
// be copied may be old or new.
//
// Errors: EINVAL if the range is empty or not in the mirror; those of
// [Endpoint.VReadFrom] and [Endpoint.FenceWait]; the context's. After that the
// peer's bytes may still be on their way to the mirror's memory, until another
// call of Acquire or Release succeeds.
func (m *Mirror) Acquire(ctx context.Context, off, n int64) error {
	if err := m.check(off, n); err != nil {
		return m.fail("acquire", err)
	}
	return m.move(ctx, "acquire", func(ep *Endpoint, at int64) error {
		m.mu.Lock()
		clean := m.dirty.without(Range{off, n})
		m.mu.Unlock()
		return m.pieces(ctx, clean, func(p []byte, off int64) error { return ep.ep.VReadFrom(p, at+off, 0) })
	})
}

// MarkDirty marks [off, off+n) of Bytes as changed. The error is EINVAL if
// the range is empty or not in the mirror, and ENOBUFS if [MaxDirtyRanges]
// ranges that it does not touch are dirty: Release comes first.
func (m *Mirror) MarkDirty(off, n int64) error {
	if err := m.check(off, n); err != nil {
		return m.fail("markdirty", err)
	}
	m.mu.Lock()
	err := m.dirty.add(Range{off, n}, MaxDirtyRanges)
	m.mu.Unlock()
	return m.fail("markdirty", err)
}

// Write copies p to off of the mirror and marks it dirty. It waits for an
// Acquire or Release under way. The errors are MarkDirty's, and nothing was
// copied then; no bytes are no error.
func (m *Mirror) Write(off int64, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	m.moving <- struct{}{}
	defer func() { <-m.moving }()
	if err := m.MarkDirty(off, int64(len(p))); err != nil {
		return err
	}
	copy(m.mem[off:], p)
	return nil
}

// Dirty returns the marked ranges that are not released, ascending and disjoint.
func (m *Mirror) Dirty() []Range {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.dirty.ranges)
}

// Release copies the dirty ranges to the peer and returns when they are visible
// there. They are dirty no longer, but for ranges marked meanwhile. After an
// error all of them stay dirty, and each may have arrived or not.
//
// Errors: those of [Endpoint.VWriteTo] and [Endpoint.FenceWait]: ECONNRESET if
// the peer is lost; the context's. After that the bytes may still be on their
// way and must not be changed until another call of Acquire or Release succeeds.
func (m *Mirror) Release(ctx context.Context) error {
	return m.move(ctx, "release", func(ep *Endpoint, at int64) error {
		m.mu.Lock()
		taken := m.dirty
		m.dirty = rangeSet{}
		m.mu.Unlock()
		err := m.pieces(ctx, taken.ranges, func(p []byte, off int64) error { return ep.ep.VWriteTo(p, at+off, 0) })
		if err != nil {
			m.mu.Lock()
			m.dirty.merge(taken)
			m.mu.Unlock()
		}
		return err
	})
}

// Rebind makes the mirror one of the same range at roffset of ep's peer, after
// the old endpoint's connection has ended and it was closed. The copy and its dirty
// ranges stay. The error is EINVAL for a range that is none.
func (m *Mirror) Rebind(ep *Endpoint, roffset int64) error {
	if roffset < 0 || roffset+int64(len(m.mem)) < roffset {
		return ep.fail("mirror", status.Invalid)
	}
	m.moving <- struct{}{}
	defer func() { <-m.moving }()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ep, m.off, m.loose = ep, roffset, false
	return nil
}

// check returns status.Invalid unless [off, off+n) is a range of the mirror.
func (m *Mirror) check(off, n int64) error {
	if size := int64(len(m.mem)); off < 0 || n < 1 || off > size || n > size-off {
		return fmt.Errorf("[%d, +%d) is not in a mirror of %d bytes: %w", off, n, size, status.Invalid)
	}
	return nil
}

func (m *Mirror) fail(op string, err error) error {
	m.mu.Lock()
	ep := m.ep
	m.mu.Unlock()
	return ep.fail(op, err)
}

// move runs f, which moves bytes of the mirror from or to at of ep's peer, when no
// other call does and the transfers of earlier calls have completed.
func (m *Mirror) move(ctx context.Context, op string, f func(ep *Endpoint, at int64) error) error {
	select {
	case m.moving <- struct{}{}:
	default:
		select {
		case m.moving <- struct{}{}:
		case <-ctx.Done():
			return m.fail(op, contextEnd{ctx.Err()})
		}
	}
	defer func() { <-m.moving }()
	m.mu.Lock()
	ep, at, loose := m.ep, m.off, m.loose
	m.mu.Unlock()
	var err error
	if loose {
		err = ep.fence(ctx)
	}
	if err == nil {
		err = f(ep, at)
	}
	m.mu.Lock()
	m.loose = err != nil
	m.mu.Unlock()
	return ep.fail(op, contextError(ctx, err))
}

// pieces calls begin, which begins a transfer, for all bytes of ranges, and
// waits for the transfers.
func (m *Mirror) pieces(ctx context.Context, ranges []Range, begin func(p []byte, off int64) error) error {
	if len(ranges) == 0 {
		return nil
	}
	begun := false
	for _, r := range ranges {
		for off := r.Offset; off < r.end(); off += mirrorPiece {
			if begun && ctx.Err() != nil {
				return status.Canceled
			}
			begun = true
			if err := begin(m.mem[off:min(off+mirrorPiece, r.end())], off); err != nil {
				return err
			}
		}
	}
	return m.ep.fence(ctx)
}

// fence waits until every transfer of the endpoint has completed.
func (e *Endpoint) fence(ctx context.Context) error {
	mark, err := e.ep.FenceMark(fence.InitSelf)
	if err != nil {
		return err
	}
	return e.ep.FenceWait(ctx, mark)
}
