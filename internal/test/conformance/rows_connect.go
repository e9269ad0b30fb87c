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

// absent is a node that no cluster of the suite has.
const absent fabric.NodeID = 4000

var connectRows = slices.Concat([]row{
	{call: "connect", name: "UNBOUND=chosen port", conn: func(c *check, near, far end) {
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
		is(c, "the port of connect", <-got, want)
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
		c.want(errOf(e.Bind(0)), syscall.EINVAL)
		listener, at := c.listeningOn(c.far, 1)
		c.dial(e, listener, at)
		is(c, "the port", e.LocalAddr().Port, port)
	}},
	{call: "connect", name: "UNBOUND/no such node=stays UNBOUND", check: func(c *check) {
		e := c.unbound()
		c.refused(e, fabric.Addr{Node: absent, Port: 1}, syscall.ENODEV)
		c.want(errOf(e.Bind(0)), ok)
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
		is(c, "revents before accept", c.revents(near, fabric.PollOut), 0)
		c.want(errOf(near.TryConnect(listener.LocalAddr())), syscall.EINPROGRESS)
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
		c.want(errOf(near.TryConnect(listener.LocalAddr())), ok)
		c.want(errOf(near.TryConnect(listener.LocalAddr())), syscall.EISCONN)
	}},
	{call: "connect", name: "non-blocking/refused=ECONNREFUSED once, then BOUND", check: func(c *check) {
		nobody := fabric.Addr{Node: c.far.ID(), Port: 1087}
		e := c.unbound()
		for range 2 {
			c.request(e, nobody)
			c.await(e, fabric.PollOut)
			c.want(errOf(e.TryConnect(nobody)), syscall.ECONNREFUSED)
		}
		c.want(errOf(e.Bind(0)), syscall.EINVAL)
	}},
	{call: "connect", name: "non-blocking/no such node=ENODEV at once", check: func(c *check) {
		c.want(errOf(c.unbound().TryConnect(fabric.Addr{Node: absent, Port: 1})), syscall.ENODEV)
	}},
	{call: "connect", name: "CONNECTING/blocking in another thread=EISCONN", check: func(c *check) {
		near, listener, result := c.blockedConnect()
		c.want(errOf(near.Connect(c.ctx, listener.LocalAddr())), syscall.EISCONN)
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
		c.want(errOf(near.Bind(0)), syscall.EINVAL)
		_ = listener
	}},
	{call: "connect", name: "CONNECTING/context ends=BOUND, may connect again", check: func(c *check) {
		ctx, cancel := context.WithCancel(c.ctx)
		listener, at := c.listeningOn(c.far, 4)
		near := c.unbound()
		result := c.start(func() error { return errOf(near.Connect(ctx, at)) })
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
			c.want(errOf(it.Endpoint.TryConnect(at)), syscall.ECONNREFUSED)
		}
	}
}

func (c *check) refused(e end, at fabric.Addr, errno syscall.Errno) {
	c.Helper()
	c.want(errOf(e.Connect(c.ctx, at)), errno)
}

// connectAny connects to a listener that would accept.
func connectAny(c *check, e end) error {
	_, at := c.listeningOn(c.far, 1)
	return errOf(e.Connect(c.ctx, at))
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
	if incarnation := node.Incarnation(); p.Node != incarnation.Node || p.Generation != incarnation.Generation || p.Name != node.Name() || len(p.Labels) > 0 || p.UID != uid {
		c.Errorf("peer %+v, want node %v, %q and user %d", p, incarnation, node.Name(), uid)
	}
}

func tryConnectAny(c *check, e end) error {
	_, at := c.listeningOn(c.far, 1)
	return errOf(e.TryConnect(at))
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
	{call: "accept", name: "CONNECTED/peer=node, name and user, of both ends", conn: func(c *check, near, far end) {
		c.peerIs(far, c.near, true)
		c.peerIs(near, c.far, c.near.ID() == c.far.ID())
		c.closeEnd(near)
		c.await(far, fabric.PollHup)
		c.peerIs(far, c.near, true)
		c.want(errOf(near.Peer()), syscall.EBADF)
		c.want(errOf(c.listening().Peer()), syscall.ENOTCONN)
	}},
	{call: "accept", name: "LISTENING/request without SYNC=CONNECTED", check: func(c *check) {
		near, listener := c.connecting()
		ep, err := listener.TryAccept()
		c.must(err)
		defer ep.Close()
		c.await(near, fabric.PollOut)
		c.send(end{ep, c.far}, "works")
		c.want(errOf(near.TryConnect(listener.LocalAddr())), ok)
		c.recv(near, "works")
	}},
	{call: "accept", name: "LISTENING/no request without SYNC=EAGAIN", check: func(c *check) {
		c.want(errOf(c.listening().TryAccept()), syscall.EAGAIN)
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
				is(c, fmt.Sprintf("accept %d", i), c.accept(listener).RemoteAddr(), e.LocalAddr())
			}
		}
		c.want(errOf(listener.TryAccept()), syscall.EAGAIN)
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
		c.want(errOf(listener.TryAccept()), syscall.EAGAIN)
	}},
	{call: "accept", name: "LISTENING/requester closed=next request", check: func(c *check) {
		near, listener := c.connecting()
		c.closeEnd(near)
		next := c.bound()
		c.request(next, listener.LocalAddr())
		is(c, "accepted", c.accept(listener).RemoteAddr(), next.LocalAddr())
	}},
	{call: "accept", name: "LISTENING/requester timed out, without SYNC=EAGAIN", alone: true, wait: brief, check: func(c *check) {
		_, listener, result := c.startedConnect()
		c.want(<-result, syscall.ECONNREFUSED)
		c.want(errOf(listener.TryAccept()), syscall.EAGAIN)
	}},
	{call: "accept", name: "LISTENING/requester closes after accept=DISCONNECTED", conn: func(c *check, near, far end) {
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
		result := c.blocked("(*Endpoint).Accept", func() error { return errOf(listener.Accept(c.ctx)) })
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

func acceptAny(c *check, e end) error { return errOf(e.Accept(c.ctx)) }

func tryAcceptAny(_ *check, e end) error { return errOf(e.TryAccept()) }

// done returns a context that is over.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
