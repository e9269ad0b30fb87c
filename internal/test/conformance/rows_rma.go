package conformance

import (
	"math"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// A transfer is one of the four RMA calls between n bytes of the near end,
// which begin at lo of a local window or of memory, and the peer's space at
// roff.
type transfer struct {
	call   string
	writes bool // the bytes move from near to far
	window bool // the near bytes are in a window
	do     func(near end, w window, lo, n, roff int64, flags fabric.RMAFlags) error
}

var transfers = []transfer{
	{"writeto", true, true, func(near end, w window, lo, n, roff int64, flags fabric.RMAFlags) error {
		return near.WriteTo(w.off+lo, n, roff, flags)
	}},
	{"readfrom", false, true, func(near end, w window, lo, n, roff int64, flags fabric.RMAFlags) error {
		return near.ReadFrom(w.off+lo, n, roff, flags)
	}},
	{"vwriteto", true, false, func(near end, w window, lo, n, roff int64, flags fabric.RMAFlags) error {
		return near.VWriteTo(w.mem[lo:lo+n], roff, flags)
	}},
	{"vreadfrom", false, false, func(near end, w window, lo, n, roff int64, flags fabric.RMAFlags) error {
		return near.VReadFrom(w.mem[lo:lo+n], roff, flags)
	}},
}

func transferRows() []row {
	var rows []row
	for _, x := range transfers {
		rows = append(rows, x.stateRows()...)
		rows = append(rows, x.moveRows()...)
		rows = append(rows, x.visibleRows()...)
		rows = append(rows, x.flagRows()...)
		rows = append(rows, x.rangeRows()...)
		rows = append(rows, x.protectionRows()...)
		if x.window {
			rows = append(rows, x.ownRangeRows()...)
		}
	}
	return rows
}

// small is memory that is no window, for calls that fail before they access it.
func small() window { return window{0, make([]byte, 64)} }

func (x transfer) stateRows() []row {
	return slices.Concat(
		needsConnection(x.call, "", func(_ *check, e end) error { return x.do(e, small(), 0, 8, 0, fabric.Sync) }),
		inStates(x.call, "/unknown flag, after the state", syscall.ENOTCONN, []state{unbound}, func(_ *check, e end) error {
			return x.do(e, small(), 0, 8, 0, 0x10)
		}),
	)
}

// on is a row with near and far windows of pages each.
func (x transfer) on(name string, pages int, f func(c *check, near end, l, r window, far end)) row {
	return row{call: x.call, name: "CONNECTED/" + name, conn: func(c *check, near, far end) {
		f(c, near, c.window(near, pages, rw), c.window(far, pages, rw), far)
	}}
}

// moved fills the source, moves n bytes and compares both sides entirely.
func (x transfer) moved(c *check, near end, l, r window, lo, ro, n int64, flags fabric.RMAFlags) {
	c.Helper()
	from, to, fo, too := l.mem, r.mem, lo, ro
	if !x.writes {
		from, to, fo, too = r.mem, l.mem, ro, lo
	}
	copy(from, pattern(len(from), 11))
	want := slices.Clone(to)
	copy(want[too:too+n], from[fo:fo+n])
	c.must(x.do(near, l, lo, n, r.off+ro, flags))
	if flags&fabric.Sync == 0 {
		c.fence(near, fabric.InitSelf)
	}
	c.same(to, want)
}

func (x transfer) moveRows() []row {
	move := func(name string, pages int, lo, ro, n int64, flags fabric.RMAFlags) row {
		return x.on(name, pages, func(c *check, near end, l, r window, _ end) { x.moved(c, near, l, r, lo, ro, n, flags) })
	}
	return []row{
		move("SYNC=bytes moved", 1, 0, 0, page, fabric.Sync),
		move("SYNC, 1 byte=bytes moved", 1, 17, 4095, 1, fabric.Sync),
		move("SYNC, unaligned=bytes moved", 3, 4093, 7, 5001, fabric.Sync),
		move("SYNC, 1 MiB and 3=bytes moved", 258, 5, 4097, 1<<20+3, fabric.Sync),
		move("fence=bytes moved", 3, 1, 2, 9000, 0),
		move("fence, 1 MiB and 3=bytes moved", 258, 5, 4097, 1<<20+3, 0),
		move("USECPU=bytes moved", 1, 0, 8, 100, fabric.UseCPU),
		move("USECACHE=bytes moved", 1, 0, 8, 100, fabric.UseCache),
		move("ORDERED=bytes moved", 2, 3, 8, 4100, fabric.Ordered),
		move("all flags=bytes moved", 1, 0, 8, 100, fabric.UseCPU|fabric.UseCache|fabric.Ordered|fabric.Sync),
		x.on("several of one endpoint=applied in order", 1, func(c *check, near end, l, r window, _ end) {
			for i := range byte(50) {
				if x.writes {
					l.mem[i] = i
					c.must(x.do(near, l, int64(i), 1, r.off, 0))
				} else {
					r.mem[i] = i
					c.must(x.do(near, l, 0, 1, r.off+int64(i), 0))
				}
			}
			c.fence(near, fabric.InitSelf)
			if got := [2]byte{l.mem[0], r.mem[0]}; got != [2]byte{0, 49} && got != [2]byte{49, 0} {
				c.Errorf("first bytes %v, want the last transfer's", got)
			}
		}),
		{call: x.call, name: "CONNECTED/adjacent windows of the peer=one range", conn: func(c *check, near, far end) {
			l := c.window(near, 4, rw)
			mem := c.alloc(c.far, 4)
			for _, part := range []struct{ from, to int }{{0, 1}, {1, 3}, {3, 4}} {
				c.register(far, mem[part.from*page:part.to*page], int64(part.from*page), rw, fixed)
			}
			x.moved(c, near, l, window{0, mem}, 100, 50, 3*page+200, fabric.Sync)
		}},
		{call: x.call, name: "accepted/SYNC=bytes moved", check: func(c *check) {
			far, near := c.connected()
			x.moved(c, near, c.window(near, 1, rw), c.window(far, 1, rw), 0, 0, page, fabric.Sync)
		}},
		{call: x.call, name: "CONNECTED/fixed offset 0=bytes moved", conn: func(c *check, near, far end) {
			x.moved(c, near, c.windowAt(near, 1, 0, rw), c.windowAt(far, 1, 0, rw), 8, 16, 100, fabric.Sync)
		}},
	}
}

func (x transfer) flagRows() []row {
	return []row{
		x.on("unknown flag=EINVAL", 1, func(c *check, near end, l, r window, _ end) {
			c.want(x.do(near, l, 0, 8, r.off, 0x10), syscall.EINVAL)
		}),
		x.on("known and unknown flag=ok", 1, func(c *check, near end, l, r window, _ end) {
			c.want(x.do(near, l, 0, 8, r.off, 0x10|fabric.UseCPU|fabric.Sync), ok)
		}),
		x.on("length 0=EINVAL", 1, func(c *check, near end, l, r window, _ end) {
			c.want(x.do(near, l, 0, 0, r.off, fabric.Sync), syscall.EINVAL)
		}),
	}
}

func (x transfer) rangeRows() []row {
	outside := func(name string, n, roff int64) row {
		return x.on(name+"=ENXIO, nothing moved", 2, func(c *check, near end, l, r window, _ end) {
			copy(r.mem, pattern(len(r.mem), 12))
			want, own := slices.Clone(r.mem), slices.Clone(l.mem)
			if roff >= 0 && roff < 1<<20 {
				roff += r.off
			}
			c.want(x.do(near, l, 0, n, roff, fabric.Sync), syscall.ENXIO)
			c.same(r.mem, want)
			c.same(l.mem, own)
		})
	}
	return []row{
		x.on("3 MiB that end behind the peer's window=ENXIO, nothing moved", 770, func(c *check, near end, l, r window, _ end) {
			copy(r.mem, pattern(len(r.mem), 14))
			want, own := slices.Clone(r.mem), slices.Clone(l.mem)
			c.want(x.do(near, l, 0, 3<<20, r.off+770*page-3<<20+1, 0), syscall.ENXIO)
			c.fence(near, fabric.InitSelf)
			c.same(r.mem, want)
			c.same(l.mem, own)
		}),
		outside("behind the peer's window", 8, 2*page),
		outside("ends behind the peer's window", 16, 2*page-8),
		outside("negative offset of the peer", 8, -page),
		outside("offset of the peer at the end of the space", 8, math.MaxInt64-8),
		outside("range of the peer overflows", 16, math.MaxInt64-7),
		{call: x.call, name: "CONNECTED/peer has no window=ENXIO", conn: func(c *check, near, _ end) {
			c.want(x.do(near, c.window(near, 1, rw), 0, 8, 0, fabric.Sync), syscall.ENXIO)
		}},
		{call: x.call, name: "CONNECTED/gap between the peer's windows=ENXIO", conn: func(c *check, near, far end) {
			c.windowAt(far, 1, 0, rw)
			c.windowAt(far, 1, 2*page, rw)
			c.want(x.do(near, c.window(near, 3, rw), 0, 3*page, 0, fabric.Sync), syscall.ENXIO)
		}},
		{call: x.call, name: "CONNECTED/window of another connection=ENXIO", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 1)
			near, _ := c.dial(c.unbound(), listener, at)
			_, other := c.dial(c.unbound(), listener, at)
			c.windowAt(other, 1, 0, rw)
			c.want(x.do(near, c.window(near, 1, rw), 0, 8, 0, fabric.Sync), syscall.ENXIO)
		}},
		x.on("window was unregistered=ENXIO", 1, func(c *check, near end, l, r window, far end) {
			c.must(far.Unregister(r.off, page))
			c.want(x.do(near, l, 0, 8, r.off, fabric.Sync), syscall.ENXIO)
		}),
	}
}

// ownRangeRows are about the initiator's own windows.
func (x transfer) ownRangeRows() []row {
	outside := func(name string, lo, n int64, errno syscall.Errno) row {
		return x.on(name+"="+errnoName(errno), 2, func(c *check, near end, l, r window, _ end) {
			c.want(x.do(near, window{off: 0}, lo, n, r.off, fabric.Sync), errno)
		})
	}
	return []row{
		outside("negative length", fabric.FirstOffset, -8, syscall.EINVAL),
		outside("behind the own window", fabric.FirstOffset+2*page, 8, syscall.ENXIO),
		outside("ends behind the own window", fabric.FirstOffset+2*page-4, 8, syscall.ENXIO),
		outside("negative own offset", -page, 8, syscall.ENXIO),
		outside("own range overflows", math.MaxInt64-7, 16, syscall.ENXIO),
		{call: x.call, name: "CONNECTED/no own window=ENXIO", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			c.want(x.do(near, window{}, 0, 8, r.off, fabric.Sync), syscall.ENXIO)
		}},
		{call: x.call, name: "CONNECTED/gap between own windows=ENXIO", conn: func(c *check, near, far end) {
			r := c.window(far, 3, rw)
			c.windowAt(near, 1, 0, rw)
			c.windowAt(near, 1, 2*page, rw)
			c.want(x.do(near, window{}, 0, 3*page, r.off, fabric.Sync), syscall.ENXIO)
		}},
		{call: x.call, name: "CONNECTED/adjacent own windows=one range", conn: func(c *check, near, far end) {
			r := c.window(far, 3, rw)
			mem := c.alloc(c.near, 3)
			for i := range 3 {
				c.register(near, mem[i*page:(i+1)*page], int64(i*page), rw, fixed)
			}
			x.moved(c, near, window{0, mem}, r, 9, 100, 2*page+500, fabric.Sync)
		}},
		x.on("own window was unregistered=ENXIO", 1, func(c *check, near end, l, r window, _ end) {
			c.must(near.Unregister(l.off, page))
			c.want(x.do(near, l, 0, 8, r.off, fabric.Sync), syscall.ENXIO)
		}),
	}
}

func (x transfer) protectionRows() []row {
	try := func(name string, mine, theirs fabric.Prot, errno syscall.Errno) row {
		return row{call: x.call, name: "CONNECTED/" + name + "=" + errnoName(errno), conn: func(c *check, near, far end) {
			l, r := c.window(near, 1, mine), c.window(far, 1, theirs)
			c.want(x.do(near, l, 0, 8, r.off, fabric.Sync), errno)
		}}
	}
	const r, w = fabric.ProtRead, fabric.ProtWrite
	mine, theirs, notTheirs := w, r, w
	if x.writes {
		mine, theirs, notTheirs = r, w, r
	}
	rows := []row{
		try("just enough protection", mine, theirs, ok),
		try("peer's window allows the other direction only", rw, notTheirs, syscall.EACCES),
		try("peer's window allows nothing", rw, 0, syscall.EACCES),
		{call: x.call, name: "CONNECTED/one of the peer's adjacent windows does not allow it=EACCES, nothing moved", conn: func(c *check, near, far end) {
			l := c.window(near, 2, rw)
			one := c.windowAt(far, 1, 0, rw)
			c.windowAt(far, 1, page, notTheirs)
			copy(l.mem, pattern(len(l.mem), 13))
			mine, theirs := slices.Clone(l.mem), slices.Clone(one.mem)
			c.want(x.do(near, l, 0, 2*page, 0, fabric.Sync), syscall.EACCES)
			c.same(l.mem, mine)
			c.same(one.mem, theirs)
		}},
	}
	rows = append(rows, row{call: x.call, name: "CONNECTED/last of 3 MiB in a window that does not allow it=EACCES, nothing moved", conn: func(c *check, near, far end) {
		l := c.window(near, 768, rw)
		most := c.windowAt(far, 767, 0, rw)
		c.windowAt(far, 1, 767*page, notTheirs)
		copy(l.mem, pattern(len(l.mem), 15))
		mine, theirs := slices.Clone(l.mem), slices.Clone(most.mem)
		c.want(x.do(near, l, 0, 3<<20, 0, 0), syscall.EACCES)
		c.fence(near, fabric.InitSelf)
		c.same(l.mem, mine)
		c.same(most.mem, theirs)
	}})
	if x.window {
		rows = append(rows,
			try("own window allows the other direction only", rw&^mine, rw, syscall.EACCES),
			try("own window allows nothing", 0, rw, syscall.EACCES))
	}
	return rows
}
