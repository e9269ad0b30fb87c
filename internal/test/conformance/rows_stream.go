package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

func sendAny(c *check, e end) error    { return errOf(e.Send(c.ctx, []byte("x"))) }
func trySendAny(_ *check, e end) error { return errOf(e.TrySend([]byte("x"))) }
func sendNone(c *check, e end) error   { return errOf(e.Send(c.ctx, nil)) }
func trySendNone(_ *check, e end) error {
	return errOf(e.TrySend(nil))
}

// open are all states but closed.
var open = []state{unbound, bound, listening, connecting, connected, accepted, disconnected}

var sendRows = slices.Concat(
	needsConnection("send", "/block", sendAny),
	needsConnection("send", "", trySendAny),
	inStates("send", "/0 bytes, block", ok, open, sendNone),
	inStates("send", "/0 bytes", ok, open, trySendNone),
	[]row{
		{call: "send", name: "CONNECTED/1 MiB in odd pieces=in order, complete", conn: func(c *check, near, far end) {
			want := pattern(1<<20, 3)
			sent := c.start(func() error {
				for size, rest := 1, want; len(rest) > 0; size = size*3 + 1 {
					n, err := near.Send(c.ctx, rest[:min(size, len(rest))])
					if err != nil {
						return err
					}
					rest = rest[n:]
					size %= 50_000
				}
				return nil
			})
			got := make([]byte, len(want))
			c.want(errOf(far.Recv(c.ctx, got)), ok)
			c.want(<-sent, ok)
			c.same(got, want)
		}},
		{call: "send", name: "CONNECTED/two sends=one stream without boundaries", conn: func(c *check, near, far end) {
			c.send(near, "one")
			c.send(near, "two")
			c.recv(far, "onetw")
			c.recv(far, "o")
		}},
		{call: "send", name: "CONNECTED/both directions=independent", conn: func(c *check, near, far end) {
			c.fill(near)
			c.send(far, "back")
			c.recv(near, "back")
		}},
		{call: "send", name: "CONNECTED/no room, no block=0", conn: func(c *check, near, _ end) {
			if c.fill(near) == 0 { // it ends with a send of 0 bytes without an error
				c.Error("a fresh connection has no room")
			}
		}},
		{call: "send", name: "CONNECTED/no room, block=waits for the receiver", conn: func(c *check, near, far end) {
			filled := c.fill(near)
			more := pattern(2<<20, 18)
			result := c.blocked("(*Endpoint).Send", func() error { return errOf(near.Send(c.ctx, more)) })
			got := make([]byte, filled+len(more))
			c.want(errOf(far.Recv(c.ctx, got)), ok)
			c.want(<-result, ok)
			c.same(got[filled:], more)
		}},
		{call: "send", name: "CONNECTED/waits and the peer closes=short count, ECONNRESET", conn: func(c *check, near, far end) { c.sendEnds(near, far) }},
		{call: "send", name: "CONNECTED/two blocking sends=not mixed", conn: func(c *check, near, far end) {
			const size = 300 << 10
			for _, b := range []byte("ab") {
				result := c.start(func() error { _, err := near.Send(c.ctx, bytes.Repeat([]byte{b}, size)); return err })
				defer func() { c.want(<-result, ok) }()
			}
			got := make([]byte, 2*size)
			c.want(errOf(far.Recv(c.ctx, got)), ok)
			first, second := got[:size], got[size:]
			if bytes.Count(first, first[:1]) != size || bytes.Count(second, second[:1]) != size {
				c.Error("the bytes of two sends are mixed")
			}
		}},
		{call: "send", name: "CONNECTED/another connection is full=not gated", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 1)
			full, _ := c.dial(c.unbound(), listener, at)
			near, far := c.dial(c.unbound(), listener, at)
			c.fill(full)
			c.send(near, "through")
			c.recv(far, "through")
		}},
		{call: "send", name: "CONNECTED/context ends while it waits=short count, its error", conn: func(c *check, near, far end) {
			ctx, cancel := context.WithCancel(c.ctx)
			want := pattern(16<<20, 4) // more than kernels keep for a path
			var sent int
			result := c.blocked("(*Endpoint).Send", func() (err error) { sent, err = near.Send(ctx, want); return err })
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) || errors.Is(err, syscall.ECONNRESET) {
				c.Errorf("got %v", err)
			}
			after := c.start(func() error { return errOf(near.Send(c.ctx, []byte("after"))) })
			got := make([]byte, sent)
			c.want(errOf(far.Recv(c.ctx, got)), ok)
			c.same(got, want[:sent])
			c.recv(far, "after")
			c.want(<-after, ok)
		}},
		{call: "send", name: "CONNECTED/context done, room=ok", conn: func(c *check, near, far end) {
			n, err := near.Send(done(), []byte("fits"))
			c.want(err, ok)
			is(c, "sent bytes", n, 4)
			c.recv(far, "fits")
		}},
	},
)

func recvAny(c *check, e end) error     { return errOf(e.Recv(c.ctx, make([]byte, 1))) }
func tryRecvAny(_ *check, e end) error  { return errOf(e.TryRecv(make([]byte, 1))) }
func recvNone(c *check, e end) error    { return errOf(e.Recv(c.ctx, nil)) }
func tryRecvNone(_ *check, e end) error { return errOf(e.TryRecv(nil)) }

var recvRows = slices.Concat(
	needsConnection("recv", "/block", recvAny),
	needsConnection("recv", "", tryRecvAny),
	inStates("recv", "/0 bytes, block", ok, open, recvNone),
	inStates("recv", "/0 bytes", ok, open, tryRecvNone),
	[]row{
		{call: "recv", name: "CONNECTED/nothing there, no block=0", conn: func(c *check, near, _ end) {
			n, err := near.TryRecv(make([]byte, 8))
			c.want(err, ok)
			is(c, "received bytes", n, 0)
		}},
		{call: "recv", name: "CONNECTED/less there than asked, no block=what is there", conn: func(c *check, near, far end) {
			c.send(far, "abc")
			c.await(near, fabric.PollIn)
			p := make([]byte, 8)
			n, err := near.TryRecv(p)
			c.want(err, ok)
			if n < 1 || n > 3 || string(p[:n]) != "abc"[:n] {
				c.Errorf("received %q", p[:n])
			}
		}},
		{call: "recv", name: "CONNECTED/more there than asked=the rest stays", conn: func(c *check, near, far end) {
			c.send(far, "abcdef")
			c.recv(near, "abcd")
			c.recv(near, "ef")
		}},
		{call: "recv", name: "CONNECTED/block=waits for all of it", conn: func(c *check, near, far end) {
			p := make([]byte, 6)
			result := c.blocked("(*Endpoint).Recv", func() error { return errOf(near.Recv(c.ctx, p)) })
			c.send(far, "abc")
			c.send(far, "def")
			c.want(<-result, ok)
			c.same(p, []byte("abcdef"))
		}},
		{call: "recv", name: "CONNECTED/waits and the peer closes=ECONNRESET", conn: func(c *check, near, far end) {
			result := c.blocked("(*Endpoint).Recv", func() error { return recvAny(c, near) })
			c.closeEnd(far)
			c.want(<-result, syscall.ECONNRESET)
		}},
		{call: "recv", name: "CONNECTED/waits for more than the peer sends before it closes=short count, ECONNRESET", conn: func(c *check, near, far end) {
			p := make([]byte, 100)
			var n int
			result := c.start(func() (err error) { n, err = near.Recv(c.ctx, p); return err })
			c.send(far, "short")
			c.closeEnd(far)
			c.want(<-result, syscall.ECONNRESET)
			c.same(p[:n], []byte("short"))
		}},
		{call: "recv", name: "DISCONNECTED/data left=data, then ECONNRESET", check: func(c *check) {
			near := c.disconnected("left")
			c.recv(near, "le")
			c.recv(near, "ft")
			for range 2 {
				c.want(recvAny(c, near), syscall.ECONNRESET)
				c.want(tryRecvAny(c, near), syscall.ECONNRESET)
			}
		}},
		{call: "recv", name: "DISCONNECTED/data left, no block=data, then ECONNRESET", check: func(c *check) {
			near := c.disconnected("left")
			var got []byte
			p := make([]byte, 3)
			for {
				n, err := near.TryRecv(p)
				got = append(got, p[:n]...)
				if err != nil {
					c.want(err, syscall.ECONNRESET)
					break
				}
				if n == 0 {
					c.Error("0 bytes without an error at the end of the stream")
					break
				}
			}
			c.same(got, []byte("left"))
		}},
		{call: "recv", name: "DISCONNECTED/orderly close=io.EOF as well", check: func(c *check) {
			if err := recvAny(c, c.disconnected("")); !errors.Is(err, io.EOF) {
				c.Errorf("got %v, want io.EOF in its chain", err)
			}
		}},
		{call: "recv", name: "CONNECTED/context done, data there=ok", conn: func(c *check, near, far end) {
			c.send(far, "abc")
			c.await(near, fabric.PollIn)
			p := make([]byte, 1)
			n, err := near.Recv(done(), p)
			c.want(err, ok)
			c.same(p[:n], []byte("a"))
		}},
		{call: "recv", name: "CONNECTED/context ends while it waits=its error, nothing lost", conn: func(c *check, near, far end) {
			ctx, cancel := context.WithCancel(c.ctx)
			result := c.blocked("(*Endpoint).Recv", func() error { return errOf(near.Recv(ctx, make([]byte, 4))) })
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				c.Errorf("got %v", err)
			}
			c.send(far, "data")
			c.recv(near, "data")
		}},
		{call: "recv", name: "CONNECTED/deadline passes=ETIMEDOUT", conn: func(c *check, near, _ end) {
			ctx, cancel := context.WithTimeout(c.ctx, time.Millisecond)
			defer cancel()
			_, err := near.Recv(ctx, make([]byte, 4))
			c.want(err, syscall.ETIMEDOUT)
			if !errors.Is(err, context.DeadlineExceeded) {
				c.Errorf("got %v, want the context's error", err)
			}
		}},
	},
)

const inOut = fabric.PollIn | fabric.PollOut

// polls is a row about the events that poll reports for an endpoint at once.
func polls(name string, e func(c *check) end, ask, want fabric.Events) row {
	return row{call: "poll", name: name, check: func(c *check) {
		is(c, "revents", c.revents(e(c), ask), want)
	}}
}

var pollRows = []row{
	polls("UNBOUND=POLLERR", (*check).unbound, inOut, fabric.PollErr),
	polls("UNBOUND/nothing asked=POLLERR", (*check).unbound, 0, fabric.PollErr),
	polls("BOUND=POLLERR", (*check).bound, inOut, fabric.PollErr),
	polls("LISTENING/no request=0", (*check).listening, inOut, 0),
	polls("LISTENING/request=POLLIN", func(c *check) end { _, l := c.connecting(); return l }, inOut, fabric.PollIn),
	polls("LISTENING/request, only POLLOUT asked=0", func(c *check) end { _, l := c.connecting(); return l }, fabric.PollOut, 0),
	polls("LISTENING/request taken=0", func(c *check) end {
		_, l := c.connecting()
		c.accept(l)
		return l
	}, inOut, 0),
	polls("CONNECTING/non-blocking=0", func(c *check) end { e, _ := c.connecting(); return e }, inOut, 0),
	polls("CONNECTING/blocking in another thread=POLLERR", func(c *check) end {
		e, l, result := c.blockedConnect()
		c.Cleanup(func() { l.Close(); <-result })
		return e
	}, inOut, fabric.PollErr),
	polls("CONNECTED/idle=POLLOUT", func(c *check) end { e, _ := c.connected(); return e }, inOut, fabric.PollOut),
	polls("accepted/idle=POLLOUT", func(c *check) end { _, e := c.connected(); return e }, inOut, fabric.PollOut),
	polls("CONNECTED/idle, only POLLIN asked=0", func(c *check) end { e, _ := c.connected(); return e }, fabric.PollIn, 0),
	polls("CONNECTED/data=POLLIN|POLLOUT", readable, inOut, inOut),
	polls("CONNECTED/data, only POLLIN asked=POLLIN", readable, fabric.PollIn, fabric.PollIn),
	polls("CONNECTED/data, only POLLOUT asked=POLLOUT", readable, fabric.PollOut, fabric.PollOut),
	polls("CONNECTED/no room=0", func(c *check) end {
		e, _ := c.connected()
		c.fill(e)
		return e
	}, inOut, 0),
	{call: "poll", name: "DISCONNECTED=POLLHUP without POLLIN", check: func(c *check) {
		// POLLOUT is the driver's choice here.
		is(c, "revents", c.revents(c.disconnected(""), fabric.PollIn), fabric.PollHup)
	}},
	polls("DISCONNECTED/nothing asked=POLLHUP", func(c *check) end { return c.disconnected("") }, 0, fabric.PollHup),
	polls("DISCONNECTED/data left=POLLIN|POLLHUP", func(c *check) end { return c.disconnected("left") },
		fabric.PollIn, fabric.PollIn|fabric.PollHup),
	polls("DISCONNECTED/data taken=POLLHUP", func(c *check) end {
		e := c.disconnected("left")
		c.recv(e, "left")
		return e
	}, fabric.PollIn, fabric.PollHup),
	polls("closed=POLLNVAL", (*check).closed, 0, fabric.PollNval),
	{call: "poll", name: "CONNECTING/accepted=POLLOUT", check: func(c *check) {
		e, l := c.connecting()
		c.accept(l)
		c.await(e, fabric.PollOut)
		is(c, "revents", c.revents(e, inOut), fabric.PollOut)
	}},
	{call: "poll", name: "CONNECTING/refused=POLLOUT", check: func(c *check) {
		e := c.unbound()
		c.request(e, fabric.Addr{Node: c.far.ID(), Port: 1087})
		c.await(e, fabric.PollOut)
	}},
	{call: "poll", name: "waits=woken by data", check: pollWakes(fabric.PollIn, fabric.PollIn, func(c *check, near, far end) { c.send(far, "x") })},
	{call: "poll", name: "waits=woken by the peer's close", check: pollWakes(fabric.PollIn, fabric.PollHup, func(c *check, near, far end) { c.closeEnd(far) })},
	{call: "poll", name: "waits=woken by close", check: pollWakes(fabric.PollIn, fabric.PollNval, func(c *check, near, far end) { c.closeEnd(near) })},
	{call: "poll", name: "waits=woken by a request", check: func(c *check) {
		l, at := c.listeningOn(c.far, 1)
		result := c.blocked("(*Node).Poll", func() error {
			return errOf(c.far.Poll(c.ctx, []fabric.PollItem{{Endpoint: l.Endpoint, Events: fabric.PollIn}}))
		})
		c.request(c.unbound(), at)
		c.want(<-result, ok)
	}},
	{call: "poll", name: "waits=woken by room", conn: func(c *check, near, far end) {
		sent := c.fill(near)
		room := func() error {
			return errOf(c.near.Poll(c.ctx, []fabric.PollItem{{Endpoint: near.Endpoint, Events: fabric.PollOut}}))
		}
		result, blocks := c.tryBlocked("(*Node).Poll", room)
		for !blocks { // bytes on their way have moved on and made room
			c.must(<-result)
			sent += c.fill(near)
			result, blocks = c.tryBlocked("(*Node).Poll", room)
		}
		c.want(errOf(far.Recv(c.ctx, make([]byte, sent))), ok)
		c.want(<-result, ok)
	}},
	{call: "poll", name: "many endpoints=count and revents of each", check: func(c *check) {
		idle, _ := c.connected()
		items := []fabric.PollItem{
			{Endpoint: readable(c).Endpoint, Events: fabric.PollIn},
			{Endpoint: idle.Endpoint, Events: fabric.PollIn, Revents: inOut},
			{Endpoint: nil, Events: inOut, Revents: inOut},
			{Endpoint: c.disconnected("").Endpoint},
			{Endpoint: c.listening().Endpoint, Events: inOut},
			{Endpoint: c.unbound().Endpoint},
			{Endpoint: c.closed().Endpoint, Events: inOut},
		}
		n, err := c.near.Poll(c.ctx, items)
		c.want(err, ok)
		is(c, "poll", n, 4)
		for i, want := range []fabric.Events{fabric.PollIn, 0, 0, fabric.PollHup, 0, fabric.PollErr, fabric.PollNval} {
			is(c, fmt.Sprintf("revents of item %d", i), items[i].Revents, want)
		}
	}},
	{call: "poll", name: "level-triggered=the same again", check: func(c *check) {
		e := readable(c)
		for range 3 {
			is(c, "revents", c.revents(e, fabric.PollIn), fabric.PollIn)
		}
	}},
	{call: "poll", name: "time passes=0", check: func(c *check) {
		idle, _ := c.connected()
		ctx, cancel := context.WithTimeout(c.ctx, time.Millisecond)
		defer cancel()
		n, err := c.near.Poll(ctx, []fabric.PollItem{{Endpoint: idle.Endpoint, Events: fabric.PollIn}})
		if n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			c.Errorf("returned %d, %v", n, err)
		}
	}},
	{call: "poll", name: "no endpoints=waits for the time", check: func(c *check) {
		ctx, cancel := context.WithTimeout(c.ctx, time.Millisecond)
		defer cancel()
		if n, err := c.near.Poll(ctx, nil); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			c.Errorf("returned %d, %v", n, err)
		}
	}},
}

// readable returns a connected endpoint that has data.
func readable(c *check) end {
	near, far := c.connected()
	c.send(far, "data")
	c.await(near, fabric.PollIn)
	return near
}

// pollWakes is a row about a poll for ask that waits until event happens.
func pollWakes(ask, want fabric.Events, event func(c *check, near, far end)) func(*check) {
	return func(c *check) {
		near, far := c.connected()
		items := []fabric.PollItem{{Endpoint: near.Endpoint, Events: ask}}
		result := c.blocked("(*Node).Poll", func() error { return errOf(c.near.Poll(c.ctx, items)) })
		event(c, near, far)
		c.want(<-result, ok)
		if got := items[0].Revents; got&want != want {
			c.Errorf("revents %#x, want %#x", got, want)
		}
	}
}
