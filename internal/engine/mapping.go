package engine

import (
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/rma"
)

// A lent region is the memory of a window that another application maps: the
// window stays until the last reference to it is released.
type lent struct {
	attach.Region
	loan *loan
	refs atomic.Int64
}

func newLent(l *loan) attach.WindowRegion {
	r := &lent{Region: l.Window.Mem.region, loan: l}
	r.refs.Store(1)
	return r
}

func (r *lent) Window() (behind attach.Region, off, n int64, prot rma.Prot) {
	w := r.loan.Window
	return r.Region, w.Mem.off, w.Length, w.Prot
}

func (r *lent) Retain() { r.refs.Add(1) }

func (r *lent) Release() {
	if r.refs.Add(-1) == 0 {
		r.loan.back()
	}
}
