package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
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
		if got := e.RemoteAddr(); got != (fabric.Addr{}) {
			c.Errorf("remote address %v, want none", got)
		}
	}},
	{call: "open", name: "two endpoints=independent", check: func(c *check) {
		one, other := c.bound(), c.unbound()
		c.closeEnd(one)
		_, err := other.Bind(0)
		c.want(err, ok)
	}},
	{call: "open", name: "application closed=EBADF", check: func(c *check) {
		app := c.site.App(0, true)
		c.must(app.Close())
		_, err := app.Open()
		c.want(err, syscall.EBADF)
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
		if got := c.bind(c.unbound(), 0); got != fabric.FirstEphemeral {
			c.Errorf("got %d", got)
		}
	}},
	{call: "bind", name: "UNBOUND/0=lowest free port", alone: true, check: func(c *check) {
		a, b := c.unbound(), c.unbound()
		first, second := c.bind(a, 0), c.bind(b, 0)
		if second != first+1 {
			c.Errorf("got %d after %d", second, first)
		}
		c.closeEnd(a)
		if got := c.bind(c.unbound(), 0); got != first {
			c.Errorf("got %d, want %d, which was freed", got, first)
		}
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
		_, err := e.Bind(1023)
		c.want(err, syscall.EACCES)
	}},
	{call: "bind", name: "LISTENING/1023 without privilege=EACCES, before the state", check: func(c *check) {
		e, _ := c.listeningOn(c.plain(), 1)
		_, err := e.Bind(1023)
		c.want(err, syscall.EACCES)
	}},
	{call: "bind", name: "BOUND/same port=EINVAL", check: func(c *check) {
		e := c.bound()
		_, err := e.Bind(e.LocalAddr().Port)
		c.want(err, syscall.EINVAL)
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
		_, err := c.openOn(c.far).Bind(far.LocalAddr().Port)
		c.want(err, syscall.EINVAL)
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
		_, err := e.Bind(port)
		c.want(err, syscall.EINVAL)
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
		_, err := c.openOn(c.far).Bind(port)
		c.want(err, ok)
	}},
	{call: "bind", name: "UNBOUND/port of a disconnected endpoint=ok", check: func(c *check) {
		near := c.disconnected("")
		_, err := c.unbound().Bind(near.LocalAddr().Port)
		c.want(err, ok)
	}},
},
	inStates("bind", "/0", syscall.EINVAL, []state{bound}, bindAny),
	inStates("bind", "/0", syscall.EISCONN, []state{listening, connecting, connected, accepted, disconnected}, bindAny),
	inStates("bind", "/0", syscall.EBADF, []state{closed}, bindAny),
)

func bindAny(_ *check, e end) error { _, err := e.Bind(0); return err }

// plain returns an application on the near node without privilege.
func (c *check) plain() *fabric.Node {
	app := c.site.App(0, false)
	c.Cleanup(func() { app.Close() })
	return app
}

func unprivileged(port fabric.Port, errno syscall.Errno) func(*check) {
	return func(c *check) {
		_, err := c.openOn(c.plain()).Bind(port)
		c.want(err, errno)
	}
}

func taken(by func(c *check) fabric.Port) func(*check) {
	return func(c *check) {
		_, err := c.unbound().Bind(by(c))
		c.want(err, syscall.EINVAL)
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
			_, err := listener.TryAccept()
			c.want(err, syscall.EAGAIN)
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

// absent is a node that no cluster of the suite has.
const absent fabric.NodeID = 4000

var connectRows = slices.Concat([]row{
	{call: "connect", name: "UNBOUND=chosen port", check: func(c *check) {
		near, far := c.connected()
		if got := near.LocalAddr(); got.Node != c.near.ID() || got.Port < fabric.FirstEphemeral {
			c.Errorf("local address %v", got)
		}
		if near.RemoteAddr() != far.LocalAddr() || far.RemoteAddr() != near.LocalAddr() {
			c.Errorf("near %v->%v, far %v->%v", near.LocalAddr(), near.RemoteAddr(), far.LocalAddr(), far.RemoteAddr())
		}
	}},
	{call: "connect", name: "BOUND=bound port", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		near := c.bound()
		want := near.LocalAddr().Port
		got := make(chan fabric.Port, 1)
		result := c.start(func() error { port, err := near.Connect(c.ctx, at); got <- port; return err })
		c.accept(listener)
		c.want(<-result, ok)
		if p := <-got; p != want {
			c.Errorf("connect returned %d, want %d", p, want)
		}
	}},
	{call: "connect", name: "UNBOUND/port 0=EINVAL", check: func(c *check) { c.refused(c.unbound(), fabric.Addr{Node: c.far.ID()}, syscall.EINVAL) }},
	{call: "connect", name: "UNBOUND/no such node=ENODEV", check: func(c *check) { c.refused(c.unbound(), fabric.Addr{Node: absent, Port: 1}, syscall.ENODEV) }},
	{call: "connect", name: "UNBOUND/node 65535=ENODEV", check: func(c *check) { c.refused(c.unbound(), fabric.Addr{Node: 65535, Port: 1}, syscall.ENODEV) }},
	{call: "connect", name: "UNBOUND/no such node and port 0=ENODEV", check: func(c *check) { c.refused(c.unbound(), fabric.Addr{Node: absent}, syscall.ENODEV) }},
	{call: "connect", name: "LISTENING/no such node=ENODEV, before the state", check: func(c *check) { c.refused(c.listening(), fabric.Addr{Node: absent, Port: 1}, syscall.ENODEV) }},
	{call: "connect", name: "LISTENING/port 0=EINVAL, before the state", check: func(c *check) {
		c.refused(c.listening(), fabric.Addr{Node: c.far.ID()}, syscall.EINVAL)
	}},
	{call: "connect", name: "UNBOUND/nobody listens=ECONNREFUSED", check: func(c *check) {
		c.refused(c.unbound(), fabric.Addr{Node: c.far.ID(), Port: 1087}, syscall.ECONNREFUSED)
	}},
	{call: "connect", name: "UNBOUND/bound port that does not listen=ECONNREFUSED", check: func(c *check) {
		far := c.openOn(c.far)
		c.bind(far, 0)
		c.refused(c.unbound(), far.LocalAddr(), syscall.ECONNREFUSED)
	}},
	{call: "connect", name: "UNBOUND/port of an accepted endpoint=ECONNREFUSED", check: func(c *check) {
		_, far := c.connected()
		c.refused(c.unbound(), far.LocalAddr(), syscall.ECONNREFUSED)
	}},
	{call: "connect", name: "UNBOUND/backlog full=ECONNREFUSED", check: func(c *check) {
		_, at := c.listeningOn(c.far, 2)
		c.overflow(2, at)
	}},
	{call: "connect", name: "UNBOUND/a slot of a full backlog becomes free=ok", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		c.request(c.unbound(), at)
		c.await(listener, fabric.PollIn)
		c.refused(c.unbound(), at, syscall.ECONNREFUSED)
		c.accept(listener)
		c.dial(c.unbound(), listener, at)
	}},
	{call: "connect", name: "UNBOUND/refused=BOUND, keeps its port", check: func(c *check) {
		e := c.unbound()
		c.refused(e, fabric.Addr{Node: c.far.ID(), Port: 1087}, syscall.ECONNREFUSED)
		port := e.LocalAddr().Port
		if port < fabric.FirstEphemeral {
			c.Errorf("bound to %d", port)
		}
		_, err := e.Bind(0)
		c.want(err, syscall.EINVAL)
		listener, at := c.listeningOn(c.far, 1)
		c.dial(e, listener, at)
		if got := e.LocalAddr().Port; got != port {
			c.Errorf("connected from %d, want %d", got, port)
		}
	}},
	{call: "connect", name: "UNBOUND/no such node=stays UNBOUND", check: func(c *check) {
		e := c.unbound()
		c.refused(e, fabric.Addr{Node: absent, Port: 1}, syscall.ENODEV)
		_, err := e.Bind(0)
		c.want(err, ok)
	}},
	{call: "connect", name: "BOUND/refused=may listen", check: func(c *check) {
		e := c.bound()
		c.refused(e, fabric.Addr{Node: c.far.ID(), Port: 1087}, syscall.ECONNREFUSED)
		c.want(e.Listen(1), ok)
	}},
	{call: "connect", name: "port below 1024=needs no privilege", check: func(c *check) {
		far := c.openOn(c.far)
		c.bind(far, 77)
		c.must(far.Listen(1))
		c.dial(c.openOn(c.plain()), far, far.LocalAddr())
	}},
	{call: "connect", name: "completes at accept=not before", check: func(c *check) {
		near, listener := c.connecting()
		if got := c.revents(near, fabric.PollOut); got != 0 {
			c.Errorf("revents %#x before accept", got)
		}
		_, err := near.TryConnect(listener.LocalAddr())
		c.want(err, syscall.EINPROGRESS)
		c.accept(listener)
		c.await(near, fabric.PollOut)
		port, err := near.TryConnect(listener.LocalAddr())
		c.want(err, ok)
		if port != near.LocalAddr().Port || port == 0 {
			c.Errorf("returned port %d, bound to %d", port, near.LocalAddr().Port)
		}
	}},
	{call: "connect", name: "non-blocking/accepted=result once, then EISCONN", check: func(c *check) {
		near, listener := c.connecting()
		c.accept(listener)
		c.await(near, fabric.PollOut)
		_, err := near.TryConnect(listener.LocalAddr())
		c.want(err, ok)
		_, err = near.TryConnect(listener.LocalAddr())
		c.want(err, syscall.EISCONN)
	}},
	{call: "connect", name: "non-blocking/refused=ECONNREFUSED once, then BOUND", check: func(c *check) {
		nobody := fabric.Addr{Node: c.far.ID(), Port: 1087}
		e := c.unbound()
		for range 2 {
			c.request(e, nobody)
			c.await(e, fabric.PollOut)
			_, err := e.TryConnect(nobody)
			c.want(err, syscall.ECONNREFUSED)
		}
		_, err := e.Bind(0)
		c.want(err, syscall.EINVAL)
	}},
	{call: "connect", name: "non-blocking/no such node=ENODEV at once", check: func(c *check) {
		_, err := c.unbound().TryConnect(fabric.Addr{Node: absent, Port: 1})
		c.want(err, syscall.ENODEV)
	}},
	{call: "connect", name: "CONNECTING/blocking in another thread=EISCONN", check: func(c *check) {
		near, listener, result := c.blockedConnect()
		_, err := near.Connect(c.ctx, listener.LocalAddr())
		c.want(err, syscall.EISCONN)
		c.accept(listener)
		c.want(<-result, ok)
	}},
	{call: "connect", name: "CONNECTING/listener closes=ECONNREFUSED", check: func(c *check) {
		_, listener, result := c.blockedConnect()
		c.closeEnd(listener)
		c.want(<-result, syscall.ECONNREFUSED)
	}},
	{call: "connect", name: "CONNECTING/nobody accepts in time=ECONNREFUSED, BOUND", alone: true, wait: brief, check: func(c *check) {
		near, listener, result := c.startedConnect()
		c.want(<-result, syscall.ECONNREFUSED)
		_, err := near.Bind(0)
		c.want(err, syscall.EINVAL)
		_ = listener
	}},
	{call: "connect", name: "CONNECTING/context ends=BOUND, may connect again", check: func(c *check) {
		ctx, cancel := context.WithCancel(c.ctx)
		listener, at := c.listeningOn(c.far, 4)
		near := c.unbound()
		result := c.start(func() error { _, err := near.Connect(ctx, at); return err })
		c.await(listener, fabric.PollIn)
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			c.Errorf("got %v, want the context's error", err)
		}
		c.dial(near, listener, at)
	}},
},
	inStates("connect", "", syscall.EOPNOTSUPP, []state{listening}, connectAny),
	inStates("connect", "", syscall.EISCONN, []state{connected, accepted}, connectAny),
	inStates("connect", "", syscall.EINVAL, []state{disconnected}, connectAny),
	inStates("connect", "", syscall.EBADF, []state{closed}, connectAny),
	inStates("connect", "/non-blocking", syscall.EOPNOTSUPP, []state{listening}, tryConnectAny),
	inStates("connect", "/non-blocking", syscall.EINPROGRESS, []state{unbound, bound, connecting}, tryConnectAny),
	inStates("connect", "/non-blocking", syscall.EISCONN, []state{connected, accepted}, tryConnectAny),
	inStates("connect", "/non-blocking", syscall.EINVAL, []state{disconnected}, tryConnectAny),
	inStates("connect", "/non-blocking", syscall.EBADF, []state{closed}, tryConnectAny),
)

// overflow sends one request more than there is room for, in no order: exactly
// one of them is refused, while the others wait.
func (c *check) overflow(room int, at fabric.Addr) {
	c.Helper()
	items := make([]fabric.PollItem, room+1)
	for i := range items {
		e := c.unbound()
		c.request(e, at)
		items[i] = fabric.PollItem{Endpoint: e.Endpoint, Events: fabric.PollOut}
	}
	if n, err := c.near.Poll(c.ctx, items); n != 1 || err != nil {
		c.Fatalf("%d requests are decided, %v; want one", n, err)
	}
	for _, it := range items {
		if it.Revents != 0 {
			_, err := it.Endpoint.TryConnect(at)
			c.want(err, syscall.ECONNREFUSED)
		}
	}
}

func (c *check) refused(e end, at fabric.Addr, errno syscall.Errno) {
	c.Helper()
	_, err := e.Connect(c.ctx, at)
	c.want(err, errno)
}

// connectAny connects to a listener that would accept.
func connectAny(c *check, e end) error {
	_, at := c.listeningOn(c.far, 1)
	_, err := e.Connect(c.ctx, at)
	return err
}

// peerIs checks that the peer of e is an application of node.
func (c *check) peerIs(e end, node *fabric.Node, userKnown bool) {
	c.Helper()
	uid := int64(-1)
	if userKnown {
		uid = int64(os.Getuid())
	}
	p, err := e.Peer()
	c.must(err)
	if life := node.Life(); p.Node != life.Node || p.Generation != life.Generation || p.Name != node.Name() || len(p.Labels) > 0 || p.UID != uid {
		c.Errorf("peer %+v, want node %v, %q and user %d", p, life, node.Name(), uid)
	}
}

func tryConnectAny(c *check, e end) error {
	_, at := c.listeningOn(c.far, 1)
	_, err := e.TryConnect(at)
	return err
}

var acceptRows = slices.Concat([]row{
	{call: "accept", name: "LISTENING/request=CONNECTED, port of the listener", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		near, far := c.dial(c.unbound(), listener, at)
		if far.LocalAddr() != at || far.RemoteAddr() != near.LocalAddr() {
			c.Errorf("accepted %v->%v, want %v->%v", far.LocalAddr(), far.RemoteAddr(), at, near.LocalAddr())
		}
		c.send(far, "works")
		c.recv(near, "works")
	}},
	{call: "accept", name: "CONNECTED/peer=node, name and user, of both ends", check: func(c *check) {
		near, far := c.connected()
		c.peerIs(far, c.near, true)
		c.peerIs(near, c.far, c.near.ID() == c.far.ID())
		c.closeEnd(near)
		c.await(far, fabric.PollHup)
		c.peerIs(far, c.near, true)
		_, err := near.Peer()
		c.want(err, syscall.EBADF)
		_, err = c.listening().Peer()
		c.want(err, syscall.ENOTCONN)
	}},
	{call: "accept", name: "LISTENING/request without SYNC=CONNECTED", check: func(c *check) {
		near, listener := c.connecting()
		ep, err := listener.TryAccept()
		c.must(err)
		defer ep.Close()
		c.await(near, fabric.PollOut)
		c.send(end{ep, c.far}, "works")
		_, err = near.TryConnect(listener.LocalAddr())
		c.want(err, ok)
		c.recv(near, "works")
	}},
	{call: "accept", name: "LISTENING/no request without SYNC=EAGAIN", check: func(c *check) {
		_, err := c.listening().TryAccept()
		c.want(err, syscall.EAGAIN)
	}},
	{call: "accept", name: "LISTENING/several requests=in order of arrival", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 8)
		for range 5 {
			// The second request is sent when the first has arrived.
			first, second := c.bound(), c.bound()
			c.request(first, at)
			c.await(listener, fabric.PollIn)
			c.request(second, at)
			for i, e := range []end{first, second} {
				if got := c.accept(listener).RemoteAddr(); got != e.LocalAddr() {
					c.Errorf("accept %d: %v, want %v", i, got, e.LocalAddr())
				}
			}
		}
		_, err := listener.TryAccept()
		c.want(err, syscall.EAGAIN)
	}},
	{call: "accept", name: "listener unaffected=accepts again", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		for range 3 {
			near, far := c.dial(c.unbound(), listener, at)
			c.send(near, "x")
			c.recv(far, "x")
		}
	}},
	{call: "accept", name: "accepted endpoints=own address spaces", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		_, one := c.dial(c.unbound(), listener, at)
		_, other := c.dial(c.unbound(), listener, at)
		if a, b := c.window(one, 1, rw), c.window(other, 1, rw); a.off != b.off {
			c.Errorf("first offsets %#x and %#x", a.off, b.off)
		}
	}},
	{call: "accept", name: "LISTENING/requester closed, without SYNC=EAGAIN", check: func(c *check) {
		near, listener := c.connecting()
		c.closeEnd(near)
		_, err := listener.TryAccept()
		c.want(err, syscall.EAGAIN)
	}},
	{call: "accept", name: "LISTENING/requester closed=next request", check: func(c *check) {
		near, listener := c.connecting()
		c.closeEnd(near)
		next := c.bound()
		c.request(next, listener.LocalAddr())
		if got := c.accept(listener).RemoteAddr(); got != next.LocalAddr() {
			c.Errorf("accepted %v, want %v", got, next.LocalAddr())
		}
	}},
	{call: "accept", name: "LISTENING/requester timed out, without SYNC=EAGAIN", alone: true, wait: brief, check: func(c *check) {
		_, listener, result := c.startedConnect()
		c.want(<-result, syscall.ECONNREFUSED)
		_, err := listener.TryAccept()
		c.want(err, syscall.EAGAIN)
	}},
	{call: "accept", name: "LISTENING/requester closes after accept=DISCONNECTED", check: func(c *check) {
		near, far := c.connected()
		c.closeEnd(near)
		c.await(far, fabric.PollHup)
	}},
	{call: "accept", name: "LISTENING/waits=woken by a request", check: func(c *check) {
		listener, at := c.listeningOn(c.far, 1)
		result := c.blocked("(*Endpoint).Accept", func() error {
			ep, err := listener.Accept(c.ctx)
			if err == nil {
				ep.Close()
			}
			return err
		})
		c.request(c.unbound(), at)
		c.want(<-result, ok)
	}},
	{call: "accept", name: "LISTENING/waits and is closed=EINTR", check: func(c *check) {
		listener := c.listening()
		result := c.blocked("(*Endpoint).Accept", func() error { _, err := listener.Accept(c.ctx); return err })
		c.closeEnd(listener)
		c.want(<-result, syscall.EINTR)
	}},
	{call: "accept", name: "LISTENING/context done, no request=its error", check: func(c *check) {
		_, err := c.listening().Accept(done())
		if !errors.Is(err, context.Canceled) {
			c.Errorf("got %v", err)
		}
	}},
	{call: "accept", name: "LISTENING/context done, request=CONNECTED", check: func(c *check) {
		_, listener := c.connecting()
		ep, err := listener.Accept(done())
		c.must(err)
		ep.Close()
	}},
},
	inStates("accept", "", syscall.EINVAL, notListening, acceptAny),
	inStates("accept", "", syscall.EBADF, []state{closed}, acceptAny),
	inStates("accept", "/without SYNC", syscall.EINVAL, notListening, tryAcceptAny),
	inStates("accept", "/without SYNC", syscall.EBADF, []state{closed}, tryAcceptAny),
)

var notListening = []state{unbound, bound, connecting, connected, accepted, disconnected}

func acceptAny(c *check, e end) error { _, err := e.Accept(c.ctx); return err }

func tryAcceptAny(_ *check, e end) error { _, err := e.TryAccept(); return err }

// done returns a context that is over.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

var closeRows = slices.Concat(
	inStates("close", "", ok, []state{unbound, bound, listening, connecting, connected, accepted, disconnected}, closeAny),
	inStates("close", "/again", syscall.EBADF, []state{closed}, closeAny),
	[]row{
		{call: "close", name: "LISTENING/requests wait=ECONNREFUSED at the requesters", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 4)
			var waiting []end
			for range 3 {
				e := c.unbound()
				c.request(e, at)
				waiting = append(waiting, e)
			}
			c.closeEnd(listener)
			for _, e := range waiting {
				c.await(e, fabric.PollOut)
				_, err := e.TryConnect(at)
				c.want(err, syscall.ECONNREFUSED)
			}
		}},
		{call: "close", name: "LISTENING/accepted connections=live on", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 1)
			near, far := c.dial(c.unbound(), listener, at)
			c.closeEnd(listener)
			c.send(near, "still")
			c.recv(far, "still")
		}},
		{call: "close", name: "CONNECTED/peer=DISCONNECTED", check: func(c *check) {
			near, far := c.connected()
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
			_, err := far.TrySend([]byte("x"))
			c.want(err, syscall.ECONNRESET)
			c.closeEnd(far)
		}},
		{call: "close", name: "CONNECTED/after send=delivered", check: func(c *check) {
			near, far := c.connected()
			want := pattern(200<<10, 1)
			received := c.start(func() error {
				got := make([]byte, len(want))
				_, err := far.Recv(c.ctx, got)
				c.same(got, want)
				return err
			})
			if n, err := near.Send(c.ctx, want); n != len(want) || err != nil {
				c.Errorf("send: %d, %v", n, err)
			}
			c.closeEnd(near)
			c.want(<-received, ok)
			_, err := far.Recv(c.ctx, make([]byte, 1))
			c.want(err, syscall.ECONNRESET)
		}},
		{call: "close", name: "CONNECTED/after send without block=delivered", check: func(c *check) {
			near, far := c.connected()
			want := pattern(200<<10, 19)
			n, err := near.TrySend(want)
			c.want(err, ok)
			c.closeEnd(near)
			got := make([]byte, n)
			_, err = far.Recv(c.ctx, got)
			c.want(err, ok)
			c.same(got, want[:n])
		}},
		{call: "close", name: "CONNECTED/peer does not receive=does not wait", check: func(c *check) {
			near, far := c.connected()
			sent := c.fill(near)
			c.closeEnd(near)
			got := make([]byte, sent+1)
			n, err := far.Recv(c.ctx, got)
			c.want(err, syscall.ECONNRESET)
			if n != sent {
				c.Errorf("received %d of %d bytes", n, sent)
			}
		}},
		{call: "close", name: "CONNECTED/unsent data of the peer=gone, no hang", check: func(c *check) {
			near, far := c.connected()
			c.fill(far)
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
		}},
		{call: "close", name: "CONNECTED/RMA begun before=completes", check: func(c *check) {
			near, far := c.connected()
			w := c.window(far, 64, rw)
			want := pattern(len(w.mem), 2)
			c.must(near.VWriteTo(want, w.off, 0))
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
			c.same(w.mem, want)
		}},
		{call: "close", name: "CONNECTED/own windows=unregistered", check: func(c *check) {
			near, far := c.connected()
			w := c.window(near, 1, rw)
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
			c.want(far.VReadFrom(make([]byte, 8), w.off, fabric.Sync), syscall.ECONNRESET)
		}},
		{call: "close", name: "CONNECTED/recv waits=ECONNRESET", check: closeWakes("(*Endpoint).Recv", syscall.ECONNRESET, func(c *check, near end) error {
			_, err := near.Recv(c.ctx, make([]byte, 1))
			return err
		})},
		{call: "close", name: "CONNECTED/send waits=ECONNRESET, short count", check: func(c *check) {
			near, _ := c.connected()
			var sent int
			result := c.blocked("(*Endpoint).Send", func() (err error) {
				sent, err = near.Send(c.ctx, make([]byte, 16<<20))
				return err
			})
			c.closeEnd(near)
			c.want(<-result, syscall.ECONNRESET)
			if sent < 0 || sent >= 16<<20 { // it may wait for its turn, before the first byte
				c.Errorf("sent %d bytes", sent)
			}
		}},
		{call: "close", name: "CONNECTING/connect waits=ECONNRESET", check: func(c *check) {
			near, _, result := c.blockedConnect()
			c.closeEnd(near)
			c.want(<-result, syscall.ECONNRESET)
		}},
		{call: "close", name: "application ends=peers DISCONNECTED", check: func(c *check) {
			app := c.site.App(0, true)
			listener, at := c.listeningOn(c.far, 1)
			_, far := c.dial(c.openOn(app), listener, at)
			c.must(app.Close())
			c.await(far, fabric.PollHup)
			_, err := far.Recv(c.ctx, make([]byte, 1))
			c.want(err, syscall.ECONNRESET)
		}},
		{call: "close", name: "application ends=ports free, listeners gone", check: func(c *check) {
			app := c.site.App(0, true)
			listener, at := c.listeningOn(app, 1)
			c.must(app.Close())
			_, err := c.unbound().Bind(at.Port)
			c.want(err, ok)
			_ = listener
		}},
	},
)

func closeAny(_ *check, e end) error { return e.Close() }

// closeWakes is a row about a call on a connected endpoint that is closed
// while the call waits.
func closeWakes(method string, errno syscall.Errno, f func(c *check, near end) error) func(*check) {
	return func(c *check) {
		near, _ := c.connected()
		result := c.blocked(method, func() error { return f(c, near) })
		c.closeEnd(near)
		c.want(<-result, errno)
	}
}

var nodeRows = []row{
	{call: "get_nodeIDs", name: "all live nodes, ascending, and self=ok", check: func(c *check) {
		ids, self, err := c.near.Nodes()
		c.want(err, ok)
		if want := []fabric.NodeID{0, 1}; !slices.Equal(ids, want) || self != 0 {
			c.Errorf("got %v, self %d, want %v, self 0", ids, self, want)
		}
	}},
	{call: "get_nodeIDs", name: "from another node=same nodes, other self", check: func(c *check) {
		ids, self, err := c.site.App(1, true).Nodes()
		c.want(err, ok)
		if fmt.Sprint(ids, self) != "[0 1] 1" {
			c.Errorf("got %v, self %d", ids, self)
		}
	}},
	{call: "get_nodeIDs", name: "node lost=without it", alone: true, only: []Pair{Across}, check: func(c *check) {
		c.kill()
		ids, self, err := c.near.Nodes()
		c.want(err, ok)
		if fmt.Sprint(ids, self) != "[0] 0" {
			c.Errorf("got %v, self %d", ids, self)
		}
	}},
	{call: "get_nodeIDs", name: "application closed=EBADF", check: func(c *check) {
		app := c.site.App(0, true)
		c.must(app.Close())
		_, _, err := app.Nodes()
		c.want(err, syscall.EBADF)
	}},
}
