package engine

import (
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// Mmap maps the peer's window memory. The mapping keeps the window, whatever
// becomes of the connection.
func (e *endpoint) Mmap(roff, n int64, prot rma.Prot) (attach.Mapping, error) {
	l, err := e.lend(roff, n, prot)
	if err != nil {
		return nil, err
	}
	p := direct(l.span)
	if p == nil {
		// The memory is another process's, which may take it away: reading
		// it would kill this one.
		l.back()
		return nil, status.NotSupp
	}
	return &mapping{loan: l, bytes: p[:n:n]}, nil
}

type mapping struct {
	loan  *loan
	bytes []byte
	once  sync.Once // guards giving the loan back
}

func (m *mapping) Bytes() []byte { return m.bytes }

func (m *mapping) Close() error {
	m.once.Do(m.loan.back)
	return nil
}

// A lent region is the memory of a window that another application maps: the
// window stays until the last reference to it is released.
type lent struct {
	attach.Region
	loan *loan
	refs atomic.Int64
}

func newLent(l *loan) attach.Region {
	r := &lent{Region: l.Window.Mem.region, loan: l}
	r.refs.Store(1)
	return r
}

var _ attach.WindowRegion = (*lent)(nil)

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

// heapMemory is window memory of this process. The garbage collector frees it.
type heapMemory struct{ p []byte }

func (m heapMemory) Bytes() []byte { return m.p }
func (m heapMemory) Close() error  { return nil }
