package client

import (
	"math"
	"slices"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/rma"
)

// ownWindows are the windows of an endpoint that certainly exist: the node has confirmed their
// registration, and no call to unregister them has begun. The node decides about all others.
// Guarded by the endpoint's direct.mu. Each window holds a reference to its region.
type ownWindows struct {
	list     []*window // by offset, not overlapping
	adding   []*addition
	removing []proto.Span // of the running calls
	closed   bool
}

// An addition is a registration that the node has yet to answer. Concurrent calls to unregister may
// or may not have removed its window: the order in which the node performs them is unknown here.
type addition struct{ doubtful []proto.Span }

// maxDoubtful bounds the ranges that an addition records; with more its window is not added.
const maxDoubtful = 64

// add records the start of a registration.
func (o *ownWindows) add() *addition {
	a := &addition{doubtful: slices.Clone(o.removing)}
	o.adding = append(o.adding, a)
	return a
}

// forget ends a registration, which the node has answered.
func (o *ownWindows) forget(a *addition) {
	i := slices.Index(o.adding, a)
	o.adding = slices.Delete(o.adding, i, i+1)
}

// added records the window that the node has registered, and retains its region.
func (o *ownWindows) added(a *addition, w *window) {
	o.forget(a)
	if o.closed || len(a.doubtful) > maxDoubtful ||
		slices.ContainsFunc(a.doubtful, func(r proto.Span) bool { return touches(r, w) }) {
		return
	}
	w.region.Retain()
	o.insert(w)
}

func (o *ownWindows) insert(w *window) { o.list = slices.Insert(o.list, endAfter(o.list, w.off), w) }

// remove records the start of a call to unregister r, and takes out the windows that the call
// removes if it succeeds. From here on the node decides about transfers over them.
func (o *ownWindows) remove(r proto.Span) (out []*window) {
	for _, a := range o.adding {
		if len(a.doubtful) <= maxDoubtful {
			a.doubtful = append(a.doubtful, r)
		}
	}
	o.removing = append(o.removing, r)
	o.list = slices.DeleteFunc(o.list, func(w *window) bool {
		in := w.off >= r.Off && uint64(w.end-r.Off) <= uint64(max(r.Len, 0))
		if in {
			out = append(out, w)
		}
		return in
	})
	return out
}

// removed ends a call to unregister r, and restores its windows if it failed.
func (o *ownWindows) removed(r proto.Span, windows []*window, err error) {
	i := slices.Index(o.removing, r)
	o.removing = slices.Delete(o.removing, i, i+1)
	for _, w := range windows {
		if err != nil && !o.closed {
			o.insert(w)
		} else {
			w.region.Release()
		}
	}
}

// touches reports whether r, of any values, and w have an offset in common.
func touches(r proto.Span, w *window) bool {
	return r.Len > 0 && r.Off < w.end && (r.Off > math.MaxInt64-r.Len || r.Off+r.Len > w.off)
}

// find returns the windows that make up [off, off+n); nil if they do not certainly exist or do not
// permit need. n is positive. The caller holds the lock while it uses them.
func (o *ownWindows) find(off, n int64, need rma.Prot) []*window {
	if off < 0 || off > math.MaxInt64-n {
		return nil
	}
	first := endAfter(o.list, off)
	for i, end := first, off+n; i < len(o.list) && i-first < maxParts; i++ {
		w := o.list[i]
		if w.off > off || w.prot&need != need {
			return nil
		}
		if off = w.end; off >= end {
			return o.list[first : i+1]
		}
	}
	return nil
}

// close releases all windows.
func (o *ownWindows) close() {
	o.closed = true
	for _, w := range o.list {
		w.region.Release()
	}
	o.list = nil
}
