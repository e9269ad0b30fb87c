package conformance

import "github.com/fabricd/fabricd/fabric"

// another returns a new application on the node of app.
func (c *check) another(app *fabric.Node) *fabric.Node {
	c.Helper()
	o := c.site.App(int(app.ID()), true)
	c.Cleanup(func() { o.Close() })
	return o
}

// visibleRows are about a write that is complete: its bytes are in the target's
// memory, not queued behind another application's read.
func (x transfer) visibleRows() []row {
	if !x.writes {
		return nil
	}
	return []row{
		x.visible("SYNC, read by another application of its node", fabric.Sync, func(c *check) *fabric.Node { return c.near }),
		x.visible("SYNC, read by another application of the peer's node", fabric.Sync, func(c *check) *fabric.Node { return c.far }),
		x.visible("fence, read by another application of its node", 0, func(c *check) *fabric.Node { return c.near }),
		x.visible("fence, read by another application of the peer's node", 0, func(c *check) *fabric.Node { return c.far }),
	}
}

// visibleSizes are bytes of one write: some that go with their request, and some
// that are cut.
var visibleSizes = []int64{1, 64, 5000, 200_000, 1<<20 + 3}

// visible is a row about a third application, beside the one that beside returns,
// whose own connection leads to the memory that is written to: it reads as soon as
// a write is complete.
func (x transfer) visible(name string, flags fabric.RMAFlags, beside func(*check) *fabric.Node) row {
	return row{call: x.call, name: "CONNECTED/" + name + "=seen", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		near, far := c.dial(c.unbound(), listener, at)
		reader, shown := c.dial(c.openOn(c.another(beside(c))), listener, at)
		const pages = 258
		l, r := c.window(near, pages, rw), c.window(far, pages, rw)
		other := c.register(shown, r.mem, 0, fabric.ProtRead, 0)
		for i := range 4 * len(visibleSizes) {
			n := visibleSizes[i%len(visibleSizes)]
			copy(l.mem, pattern(int(n), byte(i)))
			c.must(x.do(near, l, 0, n, r.off, flags))
			if flags&fabric.Sync == 0 {
				c.fence(near, fabric.InitSelf)
			}
			got := c.pull(reader, other, int(n))
			if c.same(got, l.mem[:n]); c.Failed() {
				c.Fatalf("that was write %d, of %d bytes", i, n)
			}
		}
	}}
}
