package conformance

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

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
				c.want(errOf(e.TryConnect(at)), syscall.ECONNREFUSED)
			}
		}},
		{call: "close", name: "LISTENING/accepted connections=live on", check: func(c *check) {
			listener, at := c.listeningOn(c.far, 1)
			near, far := c.dial(c.unbound(), listener, at)
			c.closeEnd(listener)
			c.send(near, "still")
			c.recv(far, "still")
		}},
		{call: "close", name: "CONNECTED/peer=DISCONNECTED", conn: func(c *check, near, far end) {
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
			c.want(errOf(far.TrySend([]byte("x"))), syscall.ECONNRESET)
			c.closeEnd(far)
		}},
		{call: "close", name: "CONNECTED/after send=delivered", conn: func(c *check, near, far end) {
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
			c.want(errOf(far.Recv(c.ctx, make([]byte, 1))), syscall.ECONNRESET)
		}},
		{call: "close", name: "CONNECTED/after send without block=delivered", conn: func(c *check, near, far end) {
			want := pattern(200<<10, 19)
			n, err := near.TrySend(want)
			c.want(err, ok)
			c.closeEnd(near)
			got := make([]byte, n)
			c.want(errOf(far.Recv(c.ctx, got)), ok)
			c.same(got, want[:n])
		}},
		{call: "close", name: "CONNECTED/peer does not receive=does not wait", conn: func(c *check, near, far end) {
			sent := c.fill(near)
			c.closeEnd(near)
			got := make([]byte, sent+1)
			n, err := far.Recv(c.ctx, got)
			c.want(err, syscall.ECONNRESET)
			is(c, "received bytes", n, sent)
		}},
		{call: "close", name: "CONNECTED/send given up, peer receives later=delivered", conn: func(c *check, near, far end) {
			want := pattern(16<<20, 23)
			ctx, cancel := context.WithTimeout(c.ctx, c.settles)
			defer cancel()
			sent, err := near.Send(ctx, want)
			c.want(err, syscall.ETIMEDOUT)
			c.closeEnd(near)
			got := make([]byte, sent+1)
			n, err := far.Recv(c.ctx, got)
			c.want(err, syscall.ECONNRESET)
			c.same(got[:n], want[:sent])
		}},
		{call: "close", name: "CONNECTED/unsent data of the peer=gone, no hang", conn: func(c *check, near, far end) {
			c.fill(far)
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
		}},
		{call: "close", name: "CONNECTED/RMA begun before=completes", conn: func(c *check, near, far end) {
			w := c.window(far, 64, rw)
			want := pattern(len(w.mem), 2)
			c.must(near.VWriteTo(want, w.off, 0))
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
			c.same(w.mem, want)
		}},
		{call: "close", name: "CONNECTED/own windows=unregistered", conn: func(c *check, near, far end) {
			w := c.window(near, 1, rw)
			c.closeEnd(near)
			c.await(far, fabric.PollHup)
			c.want(far.VReadFrom(make([]byte, 8), w.off, fabric.Sync), syscall.ECONNRESET)
		}},
		{call: "close", name: "CONNECTED/recv waits=ECONNRESET", check: closeWakes("(*Endpoint).Recv", syscall.ECONNRESET, func(c *check, near end) error {
			return errOf(near.Recv(c.ctx, make([]byte, 1)))
		})},
		{call: "close", name: "CONNECTED/send waits=ECONNRESET, short count", conn: func(c *check, near, _ end) { c.sendEnds(near, near) }},
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
			c.want(errOf(far.Recv(c.ctx, make([]byte, 1))), syscall.ECONNRESET)
		}},
		{call: "close", name: "application ends=ports free, listeners gone", check: func(c *check) {
			app := c.site.App(0, true)
			listener, at := c.listeningOn(app, 1)
			c.must(app.Close())
			c.want(errOf(c.unbound().Bind(at.Port)), ok)
			_ = listener
		}},
	},
)

func closeAny(_ *check, e end) error { return e.Close() }

// sendEnds closes one of two ends while near sends more than there is room for.
func (c *check) sendEnds(near, closed end) {
	c.Helper()
	var sent int
	result := c.blocked("(*Endpoint).Send", func() (err error) {
		sent, err = near.Send(c.ctx, make([]byte, 16<<20))
		return err
	})
	c.closeEnd(closed)
	c.want(<-result, syscall.ECONNRESET)
	if sent < 0 || sent >= 16<<20 { // it may wait for its turn, before the first byte
		c.Errorf("sent %d bytes", sent)
	}
}

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
		is(c, "nodes and self", fmt.Sprint(ids, self), "[0 1] 1")
	}},
	{call: "get_nodeIDs", name: "node lost=without it", alone: true, only: []Pair{Across}, check: func(c *check) {
		c.kill()
		ids, self, err := c.near.Nodes()
		c.want(err, ok)
		is(c, "nodes and self", fmt.Sprint(ids, self), "[0] 0")
	}},
	{call: "get_nodeIDs", name: "application closed=EBADF", check: func(c *check) {
		app := c.site.App(0, true)
		c.must(app.Close())
		_, _, err := app.Nodes()
		c.want(err, syscall.EBADF)
	}},
}
