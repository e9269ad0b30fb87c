package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// A wordCall is one of the atomic calls on a word of the far end's window.
type wordCall struct {
	name  string
	width int64
	fetch bool // it returns the old value
	do    func(ctx context.Context, e end, roff int64, v uint64) (old uint64, err error)
	want  func(old, v uint64) uint64 // of words of 64 bits
}

// compared is the old value that CompareAndSwap expects.
const compared = 0xf0f0f0f0

// atomics are all atomic calls; those with a result are rows of "atomic", the others
// of "post".
var atomics = slices.Concat(
	kinds("Add", func(o, v uint64) uint64 { return o + v }, (*fabric.Endpoint).FetchAdd64, (*fabric.Endpoint).FetchAdd32, (*fabric.Endpoint).Add64, (*fabric.Endpoint).Add32),
	kinds("And", func(o, v uint64) uint64 { return o & v }, (*fabric.Endpoint).FetchAnd64, (*fabric.Endpoint).FetchAnd32, (*fabric.Endpoint).And64, (*fabric.Endpoint).And32),
	kinds("Or", func(o, v uint64) uint64 { return o | v }, (*fabric.Endpoint).FetchOr64, (*fabric.Endpoint).FetchOr32, (*fabric.Endpoint).Or64, (*fabric.Endpoint).Or32),
	kinds("Xor", func(o, v uint64) uint64 { return o ^ v }, (*fabric.Endpoint).FetchXor64, (*fabric.Endpoint).FetchXor32, (*fabric.Endpoint).Xor64, (*fabric.Endpoint).Xor32),
	kinds("Swap", func(_, v uint64) uint64 { return v }, (*fabric.Endpoint).Swap64, (*fabric.Endpoint).Swap32, (*fabric.Endpoint).Store64, (*fabric.Endpoint).Store32),
	kinds("Min", func(o, v uint64) uint64 { return min(o, v) }, (*fabric.Endpoint).FetchMin64, (*fabric.Endpoint).FetchMin32, (*fabric.Endpoint).Min64, (*fabric.Endpoint).Min32),
	kinds("Max", func(o, v uint64) uint64 { return max(o, v) }, (*fabric.Endpoint).FetchMax64, (*fabric.Endpoint).FetchMax32, (*fabric.Endpoint).Max64, (*fabric.Endpoint).Max32),
	[]wordCall{
		{"CompareAndSwap64", 8, true, func(ctx context.Context, e end, roff int64, v uint64) (uint64, error) {
			return e.CompareAndSwap64(ctx, roff, compared, v)
		}, swapped},
		{"CompareAndSwap32", 4, true, func(ctx context.Context, e end, roff int64, v uint64) (uint64, error) {
			old, err := e.CompareAndSwap32(ctx, roff, compared, uint32(v))
			return uint64(old), err
		}, swapped},
	},
)

func swapped(old, v uint64) uint64 {
	if old == compared {
		return v
	}
	return old
}

// kinds returns the four calls of one operation.
func kinds(name string, want func(o, v uint64) uint64,
	fetch64 func(*fabric.Endpoint, context.Context, int64, uint64) (uint64, error),
	fetch32 func(*fabric.Endpoint, context.Context, int64, uint32) (uint32, error),
	post64 func(*fabric.Endpoint, int64, uint64) error,
	post32 func(*fabric.Endpoint, int64, uint32) error) []wordCall {
	return []wordCall{
		{"fetching " + name + "64", 8, true, func(ctx context.Context, e end, roff int64, v uint64) (uint64, error) {
			return fetch64(e.Endpoint, ctx, roff, v)
		}, want},
		{"fetching " + name + "32", 4, true, func(ctx context.Context, e end, roff int64, v uint64) (uint64, error) {
			old, err := fetch32(e.Endpoint, ctx, roff, uint32(v))
			return uint64(old), err
		}, want},
		{"posted " + name + "64", 8, false, func(_ context.Context, e end, roff int64, v uint64) (uint64, error) {
			return 0, post64(e.Endpoint, roff, v)
		}, want},
		{"posted " + name + "32", 4, false, func(_ context.Context, e end, roff int64, v uint64) (uint64, error) {
			return 0, post32(e.Endpoint, roff, uint32(v))
		}, want},
	}
}

func (a wordCall) call() string {
	if a.fetch {
		return "atomic"
	}
	return "post"
}

// some are one call of each of the two kinds.
func some() []wordCall {
	fetch := slices.IndexFunc(atomics, func(a wordCall) bool { return a.fetch })
	post := slices.IndexFunc(atomics, func(a wordCall) bool { return !a.fetch })
	return []wordCall{atomics[fetch], atomics[post]}
}

func atomicRows() []row {
	var rows []row
	for _, a := range atomics {
		rows = append(rows, a.resultRow(), a.alignmentRow())
	}
	for _, a := range some() {
		rows = append(rows, needsConnection(a.call(), "", func(c *check, e end) error { return errOf(a.do(c.ctx, e, 0, 1)) })...)
		rows = append(rows, inStates(a.call(), "/unaligned, after the state", syscall.ENOTCONN, []state{unbound}, func(c *check, e end) error {
			return errOf(a.do(c.ctx, e, 3, 1))
		})...)
		rows = append(rows, a.rangeRows()...)
	}
	return append(rows, postOrderRows...)
}

// resultRow applies the call to words that it changes, and to their neighbours
// it must do nothing.
func (a wordCall) resultRow() row {
	return row{call: a.call(), name: "CONNECTED/" + a.name + "=the word changed, alone", conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		mask := uint64(math.MaxUint64) >> (64 - 8*a.width)
		for i, x := range [][2]uint64{{0, 1}, {compared, 0xff00ff}, {math.MaxUint64, 2}, {5, math.MaxUint64}, {1 << 31, 1<<63 + 7}} {
			old, v := x[0]&mask, x[1]&mask
			off := int64(64 + 8*i)
			want := slices.Clone(r.mem)
			putWord(r.mem[off:], a.width, old)
			putWord(want[off:], a.width, a.want(old, v)&mask)
			got, err := a.do(c.ctx, near, r.off+off, v)
			c.must(err)
			if a.fetch && got != old {
				c.Errorf("the old value is %#x, want %#x", got, old)
			}
			c.fence(near, fabric.InitSelf)
			c.same(r.mem, want)
		}
	}}
}

func putWord(p []byte, width int64, v uint64) {
	if width == 4 {
		binary.NativeEndian.PutUint32(p, uint32(v))
		return
	}
	binary.NativeEndian.PutUint64(p, v)
}

func (a wordCall) alignmentRow() row {
	return row{call: a.call(), name: "CONNECTED/" + a.name + ", unaligned=EINVAL, before the range", conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		for _, off := range []int64{1, a.width / 2, a.width - 1, page + 1, -1} {
			c.want(errOf(a.do(c.ctx, near, r.off+off, 1)), syscall.EINVAL)
		}
		c.fence(near, fabric.InitSelf)
		c.same(r.mem, make([]byte, page))
	}}
}

func (a wordCall) rangeRows() []row {
	try := func(name string, prot fabric.Prot, roff int64, errno syscall.Errno) row {
		return row{call: a.call(), name: fmt.Sprintf("CONNECTED/%s=%s", name, errnoName(errno)), conn: func(c *check, near, far end) {
			r := c.windowAt(far, 1, page, prot)
			c.want(errOf(a.do(c.ctx, near, roff, 1)), errno)
			c.fence(near, fabric.InitSelf)
			c.same(r.mem, make([]byte, page))
		}}
	}
	return []row{
		try("behind the window", rw, 2*page, syscall.ENXIO),
		try("before the window", rw, page-a.width, syscall.ENXIO),
		try("negative offset", rw, -8, syscall.ENXIO),
		try("offset at the end of the space", rw, math.MaxInt64-7, syscall.ENXIO),
		try("window only reads", fabric.ProtRead, page, syscall.EACCES),
		try("window only writes", fabric.ProtWrite, page, syscall.EACCES),
		try("window allows nothing", 0, page, syscall.EACCES),
		{call: a.call(), name: "CONNECTED/window was unregistered=ENXIO", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			c.must(far.Unregister(r.off, page))
			c.want(errOf(a.do(c.ctx, near, r.off, 1)), syscall.ENXIO)
		}},
	}
}

// postOrderRows are about posted atomics among transfers.
var postOrderRows = []row{
	{call: "post", name: "CONNECTED/2000=all there at the fence", conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		for range 2000 {
			c.must(near.Add64(r.off, 1))
		}
		c.fence(near, fabric.InitSelf)
		is(c, "the word", fabric.LoadUint64(r.mem), 2000)
	}},
	{call: "post", name: "CONNECTED/between transfers=in order", conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		var before, after [8]byte
		word := func(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
		c.must(near.VWriteTo(word(40), r.off, 0))
		c.must(near.VReadFrom(before[:], r.off, 0))
		c.must(near.Add64(r.off, 2))
		c.must(near.VReadFrom(after[:], r.off, 0))
		c.must(near.Store64(r.off, 7))
		c.fence(near, fabric.InitSelf)
		c.same(before[:], word(40))
		c.same(after[:], word(42))
		c.same(r.mem[:8], word(7))
	}},
	{call: "post", name: "CONNECTED/then a fetching one=sees it", conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		for i := range uint32(100) {
			c.must(near.Add32(r.off, 1))
			if old, err := near.FetchAdd32(c.ctx, r.off, 0); old != i+1 || err != nil {
				c.Fatalf("after %d: %d, %v", i+1, old, err)
			}
		}
	}},
	{call: "post", name: "CONNECTED/then a signal=stored after it", conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		for i := range uint64(100) {
			c.must(near.Add64(r.off, 1))
			c.must(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: r.off + 64, RemoteValue: i + 1}))
			c.spin(r.mem[64:], i+1)
			if got := fabric.LoadUint64(r.mem); got != i+1 {
				c.Fatalf("the signal came with %d of %d", got, i+1)
			}
		}
	}},
}
