package conformance

import (
	"errors"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// Bounds of the rows' attempts: higher than the limits of any API mode.
const (
	manyEndpoints = 20_000
	manyWindows   = 5_000
)

// fullRows are about an application that has all that it may have, and a node without
// a free port.
var fullRows = []row{
	{call: "open", name: "all endpoints that the application may have=ENOMEM, until one is closed", only: []Pair{SameApp}, check: func(c *check) {
		app := c.another(c.near)
		all := c.openAll(app)
		c.must(all[0].Close())
		c.want(errOf(app.Open()), ok)
	}},
	{call: "accept", name: "LISTENING/all endpoints that the application may have=ENOMEM", only: []Pair{SameApp}, check: func(c *check) {
		app := c.another(c.near)
		listener, at := c.listeningOn(app, 1)
		c.openAll(app)
		c.request(c.unbound(), at)
		c.await(listener, fabric.PollIn)
		c.want(errOf(listener.TryAccept()), syscall.ENOMEM)
	}},
	{call: "register", name: "CONNECTED/all windows that there may be=ENOMEM, until one is unregistered", only: []Pair{SameApp}, conn: func(c *check, near, _ end) {
		mem := c.alloc(c.near, 1)
		c.untilFull(manyWindows, func() error { return errOf(near.Register(mem, 0, rw, 0)) })
		c.must(near.Unregister(fabric.FirstOffset, page))
		c.want(errOf(near.Register(mem, 0, rw, 0)), ok)
	}},
	{call: "mmap", name: "CONNECTED/all mappings that the application may have=ENOMEM, until one is closed", only: []Pair{SameNode}, needs: Processes, conn: func(c *check, near, far end) {
		w := c.window(far, 1, rw)
		var last *fabric.Mapping
		c.untilFull(manyWindows, func() error {
			m, err := near.Mmap(w.off, page, rw)
			if err == nil {
				last = m
				c.Cleanup(func() { m.Close() })
			}
			return err
		})
		c.must(last.Close())
		c.mapping(near, w.off, rw)
	}},
	{call: "bind", name: "UNBOUND/0, no free port=ENOSPC", only: []Pair{SameApp}, needs: AllPorts, alone: true, check: func(c *check) {
		c.takePorts()
		c.want(errOf(c.unbound().Bind(0)), syscall.ENOSPC)
	}},
	{call: "connect", name: "UNBOUND/no free port=ENOSPC, UNBOUND", only: []Pair{SameApp}, needs: AllPorts, alone: true, check: func(c *check) {
		_, at := c.listeningOn(c.far, 1)
		near := c.unbound()
		freed := c.takePorts()
		c.want(errOf(near.Connect(c.ctx, at)), syscall.ENOSPC)
		c.must(freed.Close())
		c.want(errOf(near.Bind(0)), ok)
	}},
}

// untilFull calls f until it fails with ENOMEM, at most most times.
func (c *check) untilFull(most int, f func() error) {
	c.Helper()
	for range most {
		if err := f(); errors.Is(err, syscall.ENOMEM) {
			return
		} else if err != nil {
			c.Fatal(err)
		}
	}
	c.Fatalf("%d times without an end", most)
}

// openAll opens all endpoints that app may have. They end with it.
func (c *check) openAll(app *fabric.Node) (all []*fabric.Endpoint) {
	c.Helper()
	c.untilFull(manyEndpoints, func() error {
		e, err := app.Open()
		all = append(all, e)
		return err
	})
	return all
}

// takePorts binds all ports of the near node that Bind(0) chooses from, and returns
// one of the endpoints.
func (c *check) takePorts() (one *fabric.Endpoint) {
	c.Helper()
	for {
		app := c.another(c.near)
		for {
			e, err := app.Open()
			if errors.Is(err, syscall.ENOMEM) {
				break
			}
			c.must(err)
			_, err = e.Bind(0)
			if errors.Is(err, syscall.ENOSPC) {
				return one
			}
			c.must(err)
			one = e
		}
	}
}
