package conformance

import (
	"errors"
	"io"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// endRows are about the results of every call after a connection, or the own node, has
// ended otherwise than by a close, and about the calls that wait at that moment.
func endRows() []row {
	var rows []row
	for _, e := range endings {
		if e.own {
			rows = append(rows, e.ownRows()...)
			continue
		}
		rows = append(rows, e.disconnectedRows()...)
		rows = append(rows, e.waitRows()...)
		rows = append(rows, e.rows...)
	}
	return rows
}

// row is about an endpoint that has been connected when the ending comes.
func (e *ending) row(call, what, result string, ended func(c *check, near end)) row {
	return row{call: call, name: "CONNECTED, then " + e.name + what + "=" + result, only: e.only, needs: e.needs, ending: e,
		after: func(c *check) func(*check) {
			near := c.mate()
			return func(c *check) {
				if !e.own { // which has ended with the application's session
					c.await(near, fabric.PollHup)
				}
				ended(c, near)
			}
		}}
}

// fails is a row about the error that a call returns after the ending.
func (e *ending) fails(call, what string, errno syscall.Errno, f func(c *check, near end) error) row {
	return e.row(call, what, errnoName(errno), func(c *check, near end) { c.want(f(c, near), errno) })
}

// A use is one call on an endpoint that has been connected.
type use struct {
	call, what string
	f          func(c *check, near end) error
}

// uses are the calls that need a connection.
var uses = slices.Concat([]use{
	{"send", "/block", sendAny},
	{"send", "", trySendAny},
	{"recv", "/block", recvAny},
	{"recv", "", tryRecvAny},
	{"register", "", registerAny},
	{"unregister", "", unregisterAny},
	{"mmap", "", mmapAny},
	{"fence_mark", "/INIT_SELF", markAny},
	{"fence_mark", "/INIT_PEER", func(_ *check, near end) error { return errOf(near.FenceMark(fabric.InitPeer)) }},
	{"fence_wait", "", waitAny},
	{"fence_signal", "", signalAny},
}, transferUses(), wordUses())

// transferUses are the transfers, with and without a signal behind them.
func transferUses() (all []use) {
	for _, x := range slices.Concat(transfers, puts(fabric.Notice{})) {
		all = append(all, use{x.call, "", func(_ *check, near end) error { return x.do(near, small(), 0, 8, 0, fabric.Sync) }})
	}
	return all
}

// wordUses are the atomic calls.
func wordUses() (all []use) {
	for _, a := range some() {
		all = append(all, use{a.call(), "", func(c *check, near end) error { return errOf(a.do(c.ctx, near, 0, 1)) }})
	}
	return all
}

// disconnectedRows are about the near endpoint of a connection whose other end, or
// whose node's membership, is gone: it is DISCONNECTED, and no call on it returns an
// end of file.
func (e *ending) disconnectedRows() []row {
	rows := []row{
		e.fails("bind", "", syscall.EISCONN, bindAny),
		e.fails("listen", "", syscall.EINVAL, listenFor(1)),
		e.fails("connect", "", syscall.EINVAL, func(c *check, near end) error {
			_, at := c.listeningOn(c.near, 1)
			return errOf(near.Connect(c.ctx, at))
		}),
		e.fails("accept", "", syscall.EINVAL, acceptAny),
		e.fails("close", "", ok, closeAny),
		e.row("poll", "", "POLLHUP", func(c *check, near end) {
			is(c, "revents", c.revents(near, fabric.PollIn), fabric.PollHup)
		}),
		e.row("bind", "/its port", "ok", func(c *check, near end) {
			c.want(errOf(c.unbound().Bind(near.LocalAddr().Port)), ok)
		}),
		{call: "fence_wait", name: "CONNECTED, then " + e.name + "/mark taken before=ECONNRESET", only: e.only, needs: e.needs, ending: e,
			after: func(c *check) func(*check) {
				near := c.mate()
				m := c.mark(near, fabric.InitSelf)
				return func(c *check) {
					c.await(near, fabric.PollHup)
					c.want(near.FenceWait(c.ctx, m), syscall.ECONNRESET)
				}
			}},
	}
	for _, u := range uses {
		rows = append(rows, e.fails(u.call, u.what, syscall.ECONNRESET, u.f))
	}
	return append(rows, e.fails("recv", ", not io.EOF", syscall.ECONNRESET, notEOF))
}

// on prepares a call on a connected endpoint.
func on(f func(c *check, near end) error) func(*check) func() error {
	return func(c *check) func() error {
		near := c.mate()
		return func() error { return f(c, near) }
	}
}

// sendMuch sends more than a connection has room for.
func sendMuch(c *check, near end) error {
	return errOf(near.Send(c.ctx, make([]byte, 16<<20)))
}

// pollHup polls for bytes, and wants POLLHUP.
func pollHup(c *check, near end) error {
	items := []fabric.PollItem{{Endpoint: near.Endpoint, Events: fabric.PollIn}}
	_, err := near.app.Poll(c.ctx, items)
	if got := items[0].Revents; err == nil && got != fabric.PollHup {
		c.Errorf("revents %#x", got)
	}
	return err
}

// anyError stands for any error of a call. Which one depends on which loss it meets
// first: that of its target, or that of the way to the target.
const anyError = syscall.Errno(1 << 16)

// notEOF receives, and wants no end of file.
func notEOF(c *check, near end) error {
	err := recvAny(c, near)
	if errors.Is(err, io.EOF) {
		c.Errorf("%v is io.EOF", err)
	}
	return err
}

// waits is a row about a call of method that waits when the ending comes.
func (e *ending) waits(call, what, method, result string, errno syscall.Errno, prepare func(c *check) func() error) row {
	return row{call: call, name: "waits when " + e.name + what + "=" + result, only: e.only, needs: e.needs, ending: e,
		after: func(c *check) func(*check) {
			waiting := c.blocked(method, prepare(c))
			return func(c *check) {
				select {
				case err := <-waiting:
					c.want(err, errno)
				case <-c.ctx.Done():
					c.Error("it waits on")
				}
			}
		}}
}

// waitRows are about calls at the near endpoint that wait.
func (e *ending) waitRows() []row {
	return []row{
		e.waits("recv", "", "(*Endpoint).Recv", "ECONNRESET", syscall.ECONNRESET, on(recvAny)),
		e.waits("send", "", "(*Endpoint).Send", "ECONNRESET", syscall.ECONNRESET, on(sendMuch)),
		e.waits("poll", "", "(*Node).Poll", "POLLHUP", ok, on(pollHup)),
		e.waits("connect", "", "(*Endpoint).Connect", errnoName(e.connecting), e.connecting, func(c *check) func() error {
			near := c.unbound()
			_, at := c.idle()
			return func() error { return errOf(near.Connect(c.ctx, at)) }
		}),
		{call: "connect", name: "non-blocking when " + e.name + "=POLLOUT, then " + errnoName(e.tried) + ", BOUND", only: e.only, needs: e.needs, ending: e,
			after: func(c *check) func(*check) {
				near := c.unbound()
				listener, at := c.idle()
				c.request(near, at)
				if listener.Endpoint != nil {
					c.await(listener, fabric.PollIn)
				}
				return func(c *check) {
					c.await(near, fabric.PollOut)
					c.want(errOf(near.TryConnect(at)), e.tried)
					c.want(errOf(near.Bind(0)), syscall.EINVAL)
				}
			}},
	}
}

// idle returns a listener of the peer's side that accepts nothing; none, but its
// address, if it is in another process.
func (c *check) idle() (listener end, at fabric.Addr) {
	c.Helper()
	if c.dies != nil {
		return end{}, c.waits
	}
	return c.listeningOn(c.far, 4)
}

// leaves is a row about a listener of the near application whose request comes from
// the far side.
func (e *ending) leaves() row {
	return row{call: "accept", name: "LISTENING, then " + e.name + "/its request waits=EAGAIN without SYNC", only: e.only, needs: e.needs, ending: e,
		after: func(c *check) func(*check) {
			listener, at := c.listeningOn(c.near, 1)
			c.request(c.openOn(c.far), at)
			c.await(listener, fabric.PollIn)
			return func(c *check) {
				c.want(errOf(listener.TryAccept()), syscall.EAGAIN)
			}
		}}
}

// dial is a row about a connect of a new endpoint to where the peer was.
func (e *ending) dial(errno syscall.Errno) row {
	return e.fails("connect", "/new endpoint to its address", errno, func(c *check, near end) error {
		return errOf(c.unbound().Connect(c.ctx, near.RemoteAddr()))
	})
}

// left is a row about bytes that had arrived before the ending.
func (e *ending) left() row {
	result := "data or nothing, then ECONNRESET, not io.EOF"
	if e.delivers {
		result = "data, then ECONNRESET, not io.EOF"
	}
	return row{call: "recv", name: "CONNECTED, then " + e.name + "/data left=" + result, only: e.only, needs: e.needs, ending: e,
		after: func(c *check) func(*check) {
			near := c.arrived("left")
			return func(c *check) {
				p := make([]byte, 8)
				n, err := near.Recv(c.ctx, p)
				c.want(err, syscall.ECONNRESET)
				if got := string(p[:n]); errors.Is(err, io.EOF) || got != "left" && (got != "" || e.delivers) {
					c.Errorf("received %q, then %v", got, err)
				}
			}
		}}
}

// arrived returns a connected endpoint that has 4 bytes to receive.
func (c *check) arrived(data string) end {
	c.Helper()
	if c.dies == nil {
		near, far := c.connected()
		c.send(far, data)
		c.await(near, fabric.PollIn)
		return near
	}
	near := c.mate()
	c.send(near, data)
	c.await(near, fabric.PollIn)
	return near
}

// ownRows are about an application whose own node ends: every call fails, those of a
// stream as after a loss, and none waits.
func (e *ending) ownRows() []row {
	rows := []row{
		e.fails("open", "", syscall.ENODEV, func(c *check, _ end) error { return errOf(c.near.Open()) }),
		e.fails("bind", "", syscall.ENODEV, bindAny),
		e.fails("listen", "", syscall.ENODEV, listenFor(1)),
		e.fails("connect", "", syscall.ENODEV, func(c *check, near end) error { return errOf(near.Connect(c.ctx, near.RemoteAddr())) }),
		e.fails("accept", "", syscall.ENODEV, acceptAny),
		e.fails("accept", "/without SYNC", syscall.ENODEV, tryAcceptAny),
		e.fails("close", "", ok, closeAny),
		e.fails("get_nodeIDs", "", syscall.EBADF, func(c *check, _ end) error { _, _, err := c.near.Nodes(); return err }),
		{call: "register", name: "CONNECTED, then " + e.name + "=ENODEV", needs: e.needs, ending: e, after: func(c *check) func(*check) {
			near, mem := c.mate(), c.alloc(c.near, 1)
			return func(c *check) {
				c.want(errOf(near.Register(mem, 0, rw, 0)), syscall.ENODEV)
			}
		}},
		e.left(),
	}
	for _, u := range uses {
		errno := syscall.ENODEV
		switch u.call {
		case "register":
			continue
		case "send", "recv":
			errno = syscall.ECONNRESET
		}
		rows = append(rows, e.fails(u.call, u.what, errno, u.f))
	}
	return append(rows, e.ownWaitRows()...)
}

// ownWaitRows are about calls that wait when the own node ends.
func (e *ending) ownWaitRows() []row {
	return []row{
		e.waits("recv", "", "(*Endpoint).Recv", "ECONNRESET", syscall.ECONNRESET, on(recvAny)),
		e.waits("send", "", "(*Endpoint).Send", "ECONNRESET", syscall.ECONNRESET, on(sendMuch)),
		e.waits("poll", "", "(*Node).Poll", "POLLHUP", ok, on(pollHup)),
		e.waits("accept", "", "(*Endpoint).Accept", "an error", anyError, func(c *check) func() error {
			listener := c.listening()
			return func() error { return acceptAny(c, listener) }
		}),
		e.waits("connect", "", "(*Endpoint).Connect", "an error", anyError, func(c *check) func() error {
			_, at := c.listeningOn(c.far, 4)
			near := c.unbound()
			return func() error { return errOf(near.Connect(c.ctx, at)) }
		}),
	}
}
