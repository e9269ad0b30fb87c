package conformance

import (
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// ok is the errno of success.
const ok = syscall.Errno(0)

var openRows = []row{
	{call: "open", name: "new endpoint=UNBOUND", check: func(c *check) {
		e := c.unbound()
		if got := e.LocalAddr(); got.Port != 0 || got.Node != c.near.ID() {
			c.Errorf("local address %v, want port 0 of node %d", got, c.near.ID())
		}
		is(c, "remote address", e.RemoteAddr(), (fabric.Addr{}))
	}},
	{call: "open", name: "two endpoints=independent", check: func(c *check) {
		one, other := c.bound(), c.unbound()
		c.closeEnd(one)
		c.want(errOf(other.Bind(0)), ok)
	}},
	{call: "open", name: "application closed=EBADF", check: func(c *check) {
		app := c.site.App(0, true)
		c.must(app.Close())
		c.want(errOf(app.Open()), syscall.EBADF)
	}},
}

// freePort returns a port of the application's node that nothing is bound to.
func (c *check) freePort(app *fabric.Node) fabric.Port {
	c.Helper()
	e := c.openOn(app)
	port := c.bind(e, 0)
	c.closeEnd(e)
	return port
}

var bindRows = slices.Concat([]row{
	{call: "bind", name: "UNBOUND/port=that port", check: func(c *check) {
		port := c.freePort(c.near)
		e := c.unbound()
		if got := c.bind(e, port); got != port || e.LocalAddr() != (fabric.Addr{Node: c.near.ID(), Port: port}) {
			c.Errorf("bind %d returned %d, local address %v", port, got, e.LocalAddr())
		}
	}},
	{call: "bind", name: "UNBOUND/0=32768 on a fresh node", alone: true, check: func(c *check) {
		is(c, "the port", c.bind(c.unbound(), 0), fabric.FirstEphemeral)
	}},
	{call: "bind", name: "UNBOUND/0=lowest free port", alone: true, check: func(c *check) {
		a, b := c.unbound(), c.unbound()
		first, second := c.bind(a, 0), c.bind(b, 0)
		is(c, "the second port", second, first+1)
		c.closeEnd(a)
		is(c, "the port that was freed", c.bind(c.unbound(), 0), first)
	}},
	{call: "bind", name: "UNBOUND/65535=ok", check: func(c *check) { c.bind(c.unbound(), 65535) }},
	{call: "bind", name: "UNBOUND/1023 with privilege=ok", check: func(c *check) { c.bind(c.unbound(), 1023) }},
	{call: "bind", name: "UNBOUND/1 with privilege=ok", check: func(c *check) { c.bind(c.unbound(), 1) }},
	{call: "bind", name: "UNBOUND/1 without privilege=EACCES", check: unprivileged(1, syscall.EACCES)},
	{call: "bind", name: "UNBOUND/1023 without privilege=EACCES", check: unprivileged(1023, syscall.EACCES)},
	{call: "bind", name: "UNBOUND/1024 without privilege=ok", check: unprivileged(1024, ok)},
	{call: "bind", name: "UNBOUND/1087 without privilege=ok", check: unprivileged(1087, ok)},
	{call: "bind", name: "BOUND/1023 without privilege=EACCES, before the state", check: func(c *check) {
		e := c.openOn(c.plain())
		c.bind(e, 0)
		c.want(errOf(e.Bind(1023)), syscall.EACCES)
	}},
	{call: "bind", name: "LISTENING/1023 without privilege=EACCES, before the state", check: func(c *check) {
		e, _ := c.listeningOn(c.plain(), 1)
		c.want(errOf(e.Bind(1023)), syscall.EACCES)
	}},
	{call: "bind", name: "BOUND/same port=EINVAL", check: func(c *check) {
		e := c.bound()
		c.want(errOf(e.Bind(e.LocalAddr().Port)), syscall.EINVAL)
	}},
	{call: "bind", name: "UNBOUND/port of a bound endpoint=EINVAL", check: taken(func(c *check) fabric.Port {
		return c.bound().LocalAddr().Port
	})},
	{call: "bind", name: "UNBOUND/port of a listener=EINVAL", check: taken(func(c *check) fabric.Port {
		return c.listening().LocalAddr().Port
	})},
	{call: "bind", name: "UNBOUND/port of a connector=EINVAL", check: taken(func(c *check) fabric.Port {
		near, _ := c.connected()
		return near.LocalAddr().Port
	})},
	{call: "bind", name: "UNBOUND/port of an accepted endpoint whose listener closed=EINVAL", check: func(c *check) {
		_, far := c.connected()
		c.want(errOf(c.openOn(c.far).Bind(far.LocalAddr().Port)), syscall.EINVAL)
	}},
	{call: "bind", name: "UNBOUND/port of another application=EINVAL", check: taken(func(c *check) fabric.Port {
		return c.bind(c.openOn(c.site.App(0, true)), 0)
	})},
	{call: "bind", name: "UNBOUND/port of another node=ok", only: []Pair{Across}, check: func(c *check) {
		far := c.openOn(c.far)
		port := c.freePort(c.near)
		c.bind(far, port)
		c.bind(c.unbound(), port)
	}},
	{call: "bind", name: "UNBOUND/after a port in use=ok", check: func(c *check) {
		port := c.bound().LocalAddr().Port
		e := c.unbound()
		c.want(errOf(e.Bind(port)), syscall.EINVAL)
		c.bind(e, 0)
	}},
	{call: "bind", name: "UNBOUND/port of a closed endpoint=ok", check: func(c *check) {
		port := c.freePort(c.near)
		c.bind(c.unbound(), port)
	}},
	{call: "bind", name: "UNBOUND/port whose listener and accepted endpoints closed=ok", check: func(c *check) {
		_, far := c.connected()
		port := far.LocalAddr().Port
		c.closeEnd(far)
		c.want(errOf(c.openOn(c.far).Bind(port)), ok)
	}},
	{call: "bind", name: "UNBOUND/port of a disconnected endpoint=ok", check: func(c *check) {
		near := c.disconnected("")
		c.want(errOf(c.unbound().Bind(near.LocalAddr().Port)), ok)
	}},
},
	inStates("bind", "/0", syscall.EINVAL, []state{bound}, bindAny),
	inStates("bind", "/0", syscall.EISCONN, []state{listening, connecting, connected, accepted, disconnected}, bindAny),
	inStates("bind", "/0", syscall.EBADF, []state{closed}, bindAny),
)

func bindAny(_ *check, e end) error { return errOf(e.Bind(0)) }

// plain returns an application on the near node without privilege.
func (c *check) plain() *fabric.Node {
	app := c.site.App(0, false)
	c.Cleanup(func() { app.Close() })
	return app
}

func unprivileged(port fabric.Port, errno syscall.Errno) func(*check) {
	return func(c *check) {
		c.want(errOf(c.openOn(c.plain()).Bind(port)), errno)
	}
}

func taken(by func(c *check) fabric.Port) func(*check) {
	return func(c *check) {
		c.want(errOf(c.unbound().Bind(by(c))), syscall.EINVAL)
	}
}

var listenRows = slices.Concat(
	inStates("listen", "", syscall.EINVAL, []state{unbound, disconnected}, listenFor(4)),
	inStates("listen", "", ok, []state{bound}, listenFor(4)),
	inStates("listen", "", syscall.EISCONN, []state{listening, connecting, connected, accepted}, listenFor(8)),
	inStates("listen", "", syscall.EBADF, []state{closed}, listenFor(4)),
	inStates("listen", "/backlog 0", syscall.EINVAL, []state{bound}, listenFor(0)),
	inStates("listen", "/backlog -1", syscall.EINVAL, []state{bound}, listenFor(-1)),
	inStates("listen", "/backlog 1<<30", ok, []state{bound}, listenFor(1<<30)),
	[]row{
		{call: "listen", name: "BOUND/after backlog 0=ok", check: func(c *check) {
			e := c.bound()
			c.want(e.Listen(0), syscall.EINVAL)
			c.want(e.Listen(1), ok)
		}},
		{call: "listen", name: "BOUND/allow of the peer's node=connects", check: func(c *check) {
			listener, at := c.listeningTo(fabric.Allow("label:none", c.near.Name()))
			c.dial(c.unbound(), listener, at)
		}},
		{call: "listen", name: "BOUND/allow of other nodes=ECONNREFUSED, and nothing to accept", check: func(c *check) {
			listener, at := c.listeningTo(fabric.Allow("label:none", "no-such-node"))
			c.refused(c.unbound(), at, syscall.ECONNREFUSED)
			c.want(errOf(listener.TryAccept()), syscall.EAGAIN)
		}},
		{call: "listen", name: "BOUND/allow of this node=connects on it only", check: func(c *check) {
			listener, at := c.listeningTo(fabric.Allow("local"))
			if c.near.ID() == c.far.ID() {
				c.dial(c.unbound(), listener, at)
				return
			}
			c.refused(c.unbound(), at, syscall.ECONNREFUSED)
		}},
		{call: "listen", name: "BOUND/allow of what is no caller=EINVAL, still BOUND", check: func(c *check) {
			e := c.bound()
			for _, callers := range [][]string{nil, {""}, {"a b"}, {"label:"}, {"none", "all"}, {"all", "all"}} {
				c.want(e.Listen(4, fabric.Allow(callers...)), syscall.EINVAL)
			}
			c.want(e.Listen(4, fabric.Allow("none")), ok)
		}},
		{call: "listen", name: "backlog above 1024=1024", alone: true, check: func(c *check) {
			_, at := c.listeningOn(c.far, 5000)
			c.overflow(1024, at)
		}},
	},
)

// listeningTo returns a listener on the far node with one option.
func (c *check) listeningTo(o fabric.ListenOption) (end, fabric.Addr) {
	c.Helper()
	e := c.openOn(c.far)
	c.bind(e, 0)
	c.must(e.Listen(4, o))
	return e, e.LocalAddr()
}

func listenFor(backlog int) func(*check, end) error {
	return func(_ *check, e end) error { return e.Listen(backlog) }
}
