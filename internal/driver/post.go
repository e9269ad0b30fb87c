package driver

import (
	"context"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/rma"
)

// PostAtomic begins an atomic without a result. On one node it is there on
// return, as transfers are.
func (e *endpoint) PostAtomic(a rma.Atomic) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	var w *core.Waiter
	if c.link.twin != nil {
		w = c.newWaiter()
	}
	may := c.core.MayChange(core.Local{}, a.Offset, int64(a.Width))
	if err := c.begin(true, may, func() error { return c.core.Post(a, w) }); err != nil {
		return err
	}
	if w != nil {
		_, err = c.await(context.Background(), w, c.bye.closing)
	}
	return err
}

func (e *endpoint) PutSignal(loff, n int64, p rma.Put) error {
	return e.put(core.Local{Offset: loff, Length: n}, p)
}

func (e *endpoint) VPutSignal(b []byte, p rma.Put) error {
	return e.put(core.Local{Buf: b, Length: int64(len(b))}, p)
}

// put begins a write and the signal behind it. On one node both are there on
// return.
func (e *endpoint) put(l core.Local, p rma.Put) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	var w *core.Waiter
	waits := c.link.twin != nil
	if !waits && l.Buf != nil && e.copied.Load() { // as in transfer
		charged, ok := e.n.budget.charge(l.Length)
		l.Charge, waits = charged, !ok
	}
	if waits {
		w = c.newWaiter()
	}
	inline := w != nil || l.Length <= inlineMax
	if err := c.begin(inline, c.roomForPut(l, p), func() error { _, err := c.core.Put(l, p, w); return err }); err != nil {
		e.n.budget.refund(l.Charge)
		return err
	}
	if w == nil {
		return nil
	}
	quit := c.bye.closing
	if l.Buf != nil { // as in transfer
		quit = nil
	}
	if _, err := c.await(context.Background(), w, quit); err != nil || c.link.twin == nil {
		return err
	}
	c.mu.Lock()
	m := c.core.MarkSelf()
	c.mu.Unlock()
	return c.wait(context.Background(), m)
}

// roomForPut is room for a put: neither its bytes nor its word may overtake a
// read.
func (c *conn) roomForPut(l core.Local, p rma.Put) func() (fence.Mark, bool) {
	return func() (fence.Mark, bool) {
		if m, clash := c.core.Clash(l, p.Offset, l.Length); clash {
			return m, false
		}
		if m, clash := c.core.Clash(core.Local{}, p.Word, 8); clash && p.More == 0 {
			return m, false
		}
		return c.core.Oldest(), c.core.RoomForPut()
	}
}
