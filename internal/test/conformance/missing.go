package conformance

import "syscall"

// missingRows are the features of SCIF's user-mode calls that fabricd does not have.
var missingRows = []row{
	{call: "open", name: "descriptor=close-on-exec", instead: "an endpoint is no descriptor"},
	{call: "open", name: "descriptor in a child after fork, or passed to another process=the same endpoint",
		instead: "an endpoint has one application"},
	{call: "close", name: "one of several descriptors (dup, fork, SCM_RIGHTS)=the endpoint stays until the last",
		instead: "an endpoint has one holder, and cannot be duplicated"},
	{call: "poll", name: "ordinary descriptors among the items=their events", instead: "an endpoint is no descriptor; the runtime polls files"},
	{call: "get_fd", name: "any state=a descriptor for poll, select and epoll", instead: "Node.Poll waits for endpoints"},
	{call: "get_fd", name: "closed=EINVAL", instead: "as above"},
	{call: "register", name: "CONNECTED/memory of the program=its pages", instead: "EFAULT: window memory comes from Node.Alloc", check: foreign(func(c *check) []byte {
		return c.program(2)[:page]
	})},
	{call: "register", name: "CONNECTED/stack, globals and files of the program=their pages", instead: "EFAULT, as above"},
	{call: "register", name: "CONNECTED/memory of the program that is unmapped afterwards=window keeps it", instead: "EFAULT, as above"},
	{call: "mmap", name: "CONNECTED/window of another node=ok, coherent", only: []Pair{Across}, instead: "EOPNOTSUPP; a Mirror does what can be done", conn: func(c *check, near, far end) {
		w := c.window(far, 1, rw)
		c.want(errOf(near.Mmap(w.off, page, rw)), syscall.EOPNOTSUPP)
	}},
	{call: "mmap", name: "mapped/the peer's node is lost=access faults", only: []Pair{Across}, instead: "no mapping across nodes"},
	{call: "mmap", name: "CONNECTED/range over adjacent windows=ok", only: local, instead: "ENXIO: one window for each mapping", conn: func(c *check, near, far end) {
		c.windowAt(far, 1, 0, rw)
		c.windowAt(far, 1, page, rw)
		c.want(errOf(near.Mmap(0, 2*page, rw)), syscall.ENXIO)
	}},
	{call: "mmap", name: "CONNECTED/SCIF_MAP_FIXED=at that address, in place of what was there", instead: "the kernel chooses the address"},
	{call: "mmap", name: "CONNECTED/SCIF_MAP_FIXED, unaligned address=EINVAL", instead: "as above"},
	{call: "munmap", name: "part of a mapping=ok, the rest stays", instead: "Mapping.Close removes the whole"},
	{call: "munmap", name: "unaligned address or length=EINVAL", instead: "as above"},
}

// foreign is a check that memory that no Alloc has returned is refused.
func foreign(mem func(c *check) []byte) func(*check) {
	return func(c *check) {
		near, _ := c.connected()
		c.want(errOf(near.Register(mem(c), 0, rw, 0)), syscall.EFAULT)
	}
}

// program returns pages of the program's own memory, page-aligned.
func (c *check) program(pages int) []byte {
	mem, err := syscall.Mmap(-1, 0, pages*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	c.must(err)
	c.Cleanup(func() { syscall.Munmap(mem) })
	return mem
}
