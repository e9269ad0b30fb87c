package conformance

import (
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// mapping maps a page of the peer's window.
func (c *check) mapping(e end, off int64, prot fabric.Prot) *fabric.Mapping {
	c.Helper()
	m, err := e.Mmap(off, page, prot)
	c.must(err)
	c.Cleanup(func() { m.Close() })
	return m
}

// wordRows are about words of window memory and of mappings.
var wordRows = []row{
	{call: "word", name: "own memory=one domain with the peer's atomics", conn: func(c *check, near, far end) {
		mem, err := c.far.Alloc(page)
		c.must(err)
		c.Cleanup(func() { mem.Close() })
		off := c.register(far, mem.Bytes(), 0, rw, 0)
		w, err := mem.Word64(8)
		c.must(err)
		w.Store(40)
		c.must(near.Add64(off+8, 1))
		c.fence(near, fabric.InitSelf)
		if old, err := near.FetchAdd64(c.ctx, off+8, 1); old != 41 || err != nil || w.Load() != 42 {
			c.Errorf("got %d, %v, then %d; want 41, then 42", old, err, w.Load())
		}
	}},
	{call: "word", name: "mapping=one domain with the owner's words", only: []Pair{SameNode, SameApp}, conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		mine, err := fabric.Word32At(r.mem, 4)
		c.must(err)
		theirs, err := c.mapping(near, r.off, rw).Word32(4)
		c.must(err)
		mine.Store(1)
		if got := theirs.Add(1); got != 2 || mine.Load() != 2 {
			c.Errorf("got %d, the owner sees %d", got, mine.Load())
		}
	}},
	{call: "word", name: "mapping that only reads=EACCES, and loads", only: []Pair{SameNode, SameApp}, conn: func(c *check, near, far end) {
		r := c.window(far, 1, rw)
		m := c.mapping(near, r.off, fabric.ProtRead)
		c.want(errOf(m.Word64(0)), syscall.EACCES)
		w, err := fabric.Word64At(m.Bytes(), 0)
		c.must(err)
		fabric.StoreUint64(r.mem, 6)
		is(c, "the word", w.Load(), 6)
	}},
	{call: "word", name: "mapping, unaligned=EINVAL", only: []Pair{SameNode, SameApp}, conn: func(c *check, near, far end) {
		m := c.mapping(near, c.window(far, 1, rw).off, rw)
		c.want(errOf(m.Word64(4)), syscall.EINVAL)
		c.want(errOf(m.Word32(2)), syscall.EINVAL)
	}},
	{call: "word", name: "mapping, behind its end=ENXIO", only: []Pair{SameNode, SameApp}, conn: func(c *check, near, far end) {
		m := c.mapping(near, c.window(far, 2, rw).off, rw)
		c.want(errOf(m.Word64(page)), syscall.ENXIO)
	}},
	{call: "word", name: "closed mapping=EBADF", only: []Pair{SameNode, SameApp}, conn: func(c *check, near, far end) {
		m := c.mapping(near, c.window(far, 1, rw).off, rw)
		c.must(m.Close())
		c.want(errOf(m.Word64(0)), syscall.EBADF)
	}},
}
