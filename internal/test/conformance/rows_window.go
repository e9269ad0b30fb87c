package conformance

import (
	"math"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

func registerAny(c *check, e end) error {
	return errOf(e.Register(c.alloc(c.near, 1), 0, rw, 0))
}

// registers is a row about Register on a connected endpoint.
func registers(name string, errno syscall.Errno, pages int, off int64, prot fabric.Prot, flags fabric.MapFlags) row {
	return row{call: "register", name: name, conn: func(c *check, near, _ end) {
		got, err := near.Register(c.alloc(c.near, pages), off, prot, flags)
		c.want(err, errno)
		if errno == ok && flags&fabric.MapFixed != 0 && got != off {
			c.Errorf("returned %#x", got)
		}
	}}
}

const fixed = fabric.MapFixed

// lastPage is the last page of the offset space.
const lastPage = math.MaxInt64 &^ (page - 1)

var registerRows = slices.Concat(
	needsConnection("register", "", registerAny),
	inStates("register", "/unknown flag, before the state", syscall.EINVAL, []state{unbound, disconnected}, func(c *check, e end) error {
		return errOf(e.Register(c.alloc(c.near, 1), 0, rw, 0x40))
	}),
	[]row{
		registers("CONNECTED/offset 0, fixed=0", ok, 1, 0, rw, fixed),
		registers("CONNECTED/offset 16 pages, fixed=that offset", ok, 3, 16*page, rw, fixed),
		registers("CONNECTED/protection none=ok", ok, 1, 0, 0, 0),
		registers("CONNECTED/protection read=ok", ok, 1, 0, fabric.ProtRead, 0),
		registers("CONNECTED/protection write=ok", ok, 1, 0, fabric.ProtWrite, 0),
		registers("CONNECTED/unknown protection=EINVAL", syscall.EINVAL, 1, 0, 4, 0),
		registers("CONNECTED/known and unknown protection=EINVAL", syscall.EINVAL, 1, 0, 7, 0),
		registers("CONNECTED/unknown flag=EINVAL", syscall.EINVAL, 1, 0, rw, 0x40),
		registers("CONNECTED/flag of the kernel (SCIF_MAP_KERNEL)=EINVAL", syscall.EINVAL, 1, 0, rw, 0x20),
		registers("CONNECTED/fixed and unknown flag=EINVAL", syscall.EINVAL, 1, 0, rw, fixed|0x40),
		registers("CONNECTED/fixed, unaligned offset=EINVAL", syscall.EINVAL, 1, page+1, rw, fixed),
		registers("CONNECTED/fixed, negative offset=EINVAL", syscall.EINVAL, 1, -page, rw, fixed),
		registers("CONNECTED/fixed, range overflows=EINVAL", syscall.EINVAL, 2, lastPage, rw, fixed),
		registers("CONNECTED/unaligned hint=ok", ok, 1, page+1, rw, 0),
		registers("CONNECTED/negative hint=ok", ok, 1, -page, rw, 0),
		{call: "register", name: "CONNECTED/first offset=0x4000000000000000, at both ends", conn: func(c *check, near, far end) {
			for _, e := range []end{near, far} {
				first, second := c.window(e, 2, rw), c.window(e, 1, rw)
				if first.off != fabric.FirstOffset || second.off != fabric.FirstOffset+2*page {
					c.Errorf("got %#x and %#x", first.off, second.off)
				}
			}
		}},
		{call: "register", name: "CONNECTED/hint is free=hint", conn: func(c *check, near, _ end) {
			got, err := near.Register(c.alloc(c.near, 1), 0x10000, rw, 0)
			c.want(err, ok)
			is(c, "the offset", got, 0x10000)
		}},
		{call: "register", name: "CONNECTED/hint is taken=chosen offset", conn: func(c *check, near, _ end) {
			c.windowAt(near, 1, 0x10000, rw)
			got, err := near.Register(c.alloc(c.near, 1), 0x10000, rw, 0)
			c.want(err, ok)
			is(c, "the offset", got, fabric.FirstOffset)
		}},
		{call: "register", name: "CONNECTED/chosen offset=lowest free", conn: func(c *check, near, _ end) {
			first := c.window(near, 1, rw)
			c.window(near, 1, rw)
			c.must(near.Unregister(first.off, page))
			if got := c.window(near, 1, rw); got.off != first.off {
				c.Errorf("got %#x", got.off)
			}
		}},
		{call: "register", name: "CONNECTED/fixed over a window=EADDRINUSE", conn: func(c *check, near, _ end) {
			w := c.windowAt(near, 2, 16*page, rw)
			for _, at := range []int64{w.off - page, w.off, w.off + page} {
				c.want(errOf(near.Register(c.alloc(c.near, 2), at, rw, fixed)), syscall.EADDRINUSE)
			}
			c.windowAt(near, 1, w.off-page, rw)
			c.windowAt(near, 1, w.off+2*page, rw)
		}},
		{call: "register", name: "CONNECTED/fixed over an unregistered window that is mapped=EADDRINUSE", only: local, conn: func(c *check, near, far end) {
			w := c.windowAt(near, 1, 16*page, rw)
			m := c.mapping(far, w.off, rw)
			c.want(near.Unregister(w.off, page), ok)
			c.want(errOf(near.Register(c.alloc(c.near, 1), w.off, rw, fixed)), syscall.EADDRINUSE)
			c.must(m.Close())
			c.windowAt(near, 1, w.off, rw)
		}},
		{call: "register", name: "CONNECTED/no memory=EINVAL", conn: func(c *check, near, _ end) {
			c.want(errOf(near.Register(nil, 0, rw, 0)), syscall.EINVAL)
			c.want(errOf(near.Register(c.alloc(c.near, 1)[:0], 0, rw, 0)), syscall.EINVAL)
		}},
		{call: "register", name: "CONNECTED/memory that was given back=EFAULT", conn: func(c *check, near, _ end) {
			mem, err := c.near.Alloc(page)
			c.must(err)
			p := mem.Bytes()
			c.must(mem.Close())
			c.want(errOf(near.Register(p, 0, rw, 0)), syscall.EFAULT)
		}},
		{call: "register", name: "CONNECTED/length not in pages=EINVAL", conn: func(c *check, near, _ end) {
			c.want(errOf(near.Register(c.alloc(c.near, 2)[:page+8], 0, rw, 0)), syscall.EINVAL)
		}},
		{call: "register", name: "CONNECTED/memory not page-aligned=EINVAL", conn: func(c *check, near, _ end) {
			c.want(errOf(near.Register(c.alloc(c.near, 2)[8:page+8], 0, rw, 0)), syscall.EINVAL)
		}},
		{call: "register", name: "CONNECTED/same memory twice=two windows", conn: func(c *check, near, far end) {
			mem := c.alloc(c.near, 1)
			one := c.register(near, mem, 0, rw, 0)
			other := c.register(near, mem, 0, rw, 0)
			want := pattern(page, 5)
			c.must(far.VWriteTo(want, one, fabric.Sync))
			c.same(c.pull(far, other, page), want)
		}},
		{call: "register", name: "CONNECTED/part of the memory=window onto that part", conn: func(c *check, near, far end) {
			mem := c.alloc(c.near, 4)
			off := c.register(near, mem[page:3*page], 0, rw, 0)
			want := pattern(2*page, 6)
			c.must(far.VWriteTo(want, off, fabric.Sync))
			c.same(mem[page:3*page], want)
			c.same(mem[:page], make([]byte, page))
			c.same(mem[3*page:], make([]byte, page))
		}},
		{call: "register", name: "CONNECTED/same memory on two connections=shared", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 1)
			near1, far1 := c.dial(c.unbound(), listener, at)
			near2, far2 := c.dial(c.unbound(), listener, at)
			mem := c.alloc(c.near, 1)
			one := c.register(near1, mem, 0, rw, 0)
			other := c.register(near2, mem, 0, rw, 0)
			want := pattern(page, 7)
			c.must(far1.VWriteTo(want, one, fabric.Sync))
			c.same(c.pull(far2, other, page), want)
		}},
		{call: "register", name: "CONNECTED/returns=the peer has the window", conn: func(c *check, near, far end) {
			for range 20 {
				w := c.window(near, 1, rw)
				c.want(far.VWriteTo([]byte("there"), w.off, fabric.Sync), ok)
			}
		}},
		{call: "register", name: "CONNECTED/memory given up by its owner=window keeps it", conn: func(c *check, near, far end) {
			mem, err := c.near.Alloc(page)
			c.must(err)
			off := c.register(near, mem.Bytes(), 0, rw, 0)
			c.must(mem.Close())
			want := pattern(page, 8)
			c.must(far.VWriteTo(want, off, fabric.Sync))
			c.same(c.pull(far, off, page), want)
		}},
		{call: "register", name: "CONNECTED/same offset on two connections=two spaces", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 1)
			near1, far1 := c.dial(c.unbound(), listener, at)
			near2, far2 := c.dial(c.unbound(), listener, at)
			c.windowAt(near1, 1, 0, rw)
			other := c.windowAt(near2, 1, 0, rw)
			c.must(far1.VWriteTo([]byte("one"), 0, fabric.Sync))
			c.must(far2.VWriteTo([]byte("two"), 0, fabric.Sync))
			c.same(other.mem[:3], []byte("two"))
			c.same(c.pull(far1, 0, 3), []byte("one"))
		}},
	},
)

// local are the pairs that can map each other's memory.
var local = []Pair{SameNode, SameApp}

func unregisterAny(_ *check, e end) error { return e.Unregister(0, page) }

// unregisters is a row about a range that is wrong whatever is registered.
func unregisters(name string, off, n int64) row {
	return row{call: "unregister", name: "CONNECTED/" + name + "=EINVAL", conn: func(c *check, near, _ end) {
		c.want(near.Unregister(off, n), syscall.EINVAL)
	}}
}

// cuts is a row about a range that cuts a window: nothing must be removed.
func cuts(name string, off, n int64) row {
	return row{call: "unregister", name: "CONNECTED/" + name + "=EINVAL, nothing removed", conn: func(c *check, near, far end) {
		c.windowAt(near, 1, 0, rw)
		c.windowAt(near, 3, page, rw)
		c.want(near.Unregister(off, n), syscall.EINVAL)
		c.want(far.VWriteTo(make([]byte, 4*page), 0, fabric.Sync), ok)
	}}
}

var unregisterRows = slices.Concat(
	needsConnection("unregister", "", unregisterAny),
	[]row{
		unregisters("length 0", 0, 0),
		unregisters("negative length", page, -page),
		unregisters("length not in pages", 0, page+8),
		unregisters("unaligned offset", 8, page),
		unregisters("negative offset", -page, page),
		unregisters("range overflows", lastPage, 2*page),
		cuts("head of a window", page, page),
		cuts("tail of a window", 3*page, page),
		cuts("middle of a window", 2*page, page),
		cuts("a window and part of another", 0, 2*page),
		{call: "unregister", name: "CONNECTED/a window=ok, the peer does not find it", conn: func(c *check, near, far end) {
			w := c.window(near, 2, rw)
			c.want(near.Unregister(w.off, 2*page), ok)
			c.want(far.VWriteTo([]byte("x"), w.off, fabric.Sync), syscall.ENXIO)
		}},
		{call: "unregister", name: "CONNECTED/no window in the range=ok", conn: func(c *check, near, far end) {
			c.windowAt(near, 1, 0, rw)
			c.want(near.Unregister(page, 8*page), ok)
			c.want(far.VWriteTo([]byte("x"), 0, fabric.Sync), ok)
		}},
		{call: "unregister", name: "CONNECTED/again=ok", conn: func(c *check, near, _ end) {
			w := c.window(near, 1, rw)
			c.want(near.Unregister(w.off, page), ok)
			c.want(near.Unregister(w.off, page), ok)
		}},
		{call: "unregister", name: "CONNECTED/several windows and gaps=all of them", conn: func(c *check, near, far end) {
			c.windowAt(near, 1, page, rw)
			c.windowAt(near, 2, 4*page, rw)
			c.windowAt(near, 1, 10*page, rw)
			c.want(near.Unregister(0, 8*page), ok)
			c.want(far.VWriteTo([]byte("x"), page, fabric.Sync), syscall.ENXIO)
			c.want(far.VWriteTo([]byte("x"), 4*page, fabric.Sync), syscall.ENXIO)
			c.want(far.VWriteTo([]byte("x"), 10*page, fabric.Sync), ok)
		}},
		{call: "unregister", name: "CONNECTED/freed range=may be registered again", conn: func(c *check, near, far end) {
			c.windowAt(near, 1, page, rw)
			c.must(near.Unregister(page, page))
			w := c.windowAt(near, 1, page, rw)
			c.must(far.VWriteTo([]byte("new"), page, fabric.Sync))
			c.same(w.mem[:3], []byte("new"))
		}},
		{call: "unregister", name: "CONNECTED/window is mapped=ok, the mapping stays", only: local, conn: func(c *check, near, far end) {
			w := c.window(near, 1, rw)
			m := c.mapping(far, w.off, rw)
			fabric.StoreUint64(m.Bytes(), 42)
			c.want(near.Unregister(w.off, page), ok)
			// Between processes it is memory that the owner no longer uses.
			c.stillMapped(m.Bytes(), 42)
			if got := fabric.LoadUint64(w.mem); got != 42 && got != 43 {
				c.Errorf("the window's memory has %d", got)
			}
			c.want(far.VWriteTo([]byte("x"), w.off, fabric.Sync), syscall.ENXIO)
			c.want(errOf(far.Mmap(w.off, page, rw)), syscall.ENXIO)
		}},
		{call: "unregister", name: "CONNECTED/RMA begun before=completes", conn: func(c *check, near, far end) {
			w := c.window(near, 16, rw)
			want := pattern(len(w.mem), 9)
			c.must(far.VWriteTo(want, w.off, 0))
			c.fence(far, fabric.InitSelf)
			c.want(near.Unregister(w.off, int64(len(w.mem))), ok)
			c.same(w.mem, want)
		}},
	},
)

func mmapAny(_ *check, e end) error {
	m, err := e.Mmap(0, page, rw)
	if err == nil {
		m.Close()
	}
	return err
}

// maps is a row about a range of the peer's space, where pages 1 and 2 are one
// window with protection prot.
func maps(name string, errno syscall.Errno, prot fabric.Prot, off, n int64, ask fabric.Prot) row {
	return row{call: "mmap", name: "CONNECTED/" + name, only: local, conn: func(c *check, near, far end) {
		c.windowAt(far, 2, page, prot)
		m, err := near.Mmap(off, n, ask)
		c.want(err, errno)
		if err == nil {
			if got := len(m.Bytes()); int64(got) != n {
				c.Errorf("mapped %d bytes", got)
			}
			c.want(m.Close(), ok)
		}
	}}
}

var mmapRows = slices.Concat(
	needsConnection("mmap", "", mmapAny),
	[]row{
		maps("a window=ok", ok, rw, page, 2*page, rw),
		maps("part of a window=ok", ok, rw, 2*page, page, rw),
		maps("less protection than the window's=ok", ok, rw, page, page, fabric.ProtRead),
		maps("length 0=EINVAL", syscall.EINVAL, rw, page, 0, rw),
		maps("negative length=EINVAL", syscall.EINVAL, rw, page, -page, rw),
		maps("length not in pages=EINVAL", syscall.EINVAL, rw, page, 8, rw),
		maps("unaligned offset=EINVAL", syscall.EINVAL, rw, page+8, page, rw),
		maps("negative offset=ENXIO", syscall.ENXIO, rw, -page, page, rw),
		maps("not registered=ENXIO", syscall.ENXIO, rw, 8*page, page, rw),
		maps("ends behind the window=ENXIO", syscall.ENXIO, rw, 2*page, 2*page, rw),
		maps("begins before the window=ENXIO", syscall.ENXIO, rw, 0, 2*page, rw),
		maps("range overflows=ENXIO", syscall.ENXIO, rw, lastPage, 2*page, rw),
		maps("write to a window that only reads=EACCES", syscall.EACCES, fabric.ProtRead, page, page, rw),
		maps("read of a window that only writes=EACCES", syscall.EACCES, fabric.ProtWrite, page, page, fabric.ProtRead),
		maps("window without protection=EACCES", syscall.EACCES, 0, page, page, fabric.ProtRead),
		{call: "mmap", name: "CONNECTED/stores and loads=the same memory", only: local, conn: func(c *check, near, far end) {
			w := c.window(far, 2, rw)
			m := c.mapping(near, w.off+page, rw)
			fabric.StoreUint64(m.Bytes(), 1)
			is(c, "the peer loads", fabric.LoadUint64(w.mem[page:]), 1)
			fabric.StoreUint64(w.mem[page+8:], 2)
			is(c, "the mapping", fabric.LoadUint64(m.Bytes()[8:]), 2)
		}},
		{call: "mmap", name: "CONNECTED/RMA into the window=seen through the mapping", only: local, conn: func(c *check, near, far end) {
			w := c.window(far, 1, rw)
			m := c.mapping(near, w.off, rw)
			want := pattern(page, 10)
			c.must(near.VWriteTo(want, w.off, fabric.Sync))
			c.same(m.Bytes(), want)
		}},
		{call: "mmap", name: "mapped/own close=mapping stays, peer DISCONNECTED", only: local, conn: func(c *check, near, far end) {
			stays(c, near, far, near)
		}},
		{call: "mmap", name: "mapped/peer closes=mapping stays", only: local, conn: func(c *check, near, far end) {
			stays(c, near, far, far)
		}},
		{call: "munmap", name: "mapping=ok", only: local, conn: func(c *check, near, far end) {
			w := c.window(far, 1, rw)
			m := c.mapping(near, w.off, rw)
			c.want(m.Close(), ok)
			c.want(m.Close(), ok)
			c.want(far.Unregister(w.off, page), ok)
			c.windowAt(far, 1, w.off, rw)
		}},
		{call: "munmap", name: "one of two mappings=the other stays", only: local, conn: func(c *check, near, far end) {
			w := c.window(far, 1, rw)
			one := c.mapping(near, w.off, rw)
			other := c.mapping(near, w.off, rw)
			c.want(one.Close(), ok)
			fabric.StoreUint64(other.Bytes(), 3)
			is(c, "the window's memory", fabric.LoadUint64(w.mem), 3)
		}},
		{call: "munmap", name: "after close of the endpoint=ok", only: local, conn: func(c *check, near, far end) {
			w := c.window(far, 1, rw)
			m := c.mapping(near, w.off, rw)
			c.closeEnd(near)
			c.want(m.Close(), ok)
		}},
	},
)

// stillMapped checks that memory has want, and takes another value.
func (c *check) stillMapped(mem []byte, want uint64) {
	c.Helper()
	is(c, "the mapping", fabric.LoadUint64(mem), want)
	fabric.StoreUint64(mem, want+1)
	is(c, "the mapping", fabric.LoadUint64(mem), want+1)
}

// stays checks that near's mapping of far's memory survives the close of ends,
// and that the other end learns of the close at once. While the owner has not
// closed, it is the owner's memory.
func stays(c *check, near, far, ends end) {
	w := c.window(far, 1, rw)
	m := c.mapping(near, w.off, rw)
	fabric.StoreUint64(m.Bytes(), 6)
	c.closeEnd(ends)
	if ends != near {
		c.await(near, fabric.PollHup)
		c.stillMapped(m.Bytes(), 6)
		return
	}
	c.await(far, fabric.PollHup)
	c.stillMapped(m.Bytes(), 6)
	is(c, "the window's memory", fabric.LoadUint64(w.mem), 7)
}
