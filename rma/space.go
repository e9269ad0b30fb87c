package rma

import (
	"iter"
	"math"
	"slices"
	"sort"

	"github.com/fabricd/fabricd/internal/status"
)

// MaxWindows is the bound of a Space whose Max is zero.
const MaxWindows = 4096

// A Space is the registered address space of one endpoint: windows that do not
// overlap, each onto some memory M. The zero Space is empty and ready to use.
// It is not safe for concurrent use.
//
// A Space of no memory (M is struct{}) mirrors the peer's windows; Announce and Withdraw apply the
// peer's reports.
type Space[M any] struct {
	Max int // limit on windows, including withdrawn ones not yet gone; 0 means MaxWindows. Set it before use

	windows []entry[M] // by offset, not overlapping
	packed  int64      // every offset from FirstOffset up to here is in use; 0 means FirstOffset

	// Invariant: windows holds every window that is not gone, and no other.
}

// An entry stores a window's bounds with its pointer, so that a search reads one array.
type entry[M any] struct {
	off, end int64
	w        *Window[M]
}

// CheckRegister checks the arguments of a registration in SCIF's order: flags, a fixed offset
// (aligned, not negative, no wrap), protection, length. The error is status.Invalid. The caller
// checks the endpoint's state after it.
func CheckRegister(n, off int64, prot Prot, flags MapFlags) error {
	switch {
	case flags&^MapFixed != 0,
		flags&MapFixed != 0 && (off%PageSize != 0 || off < 0 || n < 0 || off > math.MaxInt64-n),
		prot&^(ProtRead|ProtWrite) != 0,
		n <= 0 || n%PageSize != 0:
		return status.Invalid
	}
	return nil
}

// Register opens a window of n bytes onto m and returns its offset.
//
// With MapFixed it is off. Otherwise off is a hint, used if it is a free, page-aligned, positive
// offset; else the lowest free offset from FirstOffset is used, which depends only on the windows
// of the space.
//
// The error is CheckRegister's; status.InUse if a fixed range is not free,
// withdrawn windows included; status.NoMemory if the space has Max windows or
// no offset is free.
func (s *Space[M]) Register(m M, n, off int64, prot Prot, flags MapFlags) (int64, error) {
	if err := CheckRegister(n, off, prot, flags); err != nil {
		return 0, err
	}
	if flags&MapFixed != 0 {
		if !s.free(off, n) {
			return 0, status.InUse
		}
	} else if !s.takesHint(off, n) {
		var ok bool
		if off, ok = s.lowestFree(n); !ok {
			return 0, status.NoMemory
		}
	}
	if err := s.insert(&Window[M]{Offset: off, Length: n, Prot: prot, Mem: m}); err != nil {
		return 0, err
	}
	return off, nil
}

// CheckUnregister checks the arguments of Unregister: status.Invalid unless
// off and n are multiples of PageSize, off is not negative, n is positive and
// the range does not wrap.
func CheckUnregister(off, n int64) error {
	if off < 0 || n <= 0 || off%PageSize != 0 || n%PageSize != 0 || off > math.MaxInt64-n {
		return status.Invalid
	}
	return nil
}

// Unregister withdraws the registered windows in [off, off+n) and returns them; there may be none.
// The caller must Retire each of them, at once or when the peer has confirmed that it has no more
// operations on it. The error is status.Invalid, and nothing is withdrawn, if the arguments are
// invalid (see CheckUnregister) or the range contains only a part of a window.
func (s *Space[M]) Unregister(off, n int64) ([]*Window[M], error) {
	if err := CheckUnregister(off, n); err != nil {
		return nil, err
	}
	first := s.firstEndingAfter(off)
	last, found := first, 0
	for ; last < len(s.windows) && s.windows[last].off < off+n; last++ {
		e := &s.windows[last]
		if e.w.state != registered {
			continue // no longer a window
		}
		if e.off < off || e.end > off+n {
			return nil, status.Invalid
		}
		found++
	}
	return s.withdraw(s.windows[first:last], found), nil
}

// UnregisterAll withdraws every registered window: the endpoint closes. The caller must Retire each
// of them.
func (s *Space[M]) UnregisterAll() []*Window[M] {
	return s.withdraw(s.windows, len(s.windows))
}

func (s *Space[M]) withdraw(entries []entry[M], sizeHint int) []*Window[M] {
	if sizeHint == 0 {
		return nil
	}
	out := make([]*Window[M], 0, sizeHint)
	for _, e := range entries {
		if e.w.state == registered {
			e.w.state = withdrawn
			out = append(out, e.w)
		}
	}
	return out
}

// Retire ends a withdrawn window for the peer too and drops the registration's reference. It
// reports whether the window is gone; otherwise the Release of the last reference reports that. The
// caller that gets the report frees the memory.
func (s *Space[M]) Retire(w *Window[M]) (gone bool) {
	if w.state != withdrawn {
		panic("BUG: rma: Retire of a window that is not withdrawn")
	}
	w.state = retired
	return s.Release(w)
}

// Retain adds a reference to a window that is not gone: a running operation, a
// mapping, a pending signal.
func (s *Space[M]) Retain(w *Window[M]) {
	if w.refs <= 0 {
		panic("BUG: rma: Retain of a window that is gone")
	}
	w.refs++
}

// Release drops a reference and reports whether it was the last one: the
// window is gone, its offsets are free, and its memory may be freed.
func (s *Space[M]) Release(w *Window[M]) (gone bool) {
	if w.refs <= 0 || w.refs == 1 && w.state != retired {
		panic("BUG: rma: Release without a reference")
	}
	w.refs--
	if w.refs > 0 {
		return false
	}
	s.remove(w)
	return true
}

// At returns the window, registered or not yet gone, that begins at off, or nil.
func (s *Space[M]) At(off int64) *Window[M] {
	i := s.firstEndingAfter(off)
	if i == len(s.windows) || s.windows[i].off != off {
		return nil
	}
	return s.windows[i].w
}

// Windows returns the windows that are not gone, by offset. The space must not
// change meanwhile.
func (s *Space[M]) Windows() iter.Seq[*Window[M]] {
	return func(yield func(*Window[M]) bool) {
		for _, e := range s.windows {
			if !yield(e.w) {
				return
			}
		}
	}
}

// Len returns how many windows are not gone.
func (s *Space[M]) Len() int { return len(s.windows) }

// firstEndingAfter returns the index of the first window that ends after off: the one that contains
// off, or the next one.
func (s *Space[M]) firstEndingAfter(off int64) int {
	return sort.Search(len(s.windows), func(i int) bool { return s.windows[i].end > off })
}

// free reports whether [off, off+n), which does not wrap, overlaps no window.
func (s *Space[M]) free(off, n int64) bool {
	i := s.firstEndingAfter(off)
	return i == len(s.windows) || s.windows[i].off >= off+n
}

func (s *Space[M]) takesHint(off, n int64) bool {
	return off > 0 && off%PageSize == 0 && off <= math.MaxInt64-n && s.free(off, n)
}

// lowestFree returns the lowest offset from FirstOffset with n free bytes.
func (s *Space[M]) lowestFree(n int64) (int64, bool) {
	off := s.skipPacked()
	for i := s.firstEndingAfter(off); i < len(s.windows); i++ {
		if s.windows[i].off-off >= n {
			return off, true
		}
		off = s.windows[i].end
	}
	return off, off <= math.MaxInt64-n
}

// skipPacked advances packed over the windows that follow it without a gap and
// returns it. Registering many windows one after the other thus stays cheap.
func (s *Space[M]) skipPacked() int64 {
	s.packed = max(s.packed, FirstOffset)
	for i := s.firstEndingAfter(s.packed); i < len(s.windows) && s.windows[i].off <= s.packed; i++ {
		s.packed = s.windows[i].end
	}
	return s.packed
}

func (s *Space[M]) insert(w *Window[M]) error {
	limit := s.Max
	if limit == 0 {
		limit = MaxWindows
	}
	if len(s.windows) >= limit {
		return status.NoMemory
	}
	w.refs = 1
	i := s.firstEndingAfter(w.Offset)
	s.windows = slices.Insert(s.windows, i, entry[M]{w.Offset, w.End(), w})
	return nil
}

func (s *Space[M]) remove(w *Window[M]) {
	i := s.firstEndingAfter(w.Offset)
	if i == len(s.windows) || s.windows[i].w != w {
		panic("BUG: rma: window of another space")
	}
	s.windows = slices.Delete(s.windows, i, i+1)
	s.packed = min(s.packed, w.Offset)
	w.state = gone
}
