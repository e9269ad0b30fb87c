package engine

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
	may := c.core.MayChange(core.Local{}, a.Offset, int64(a.Width))
	return c.operate(core.Local{}, c.link.otherEnd != nil, may, func(w *core.Waiter) error { return c.core.Post(a, w) })
}

func (e *endpoint) PutSignal(loff, n int64, p rma.Put) error {
	return e.put(core.Local{Offset: loff, Length: n}, p)
}

func (e *endpoint) VPutSignal(b []byte, p rma.Put) error {
	return e.put(core.Local{Buf: b, Length: int64(len(b))}, p)
}

// put begins a write and the signal behind it. On one node both are there on return.
func (e *endpoint) put(l core.Local, p rma.Put) error {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return err
	}
	l, waits := e.copies(l, c.link.otherEnd != nil)
	err = c.operate(l, waits, c.roomForPut(l, p), func(w *core.Waiter) error { _, err := c.core.Put(l, p, w); return err })
	if err != nil || c.link.otherEnd == nil {
		return err
	}
	return c.wait(context.Background(), c.markSelf())
}

// roomForPut is room for a put: neither its bytes nor its word may overtake a read.
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
