package conformance

import (
	"math"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// closedRows are calls on a closed endpoint with arguments that are wrong as
// well: the descriptor comes first.
var closedRows = []row{
	{call: "bind", name: "closed/1 without privilege=EBADF, before the privilege", check: func(c *check) {
		e := c.openOn(c.plain())
		c.closeEnd(e)
		c.want(errOf(e.Bind(1)), syscall.EBADF)
	}},
	{call: "connect", name: "closed/unknown node=EBADF, before the node", check: func(c *check) {
		e := c.closed()
		c.want(errOf(e.Connect(c.ctx, fabric.Addr{Node: 77, Port: 2000})), syscall.EBADF)
		c.want(errOf(e.TryConnect(fabric.Addr{Node: 77, Port: 2000})), syscall.EBADF)
		c.want(errOf(e.Connect(c.ctx, fabric.Addr{Node: c.far.ID()})), syscall.EBADF)
	}},
	{call: "register", name: "closed/nothing of it right=EBADF, before the arguments", check: func(c *check) {
		mem := c.alloc(c.near, 1)
		e := c.closed()
		c.want(errOf(e.Register(mem, 0, rw, 0x20)), syscall.EBADF)
		c.want(errOf(e.Register(mem, 100, 4, fixed)), syscall.EBADF)
		c.want(errOf(e.Register(mem[1:], math.MaxInt64, rw, fixed)), syscall.EBADF)
		c.want(errOf(e.Register(nil, 0, rw, 0)), syscall.EBADF)
	}},
	{call: "vwriteto", name: "DISCONNECTED/length 0=ECONNRESET, before the length", check: func(c *check) {
		c.want(c.disconnected("").VWriteTo(nil, 0, 0), syscall.ECONNRESET)
	}},
	{call: "vreadfrom", name: "DISCONNECTED/length 0=ECONNRESET, before the length", check: func(c *check) {
		c.want(c.disconnected("").VReadFrom(nil, 0, 0x10), syscall.ECONNRESET)
	}},
}
