package conformance

import (
	"context"
	"errors"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// heldRows are about calls that wait for transfers that do not complete, and how they end.
func heldRows() []row {
	rows := []row{
		held("fence_wait", "waits=ok when the transfers complete", func(c *check, s stuck) {
			waiting := c.waitsFor(c.ctx, s.near, s.own)
			s.release()
			c.want(<-waiting, ok)
		}),
		held("fence_wait", "INIT_PEER, waits=ok when the peer's transfers complete", func(c *check, s stuck) {
			waiting := c.waitsFor(c.ctx, s.far, s.peers)
			s.release()
			c.want(<-waiting, ok)
		}),
		held("fence_wait", "waits and the context ends=its error, the mark stays good", func(c *check, s stuck) {
			ctx, cancel := context.WithCancel(c.ctx)
			waiting := c.waitsFor(ctx, s.near, s.own)
			cancel()
			if err := <-waiting; !errors.Is(err, context.Canceled) {
				c.Errorf("got %v", err)
			}
			s.release()
			c.want(s.near.FenceWait(c.ctx, s.own), ok)
		}),
		ends("fence_wait", "waits and the peer closes", func(s stuck) (waits, closes end, m fabric.Mark) {
			return s.near, s.far, s.own
		}),
		ends("fence_wait", "INIT_PEER, waits and the peer closes", func(s stuck) (waits, closes end, m fabric.Mark) {
			return s.far, s.near, s.peers
		}),
		ends("close", "fence_wait waits", func(s stuck) (waits, closes end, m fabric.Mark) {
			return s.near, s.near, s.own
		}),
		ends("close", "fence_wait waits, INIT_PEER", func(s stuck) (waits, closes end, m fabric.Mark) {
			return s.far, s.far, s.peers
		}),
		held("unregister", "own window, a LOCAL signal waits=ok, the window stays until the signal", func(c *check, s stuck) {
			c.must(s.near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalLocal, LocalOffset: s.mine.off, LocalValue: 5}))
			gone := c.start(func() error { return s.near.Unregister(s.mine.off, page) })
			c.want(errOf(s.near.Register(c.alloc(c.near, 1), s.mine.off, rw, fixed)), syscall.EADDRINUSE)
			s.release()
			c.want(<-gone, ok)
			c.spin(s.mine.mem, 5)
			c.becomesFree(s.near, s.mine.off)
		}),
		held("unregister", "a REMOTE signal of the peer waits=ok, the signal is stored", func(c *check, s stuck) {
			c.must(s.near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: s.word.off, RemoteValue: 6}))
			gone := c.start(func() error { return s.far.Unregister(s.word.off, page) })
			s.release()
			c.want(<-gone, ok)
			c.spin(s.word.mem, 6)
			c.becomesFree(s.far, s.word.off)
		}),
	}
	return append(rows, lostRows()...)
}

// A stuck is a connection of which a transfer of the near end does not complete until
// release is called. All windows are of a page.
type stuck struct {
	near, far  end
	own, peers fabric.Mark // behind the transfer, for near and for far
	data       window      // where the transfer is to
	word, mine window      // one more of the peer, and one of near
	release    func()
}

// held is a row about such a connection.
func held(call, name string, f func(c *check, s stuck)) row {
	return row{call: call, name: "CONNECTED/" + name, only: []Pair{Across}, needs: Held, conn: func(c *check, near, far end) {
		s := stuck{near: near, far: far, data: c.windowAt(far, 1, 0, rw), word: c.windowAt(far, 1, 16*page, rw), mine: c.windowAt(near, 1, 16*page, rw)}
		var err error
		s.peers, err = far.FenceMark(fabric.InitPeer) // the answer to one comes behind the transfers
		c.must(err)
		s.peers.Seq++
		s.release = c.hold()
		c.must(near.VWriteTo(pattern(page, 31), s.data.off, 0))
		s.own, err = near.FenceMark(fabric.InitSelf)
		c.must(err)
		f(c, s)
	}}
}

// ends is a row about a fence_wait that waits when an end closes. The close waits for
// the transfers, which may complete before the wait sees it.
func ends(call, name string, who func(s stuck) (waits, closes end, m fabric.Mark)) row {
	return held(call, name+"=ECONNRESET, or ok with the bytes there", func(c *check, s stuck) {
		waits, closes, m := who(s)
		waiting := c.waitsFor(c.ctx, waits, m)
		closed := c.start(closes.Close)
		s.release()
		if err := <-waiting; err != nil {
			c.want(err, syscall.ECONNRESET)
		} else {
			c.same(s.data.mem, pattern(page, 31))
		}
		c.want(<-closed, ok)
	})
}

// hold holds up transfers until release is called or the check ends.
func (c *check) hold() (release func()) {
	release = c.site.Hold()
	c.Cleanup(release)
	return release
}

// waitsFor waits for m in a goroutine.
func (c *check) waitsFor(ctx context.Context, e end, m fabric.Mark) <-chan error {
	c.Helper()
	return c.blocked("(*Endpoint).FenceWait", func() error { return e.FenceWait(ctx, m) })
}

// becomesFree waits until a page at off can be registered again.
func (c *check) becomesFree(e end, off int64) {
	c.Helper()
	mem := c.alloc(e.app, 1)
	for {
		_, err := e.Register(mem, off, rw, fixed)
		if !errors.Is(err, syscall.EADDRINUSE) {
			c.want(err, ok)
			return
		}
		if c.ctx.Err() != nil {
			c.Fatalf("offset %#x stays in use", off)
		}
		yield()
	}
}

// lostRows are about calls that wait for a transfer when its node crashes.
func lostRows() []row {
	e := peerCrashes
	rows := []row{
		e.waits("fence_wait", "", "(*Endpoint).FenceWait", "ECONNRESET", syscall.ECONNRESET, func(c *check) func() error {
			near := c.heldMate()
			m := c.mark(near.end, fabric.InitSelf)
			return func() error { return near.FenceWait(c.ctx, m) }
		}),
		e.waits("atomic", "", "(*Endpoint).FetchAdd64", "ECONNRESET", syscall.ECONNRESET, func(c *check) func() error {
			near := c.heldMate()
			return func() error { return errOf(near.FetchAdd64(c.ctx, 0, 1)) }
		}),
		e.waits("vwriteto", "/SYNC", "(*Endpoint).VWriteTo", "ECONNRESET", syscall.ECONNRESET, func(c *check) func() error {
			near := c.heldMate()
			return func() error { return near.VWriteTo(make([]byte, 8), 0, fabric.Sync) }
		}),
		e.waits("vreadfrom", "/SYNC", "(*Endpoint).VReadFrom", "ECONNRESET", syscall.ECONNRESET, func(c *check) func() error {
			near := c.heldMate()
			return func() error { return near.VReadFrom(make([]byte, 8), 0, fabric.Sync) }
		}),
		{call: "fence_signal", name: "waits when " + e.name + "=never stored", only: e.only, ending: e, after: func(c *check) func(*check) {
			near := c.heldMate()
			c.must(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalLocal, LocalOffset: 0, LocalValue: 7}))
			return func(c *check) { c.same(near.mem, make([]byte, page)) }
		}},
	}
	for i := range rows {
		rows[i].needs = Held
	}
	return rows
}

// A heldEnd is the near end of a connection of which a transfer does not complete. Both
// ends have a window of a page at offset 0; mem is the near one.
type heldEnd struct {
	end
	mem []byte
}

// heldMate is mate for calls that wait for transfers. All connections that the rows of
// an ending need are made before the first transfer is held up.
func (c *check) heldMate() heldEnd {
	c.Helper()
	if c.stuck == nil {
		for range 5 {
			near, far := c.connected()
			c.windowAt(far, 1, 0, rw)
			c.stuck = append(c.stuck, heldEnd{near, c.windowAt(near, 1, 0, rw).mem})
		}
		c.hold()
	}
	near := c.stuck[0]
	c.stuck = c.stuck[1:]
	c.must(near.VWriteTo([]byte("x"), 0, 0))
	return near
}
