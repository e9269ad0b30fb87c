package conformance

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

func yield() { runtime.Gosched() }

// kill ends the far node and waits until the near node has reported that.
func (c *check) kill() fabric.Event {
	c.Helper()
	return c.removed(func() { c.site.Kill(1) })
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

var eventRows = []row{
	{call: "events", name: "nodes that are live=not reported", alone: true, only: []Pair{Across}, check: func(c *check) {
		events, stop := c.watch()
		defer stop()
		c.site.Kill(1)
		if ev := c.next(events); ev.Kind != fabric.NodeRemoved || ev.Node != 1 {
			c.Errorf("first event is %v", ev)
		}
	}},
	{call: "events", name: "node lost=NODE_REMOVED with its generation and a reason", alone: true, only: []Pair{Across}, check: func(c *check) {
		incarnation := c.far.Incarnation()
		ev := c.kill()
		if ev.Kind != fabric.NodeRemoved || ev.Node != incarnation.Node || ev.Generation != incarnation.Generation || ev.Reason == "" {
			c.Errorf("got %+v, want the removal of %v", ev, incarnation)
		}
	}},
	{call: "events", name: "node back=NODE_ADDED, same node, next generation", alone: true, only: []Pair{Across}, check: func(c *check) {
		incarnation := c.far.Incarnation()
		events, stop := c.watch()
		defer stop()
		c.site.Kill(1)
		removed := c.next(events)
		c.site.Restart(1)
		added := c.next(events)
		got := fmt.Sprint(removed.Kind, removed.Generation, added.Kind, added.Node, added.Generation)
		if want := fmt.Sprint(fabric.NodeRemoved, incarnation.Generation, fabric.NodeAdded, incarnation.Node, incarnation.Generation+1); got != want {
			c.Errorf("got %v, %v", removed, added)
		}
	}},
	{call: "events", name: "node lost and back twice=each event once", alone: true, only: []Pair{Across}, check: func(c *check) {
		events, stop := c.watch()
		defer stop()
		var got []string
		for range 2 {
			c.site.Kill(1)
			got = append(got, fmt.Sprint(c.next(events).Kind))
			c.site.Restart(1)
			got = append(got, fmt.Sprint(c.next(events).Kind))
		}
		if want := []string{"2", "1", "2", "1"}; !slices.Equal(got, want) || len(events) != 0 {
			c.Errorf("kinds %v and %d more, want %v", got, len(events), want)
		}
	}},
	{call: "events", name: "NODE_REMOVED=every call has failed before", alone: true, only: []Pair{Across}, conn: func(c *check, near, _ end) {
		waits := c.blocked("(*Endpoint).Recv", func() error { return recvAny(c, near) })
		failed := make(chan error, 3)
		stop := c.near.OnEvent(func(fabric.Event) {
			failed <- trySendAny(c, near)
			failed <- registerAny(c, near)
			_, err := c.unbound().TryConnect(near.RemoteAddr())
			failed <- err
		})
		c.Cleanup(stop)
		c.site.Kill(1)
		c.want(<-failed, syscall.ECONNRESET)
		c.want(<-failed, syscall.ECONNRESET)
		c.want(<-failed, syscall.ENODEV)
		c.want(<-waits, syscall.ECONNRESET)
	}},
	{call: "events", name: "connection to the node that is back=works, old one stays lost", alone: true, only: []Pair{Across}, check: func(c *check) {
		old, _ := c.connected()
		events, stop := c.watch()
		defer stop()
		c.site.Kill(1)
		c.next(events)
		c.site.Restart(1)
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
