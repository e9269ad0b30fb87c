package conformance

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

func yield() { runtime.Gosched() }

// kill ends the far node and waits until the near node has said so.
func (c *check) kill() fabric.Event {
	c.Helper()
	events, stop := c.watch()
	defer stop()
	c.site.Kill()
	return c.next(events)
}

// watch collects the near node's events.
func (c *check) watch() (events <-chan fabric.Event, stop func()) {
	got := make(chan fabric.Event, 16) // more than any row causes
	return got, c.near.OnEvent(func(ev fabric.Event) { got <- ev })
}

func (c *check) next(events <-chan fabric.Event) fabric.Event {
	c.Helper()
	select {
	case ev := <-events:
		return ev
	case <-c.ctx.Done():
		c.Fatal("no event")
	}
	return fabric.Event{}
}

// lost is a row about a call on an endpoint whose peer's node was lost.
func lost(call, what string, errno syscall.Errno, f func(c *check, near end) error) row {
	return row{call: call, name: "DISCONNECTED by node loss" + what + "=" + errnoName(errno), only: []Pair{Across}, alone: true,
		check: func(c *check) {
			near, _ := c.connected()
			c.kill()
			c.want(f(c, near), errno)
		}}
}

// lossWakes is a row about a call that waits while its peer's node is lost.
func lossWakes(call, method string, f func(c *check, near end) error) row {
	return row{call: call, name: "CONNECTED/waits and the node is lost=ECONNRESET", only: []Pair{Across}, alone: true,
		check: func(c *check) {
			near, _ := c.connected()
			result := c.blocked(method, func() error { return f(c, near) })
			c.site.Kill()
			c.want(<-result, syscall.ECONNRESET)
		}}
}

func lossRows() []row {
	rows := []row{
		lost("bind", "", syscall.EISCONN, bindAny),
		lost("listen", "", syscall.EINVAL, listenFor(1)),
		lost("connect", "", syscall.EINVAL, func(c *check, near end) error {
			_, at := c.listeningOn(c.near, 1)
			_, err := near.Connect(c.ctx, at)
			return err
		}),
		lost("connect", "/new endpoint to the lost node", syscall.ENODEV, func(c *check, near end) error {
			_, err := c.unbound().Connect(c.ctx, near.RemoteAddr())
			return err
		}),
		lost("accept", "", syscall.EINVAL, acceptAny),
		lost("close", "", ok, closeAny),
		lost("send", "/block", syscall.ECONNRESET, sendAny),
		lost("send", "", syscall.ECONNRESET, trySendAny),
		lost("recv", "/block", syscall.ECONNRESET, recvAny),
		lost("recv", "", syscall.ECONNRESET, tryRecvAny),
		lost("recv", ", not io.EOF", syscall.ECONNRESET, func(c *check, near end) error {
			err := recvAny(c, near)
			if errors.Is(err, io.EOF) {
				c.Errorf("%v is io.EOF", err)
			}
			return err
		}),
		lost("register", "", syscall.ECONNRESET, registerAny),
		lost("unregister", "", syscall.ECONNRESET, unregisterAny),
		lost("mmap", "", syscall.ECONNRESET, mmapAny),
		lost("fence_mark", "/INIT_SELF", syscall.ECONNRESET, markAny),
		lost("fence_mark", "/INIT_PEER", syscall.ECONNRESET, func(_ *check, near end) error {
			_, err := near.FenceMark(fabric.InitPeer)
			return err
		}),
		lost("fence_wait", "", syscall.ECONNRESET, waitAny),
		lost("fence_signal", "", syscall.ECONNRESET, signalAny),
		lost("bind", "/port of it", ok, func(c *check, near end) error {
			_, err := c.unbound().Bind(near.LocalAddr().Port)
			return err
		}),
		lost("poll", ", POLLHUP", ok, func(c *check, near end) error {
			if got := c.revents(near, fabric.PollIn); got != fabric.PollHup {
				c.Errorf("revents %#x", got)
			}
			return nil
		}),
		lossWakes("recv", "(*Endpoint).Recv", recvAny),
		lossWakes("send", "(*Endpoint).Send", func(c *check, near end) error {
			_, err := near.Send(c.ctx, make([]byte, 16<<20))
			return err
		}),
		{call: "poll", name: "waits and the node is lost=POLLHUP", only: []Pair{Across}, alone: true,
			check: pollWakes(fabric.PollIn, fabric.PollHup, func(c *check, near, far end) { c.site.Kill() })},
		{call: "connect", name: "CONNECTING/the node is lost=ENODEV, BOUND", only: []Pair{Across}, alone: true, check: func(c *check) {
			near, _, result := c.blockedConnect()
			c.site.Kill()
			c.want(<-result, syscall.ENODEV)
			_, err := near.Bind(0)
			c.want(err, syscall.EINVAL)
		}},
		{call: "connect", name: "non-blocking/the node is lost=POLLOUT, then ENODEV", only: []Pair{Across}, alone: true, check: func(c *check) {
			near, listener := c.connecting()
			at := listener.LocalAddr()
			c.site.Kill()
			c.await(near, fabric.PollOut)
			_, err := near.TryConnect(at)
			c.want(err, syscall.ENODEV)
		}},
		{call: "accept", name: "LISTENING/the requester's node is lost=EAGAIN without SYNC", only: []Pair{Across}, alone: true, check: func(c *check) {
			listener, at := c.listeningOn(c.near, 1)
			c.request(c.openOn(c.far), at)
			c.await(listener, fabric.PollIn)
			c.kill()
			_, err := listener.TryAccept()
			c.want(err, syscall.EAGAIN)
		}},
	}
	for _, x := range transfers {
		rows = append(rows, lost(x.call, "", syscall.ECONNRESET, func(c *check, near end) error {
			return x.do(near, small(), 0, 8, 0, fabric.Sync)
		}))
	}
	return rows
}

var eventRows = []row{
	{call: "events", name: "nodes that are live=not reported", alone: true, only: []Pair{Across}, check: func(c *check) {
		events, stop := c.watch()
		defer stop()
		c.site.Kill()
		if ev := c.next(events); ev.Kind != fabric.NodeRemoved || ev.Node != 1 {
			c.Errorf("first event is %v", ev)
		}
	}},
	{call: "events", name: "node lost=NODE_REMOVED with its generation and a reason", alone: true, only: []Pair{Across}, check: func(c *check) {
		life := c.far.Life()
		ev := c.kill()
		if ev.Kind != fabric.NodeRemoved || ev.Node != life.Node || ev.Generation != life.Generation || ev.Reason == "" {
			c.Errorf("got %+v, want the removal of %v", ev, life)
		}
	}},
	{call: "events", name: "node back=NODE_ADDED, same node, next generation", alone: true, only: []Pair{Across}, check: func(c *check) {
		life := c.far.Life()
		events, stop := c.watch()
		defer stop()
		c.site.Kill()
		removed := c.next(events)
		c.site.Restart()
		added := c.next(events)
		got := fmt.Sprint(removed.Kind, removed.Generation, added.Kind, added.Node, added.Generation)
		if want := fmt.Sprint(fabric.NodeRemoved, life.Generation, fabric.NodeAdded, life.Node, life.Generation+1); got != want {
			c.Errorf("got %v, %v", removed, added)
		}
	}},
	{call: "events", name: "node lost and back twice=each event once", alone: true, only: []Pair{Across}, check: func(c *check) {
		events, stop := c.watch()
		defer stop()
		var got []string
		for range 2 {
			c.site.Kill()
			got = append(got, fmt.Sprint(c.next(events).Kind))
			c.site.Restart()
			got = append(got, fmt.Sprint(c.next(events).Kind))
		}
		if want := []string{"2", "1", "2", "1"}; !slices.Equal(got, want) || len(events) != 0 {
			c.Errorf("kinds %v and %d more, want %v", got, len(events), want)
		}
	}},
	{call: "events", name: "NODE_REMOVED=every call has failed before", alone: true, only: []Pair{Across}, check: func(c *check) {
		near, _ := c.connected()
		waits := c.blocked("(*Endpoint).Recv", func() error { return recvAny(c, near) })
		failed := make(chan error, 3)
		stop := c.near.OnEvent(func(fabric.Event) {
			failed <- trySendAny(c, near)
			failed <- registerAny(c, near)
			_, err := c.unbound().TryConnect(near.RemoteAddr())
			failed <- err
		})
		c.Cleanup(stop)
		c.site.Kill()
		c.want(<-failed, syscall.ECONNRESET)
		c.want(<-failed, syscall.ECONNRESET)
		c.want(<-failed, syscall.ENODEV)
		c.want(<-waits, syscall.ECONNRESET)
	}},
	{call: "events", name: "connection to the node that is back=works, old one stays lost", alone: true, only: []Pair{Across}, check: func(c *check) {
		old, _ := c.connected()
		events, stop := c.watch()
		defer stop()
		c.site.Kill()
		c.next(events)
		c.site.Restart()
		c.next(events)
		c.far = c.site.App(1, true)
		near, far := c.connected()
		c.send(near, "again")
		c.recv(far, "again")
		c.want(sendAny(c, old), syscall.ECONNRESET)
	}},
	{call: "events", name: "unregistered=no more calls", alone: true, only: []Pair{Across}, check: func(c *check) {
		events, stop := c.watch()
		stop()
		c.kill()
		if len(events) != 0 {
			c.Errorf("got %v", <-events)
		}
	}},
	{call: "events", name: "unregistered by its own callback=returns", alone: true, only: []Pair{Across}, check: func(c *check) {
		stops := make(chan func(), 1)
		called := make(chan struct{}, 1)
		stops <- c.near.OnEvent(func(fabric.Event) {
			(<-stops)()
			called <- struct{}{}
		})
		c.kill()
		select {
		case <-called:
		case <-c.ctx.Done():
			c.Error("the callback does not return")
		}
	}},
}
