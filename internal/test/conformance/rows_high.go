package conformance

import (
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// highest is the offset of the last page that can be registered.
const highest = lastPage - page

// highRows are about offsets of 2^62 and more. The header keeps fixed windows below
// that in one implementation; the space extends to 2^63.
func highRows() []row {
	rows := []row{
		registers("CONNECTED/fixed, offset 2^62=that offset", ok, 1, 1<<62, rw, fixed),
		registers("CONNECTED/fixed, highest offset=that offset", ok, 1, highest, rw, fixed),
		registers("CONNECTED/fixed, page at the end of the space=EINVAL", syscall.EINVAL, 1, lastPage, rw, fixed),
		{call: "register", name: "CONNECTED/hint above 2^62 is free=hint", conn: func(c *check, near, _ end) {
			got, err := near.Register(c.alloc(c.near, 1), 1<<62+64*page, rw, 0)
			c.want(err, ok)
			is(c, "the offset", got, 1<<62+64*page)
		}},
		{call: "register", name: "CONNECTED/fixed over a window at the highest offset=EADDRINUSE", conn: func(c *check, near, _ end) {
			c.windowAt(near, 1, highest, rw)
			c.want(errOf(near.Register(c.alloc(c.near, 2), highest-page, rw, fixed)), syscall.EADDRINUSE)
		}},
		{call: "unregister", name: "CONNECTED/window at the highest offset=ok", conn: func(c *check, near, far end) {
			w := c.windowAt(near, 1, highest, rw)
			c.want(near.Unregister(w.off, page), ok)
			c.want(far.VWriteTo([]byte("x"), w.off, fabric.Sync), syscall.ENXIO)
		}},
		{call: "mmap", name: "CONNECTED/window at the highest offset=ok", only: local, conn: func(c *check, near, far end) {
			w := c.windowAt(far, 1, highest, rw)
			fabric.StoreUint64(c.mapping(near, w.off, rw).Bytes(), 8)
			is(c, "the window's memory", fabric.LoadUint64(w.mem), 8)
		}},
		{call: "fence_signal", name: "CONNECTED/word at the highest offset=stored", conn: func(c *check, near, far end) {
			w := c.windowAt(far, 1, highest, rw)
			c.must(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: w.off + page - 8, RemoteValue: 9}))
			c.spin(w.mem[page-8:], 9)
		}},
	}
	for _, x := range slices.Concat(transfers, puts(fabric.Notice{Offset: highest + page - 8})) {
		rows = append(rows, row{call: x.call, name: "CONNECTED/windows at 2^62 and at the highest offset=bytes moved", conn: func(c *check, near, far end) {
			x.moved(c, near, c.windowAt(near, 1, 1<<62, rw), c.windowAt(far, 1, highest, rw), 8, 16, 100, 0)
		}})
	}
	for _, a := range some() {
		rows = append(rows, row{call: a.call(), name: "CONNECTED/word at the highest offset=changed", conn: func(c *check, near, far end) {
			w := c.windowAt(far, 1, highest, rw)
			c.want(errOf(a.do(c.ctx, near, w.off+page-8, 3)), ok)
			c.fence(near, fabric.InitSelf)
			is(c, "the word", fabric.LoadUint64(w.mem[page-8:]), 3)
		}})
	}
	return rows
}
