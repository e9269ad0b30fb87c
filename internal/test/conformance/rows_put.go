package conformance

import (
	"math"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// puts are the transfers with a signal behind them. The word of the transfer's
// rows is the last one of the peer's window, or the first one of the space.
func puts(sig fabric.Notice) []transfer {
	return []transfer{
		{"putsignal", true, true, func(near end, w window, lo, n, roff int64, _ fabric.RMAFlags) error {
			return near.PutSignal(w.off+lo, n, roff, sig)
		}},
		{"vputsignal", true, false, func(near end, w window, lo, n, roff int64, _ fabric.RMAFlags) error {
			return near.VPutSignal(w.mem[lo:lo+n], roff, sig)
		}},
	}
}

func putRows() []row {
	var rows []row
	for i, x := range puts(fabric.Notice{}) {
		with := func(sig fabric.Notice) transfer { return puts(sig)[i] }
		rows = append(rows, needsConnection(x.call, "", func(_ *check, e end) error { return x.do(e, small(), 0, 8, 0, 0) })...)
		rows = append(rows, inStates(x.call, "/odd word, after the state", syscall.ENOTCONN, []state{unbound}, func(_ *check, e end) error {
			return with(fabric.Notice{Offset: 3}).do(e, small(), 0, 8, 0, 0)
		})...)
		rows = append(rows, putMoveRows(x.call, with)...)
		rows = append(rows, putArgumentRows(x.call, with)...)
	}
	return rows
}

func putMoveRows(call string, with func(fabric.Notice) transfer) []row {
	move := func(name string, pages int, lo, ro, n int64) row {
		return row{call: call, name: "CONNECTED/" + name + "=bytes are there with the signal", conn: func(c *check, near, far end) {
			l, r, word := c.window(near, pages, rw), c.window(far, pages, rw), c.window(far, 1, rw)
			copy(l.mem, pattern(len(l.mem), 21))
			want := slices.Clone(r.mem)
			copy(want[ro:ro+n], l.mem[lo:lo+n])
			sig := fabric.Notice{Offset: word.off + 8, Value: 0x1122334455667788}
			c.must(with(sig).do(near, l, lo, n, r.off+ro, 0))
			c.spin(word.mem[8:], sig.Value)
			c.same(r.mem, want)
			c.fence(near, fabric.InitSelf) // the bytes are the transfer's until now
			c.same(word.mem[16:], make([]byte, page-16))
		}}
	}
	return []row{
		move("1 byte", 1, 17, 4095, 1),
		move("unaligned", 3, 4093, 7, 5001),
		move("1 MiB", 256, 0, 0, 1<<20),
		move("3 MiB and 3", 770, 5, 4097, 3<<20+3),
		{call: call, name: "CONNECTED/word among the bytes=the signal is stored last", conn: func(c *check, near, far end) {
			l, r := c.window(near, 1, rw), c.window(far, 1, rw)
			copy(l.mem, pattern(page, 22))
			c.must(with(fabric.Notice{Offset: r.off + 64, Value: 9}).do(near, l, 0, page, r.off, 0))
			c.fence(near, fabric.InitSelf)
			want := slices.Clone(l.mem)
			fabric.StoreUint64(want[64:], 9)
			c.same(r.mem, want)
		}},
		{call: call, name: "CONNECTED/200 without a fence=each with its bytes, in order", conn: func(c *check, near, far end) {
			l, r := c.window(near, 1, rw), c.window(far, 2, rw)
			copy(l.mem, pattern(page, 24))
			for i := range int64(200) {
				x := with(fabric.Notice{Offset: r.off + page, Value: uint64(i + 1)})
				c.must(x.do(near, l, 8*i, 8, r.off+8*i, 0))
				c.spin(r.mem[page:], uint64(i+1))
				c.same(r.mem[8*i:8*i+8], l.mem[8*i:8*i+8])
			}
		}},
	}
}

// putArgumentRows are about one wrong argument each: nothing moves.
func putArgumentRows(call string, with func(fabric.Notice) transfer) []row {
	try := func(name string, n, roff, word int64, data, sig fabric.Prot, errno syscall.Errno) row {
		return row{call: call, name: "CONNECTED/" + name + "=" + errnoName(errno), conn: func(c *check, near, far end) {
			l := c.window(near, 600, rw)
			r, w := c.windowAt(far, 600, 0, data), c.windowAt(far, 1, 1000*page, sig)
			copy(l.mem, pattern(len(l.mem), 23))
			c.want(with(fabric.Notice{Offset: word, Value: 1}).do(near, l, 0, n, roff, 0), errno)
			c.fence(near, fabric.InitSelf)
			if errno != 0 {
				c.same(r.mem, make([]byte, len(r.mem)))
				c.same(w.mem, make([]byte, page))
			}
		}}
	}
	const at, last = 1000 * page, 600 * page
	const r, w = fabric.ProtRead, fabric.ProtWrite
	rows := []row{
		try("just enough protection", 8, 0, at, w, w, ok),
		try("length 0", 0, 0, at, rw, rw, syscall.EINVAL),
		try("word is a multiple of 4 only", 8, 0, at+4, rw, rw, syscall.EINVAL),
		try("word is odd and not registered", 8, 0, 2*at+1, rw, rw, syscall.EINVAL),
		try("word not registered", 8, 0, at+page, rw, rw, syscall.ENXIO),
		try("word negative", 8, 0, -8, rw, rw, syscall.ENXIO),
		try("word at the end of the space", 8, 0, math.MaxInt64-7, rw, rw, syscall.ENXIO),
		try("word in a window that only reads", 8, 0, at, rw, r, syscall.EACCES),
		try("bytes not registered", 8, last, at, rw, rw, syscall.ENXIO),
		try("bytes end behind the window", 16, last-8, at, rw, rw, syscall.ENXIO),
		try("bytes negative", 8, -page, at, rw, rw, syscall.ENXIO),
		try("bytes overflow", 16, math.MaxInt64-7, at, rw, rw, syscall.ENXIO),
		try("bytes in a window that only reads", 8, 0, at, r, rw, syscall.EACCES),
		try("2 MiB and the word not registered", 2<<20, 0, at+page, rw, rw, syscall.ENXIO),
		try("2 MiB that end behind the window", 2<<20, last-2<<20+1, at, rw, rw, syscall.ENXIO),
	}
	if call == "putsignal" {
		rows = append(rows, row{call: call, name: "CONNECTED/own bytes not registered=ENXIO", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			c.want(with(fabric.Notice{Offset: r.off}).do(near, window{}, 0, 8, r.off, 0), syscall.ENXIO)
			c.fence(near, fabric.InitSelf)
			c.same(r.mem, make([]byte, page))
		}})
	}
	return rows
}
