package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

func (e *endpoint) RegisterRegion(r attach.Region, memOff, n, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error) {
	if err := e.alive(); err != nil {
		return 0, err
	}
	if err := rma.CheckRegister(n, off, prot, flags); err != nil {
		return 0, err
	}
	if memOff < 0 || memOff%rma.PageSize != 0 || memOff > r.Len()-n {
		return 0, status.Invalid
	}
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return 0, err
	}
	err = c.call(context.Background(), func(w *core.Waiter) (bool, error) {
		r.Retain()
		var err error
		if off, err = c.core.Register(memory{r, memOff}, n, off, prot, flags, w); err != nil {
			r.Release()
		}
		return err == nil, err
	})
	if err != nil {
		return 0, err
	}
	return off, nil
}

func (e *endpoint) Unregister(off, n int64) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	err = c.call(context.Background(), func(w *core.Waiter) (bool, error) {
		return c.core.Unregister(off, n, w)
	})
	if err == nil {
		c.awaitApplied()
	}
	return err
}

func (e *endpoint) WriteTo(loff, n, roff int64, flags rma.Flags) error {
	return e.transfer(core.OpWrite, core.Local{Offset: loff, Length: n}, roff, flags)
}

func (e *endpoint) ReadFrom(loff, n, roff int64, flags rma.Flags) error {
	return e.transfer(core.OpRead, core.Local{Offset: loff, Length: n}, roff, flags)
}

func (e *endpoint) VWriteTo(p []byte, roff int64, flags rma.Flags) error {
	return e.transfer(core.OpWrite, core.Local{Buf: p, Length: int64(len(p))}, roff, flags)
}

func (e *endpoint) VReadFrom(p []byte, roff int64, flags rma.Flags) error {
	return e.transfer(core.OpRead, core.Local{Buf: p, Length: int64(len(p))}, roff, flags)
}

func (e *endpoint) CheckTransfer(roff, n int64, flags rma.Flags, need rma.Prot) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || isClosed(c.bye.closing) {
		return status.Reset
	}
	return c.core.CheckPeer(roff, n, flags, need)
}

// transfer begins a read or write and waits for it if it is synchronous. On
// one node every transfer is: programs rely on seeing it when the call returns.
func (e *endpoint) transfer(kind core.OpKind, l core.Local, roff int64, flags rma.Flags) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	waits := flags&rma.Sync != 0 || c.link.otherEnd != nil
	if kind == core.OpRead {
		return c.operate(l, waits, c.core.MayBegin, func(w *core.Waiter) error {
			_, err := c.core.Read(l, roff, flags, w)
			return err
		})
	}
	l, waits = e.copies(l, waits)
	return c.operate(l, waits, c.core.MayChange(l, roff, l.Length), func(w *core.Waiter) error {
		_, err := c.core.Write(l, roff, flags, w)
		return err
	})
}

// copies returns l with the node's charge for memory that it keeps while the caller
// goes on, and whether the caller has to wait instead.
func (e *endpoint) copies(l core.Local, waits bool) (core.Local, bool) {
	if waits || l.Buf == nil {
		return l, waits
	}
	charged, ok := e.n.budget.charge(l.Length)
	l.Charge = charged
	return l, !ok
}

// operate is begin for an operation that uses l, which f begins, and waits for it if waits:
// then f gets a waiter.
func (c *conn) operate(l core.Local, waits bool, may func() (fence.Mark, bool), f func(w *core.Waiter) error) error {
	var w *core.Waiter
	if waits {
		w = c.newWaiter()
	}
	if err := c.begin(waits || l.Length <= inlineMax, may, func() error { return f(w) }); err != nil {
		c.link.n.budget.refund(l.Charge)
		return err
	}
	if !waits {
		return nil
	}
	// A close ends the wait; but while the caller's own memory is in use it
	// must not have it back. Then the close waits for the operation too.
	quit := c.bye.closing
	if l.Buf != nil {
		quit = nil
	}
	_, err := c.await(context.Background(), w, quit)
	return err
}

// begin runs f, which begins an operation, once it may, and gets its frames written
// as kick does. It calls may and f with mu held.
func (c *conn) begin(inline bool, may func() (fence.Mark, bool), f func() error) error {
	for {
		c.mu.Lock()
		if err := c.overLocked(); err != nil {
			c.mu.Unlock()
			return err
		}
		m, ok := may()
		if ok {
			err := f()
			left := c.start(inline)
			c.mu.Unlock()
			c.do(left)
			return err
		}
		w := c.newWaiter()
		pending, err := c.core.Wait(m, w)
		c.mu.Unlock()
		switch {
		case err != nil:
			c.freeWaiter(w)
			return err
		case pending:
			// A failed operation makes room too; its fence reports it.
			_, _ = c.await(context.Background(), w, c.bye.closing)
		default:
			c.freeWaiter(w)
		}
	}
}

func (e *endpoint) Atomic(ctx context.Context, a rma.Atomic) (uint64, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return 0, err
	}
	w := c.newWaiter()
	may := c.core.MayChange(core.Local{}, a.Offset, int64(a.Width))
	if err := c.begin(false, may, func() error { return c.core.Atomic(a, w) }); err != nil {
		return 0, err
	}
	return c.await(ctx, w, c.bye.closing)
}

func (e *endpoint) FenceMark(by fence.Side) (fence.Mark, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return fence.Mark{}, err
	}
	e.n.counters.fences[0].Add(1)
	switch by {
	case fence.InitSelf:
		return c.markSelf(), nil
	case fence.InitPeer:
		return c.markPeer()
	}
	return fence.Mark{}, status.Invalid
}

func (c *conn) markSelf() fence.Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.MarkSelf()
}

func (c *conn) markPeer() (fence.Mark, error) {
	seq, err := c.ask(context.Background(), func(w *core.Waiter) (bool, error) {
		return true, c.core.MarkPeer(w)
	})
	return fence.Mark{Side: fence.InitPeer, Seq: seq}, err
}

func (e *endpoint) FenceWait(ctx context.Context, m fence.Mark) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	e.n.counters.fences[1].Add(1)
	return c.wait(ctx, m)
}

func (c *conn) wait(ctx context.Context, m fence.Mark) error {
	return c.call(ctx, func(w *core.Waiter) (bool, error) { return c.core.Wait(m, w) })
}

func (e *endpoint) FenceSignal(s fence.Signal) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	e.n.counters.fences[2].Add(1)
	if s.By == fence.InitPeer {
		return c.signalByPeer(s)
	}
	err = c.begin(false, c.core.MayBegin, func() error { return c.core.Signal(s) })
	if err != nil || c.link.otherEnd == nil {
		return err
	}
	return c.wait(context.Background(), c.markSelf()) // on one node the values are there on return
}

func (c *conn) signalByPeer(s fence.Signal) error {
	if c.servesRMA() { // the peer's operations through the path are applied when the mark is there
		if _, err := c.markPeer(); err != nil {
			return err
		}
	}
	err := c.call(context.Background(), func(w *core.Waiter) (bool, error) {
		return true, c.core.SignalByPeer(s, w)
	})
	if err != nil || c.link.otherEnd == nil {
		return err
	}
	m, err := c.markPeer()
	if err != nil {
		return err
	}
	return c.wait(context.Background(), m)
}

func (e *endpoint) MapRegion(roff, n int64, prot rma.Prot) (attach.WindowRegion, int64, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return nil, 0, err
	}
	if roff%rma.PageSize != 0 || n <= 0 || n%rma.PageSize != 0 {
		return nil, 0, status.Invalid
	}
	owner := c.otherEnd.Load()
	if owner == nil {
		return nil, 0, status.NotSupp // the memory is in another machine
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	sp, err := owner.core.Export(roff, n, prot)
	if err != nil {
		return nil, 0, err
	}
	if sp.Window.Prot&rma.ProtRead == 0 { // a mapping can be read, whatever it was asked for
		owner.core.EndExport(sp)
		return nil, 0, fmt.Errorf("a window that may not be read cannot be mapped: %w", status.NotSupp)
	}
	r := &exportedWindow{Region: sp.Window.Mem.region, span: sp, owner: owner}
	r.refs.Store(1)
	return r, at(sp), nil
}

// An exportedWindow is the memory of a window of owner that another application maps: the
// window stays until the last reference to it is released.
type exportedWindow struct {
	attach.Region
	span
	owner *conn
	refs  atomic.Int64
}

func (r *exportedWindow) Window() (behind attach.Region, off, n int64, prot rma.Prot) {
	w := r.span.Window
	return r.Region, w.Mem.off, w.Length, w.Prot
}

func (r *exportedWindow) Retain() { r.refs.Add(1) }

func (r *exportedWindow) Release() {
	if r.refs.Add(-1) == 0 {
		r.owner.mu.Lock()
		defer r.owner.mu.Unlock()
		r.owner.core.EndExport(r.span)
	}
}
