package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A call is one that blocks, on a goroutine of its own.
type call struct {
	name string
	want []syscall.Errno // one of these; none: it succeeds
	done chan struct{}
	err  error     // read after done
	at   time.Time // of its return; read after done
}

// start begins a call that is to fail with one of want, or to succeed without any.
func start(name string, f func(context.Context) error, want ...syscall.Errno) *call {
	c := &call{name: name, want: want, done: make(chan struct{})}
	go func() { // returns with the call, which check waits for
		defer close(c.done)
		ctx, cancel := context.WithTimeout(context.Background(), 4*stepLimit)
		defer cancel()
		c.err = f(ctx)
		c.at = time.Now()
	}()
	return c
}

// blocked fails t if the call has returned.
func (c *call) blocked(t testing.TB) {
	t.Helper()
	select {
	case <-c.done:
		t.Errorf("%s returned before anything was lost: %v", c.name, c.err)
	default:
	}
}

// grace is how long a late call is waited for beyond its limit, to report how late it is.
const grace = time.Second

// check waits for the call's return, at most limit after since, and fails t unless
// it is the right one. It returns how long after since that was.
func (c *call) check(t testing.TB, since time.Time, limit time.Duration) time.Duration {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(max(0, time.Until(since.Add(limit))) + grace):
		t.Errorf("%s still blocks %v after the loss", c.name, time.Since(since).Round(time.Millisecond))
		return limit
	}
	if took := c.at.Sub(since); took > limit {
		t.Errorf("%s returned %v after the loss, want %v at most", c.name, took.Round(time.Millisecond), limit)
	}
	right := func(e syscall.Errno) bool { return errors.Is(c.err, e) }
	if succeeds := len(c.want) == 0 && c.err == nil; !succeeds && !slices.ContainsFunc(c.want, right) {
		t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
	}
	if c.err != nil {
		if _, ok := errors.AsType[*fabric.OpError](c.err); !ok {
			t.Errorf("%s: %v is no *fabric.OpError", c.name, c.err)
		}
	}
	return c.at.Sub(since)
}

// doomed is an application at a node that is going to be killed.
type doomed struct {
	app   *fabric.Node
	port  fabric.Port      // of open
	open  *fabric.Listener // whose connections are accepted, with a window each
	busy  *fabric.Listener // its requests are not accepted
	own   []*call          // of the application itself, which block
	later []func() *call   // of others, which block only while the node does not answer
}

// doomed attaches such an application to n.
func (l *lab) doomed(n *node) *doomed {
	l.t.Helper()
	d := &doomed{app: n.attach()}
	var err error
	if d.open, err = d.app.Listen(0); err != nil {
		l.t.Fatal(err)
	}
	if d.busy, err = d.app.Listen(0); err != nil {
		l.t.Fatal(err)
	}
	d.port = d.open.Addr().(fabric.Addr).Port
	return d
}

// ownCalls blocks calls of the application that end only with its own node.
func (d *doomed) ownCalls(l *lab, other *node) []*call {
	l.t.Helper()
	far, err := other.attach().Listen(0) // its requests are not accepted
	if err != nil {
		l.t.Fatal(err)
	}
	idle, err := d.app.Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	gone := []syscall.Errno{syscall.ECONNRESET, syscall.ENODEV}
	return []*call{
		start("accept of its own application", func(ctx context.Context) error { _, err := idle.AcceptConn(ctx); return err }, gone...),
		start("connect of its own application", func(ctx context.Context) error {
			_, err := d.app.DialAddr(ctx, far.Addr().(fabric.Addr))
			return err
		}, gone...),
	}
}

// callsFrom connects an application at n and blocks its calls, and adds to those of
// d in own and later.
func (d *doomed) callsFrom(l *lab, n *node) []*call {
	t := l.t
	t.Helper()
	m := d.meet(l, n)
	d.own = append(d.own, start("recv of its own application", func(ctx context.Context) error {
		_, err := m.far.Recv(ctx, make([]byte, 1))
		return err
	}, reset, syscall.ENODEV))
	d.later = append(d.later, m.waitingCalls(t)...)
	d.later = append(d.later, m.streamingCalls()...)
	ep := m.ep
	return []*call{
		start("recv", func(ctx context.Context) error { _, err := ep.Recv(ctx, make([]byte, 1)); return err }, reset),
		start("connect", func(ctx context.Context) error {
			_, err := m.app.DialAddr(ctx, d.busy.Addr().(fabric.Addr))
			return err
		}, syscall.ENODEV),
		start("poll", func(ctx context.Context) error { return pollHup(ctx, m.app, ep) }, reset),
		start("send to a peer that reads nothing", untilItFails(func(ctx context.Context) error {
			_, err := m.full.Send(ctx, make([]byte, windowSize))
			return err
		}), reset),
	}
}

// reset is the error of every call on a connection whose peer is lost.
const reset = syscall.ECONNRESET

// A meeting is the set of connections of an application to a doomed one.
type meeting struct {
	app *fabric.Node
	ep  *fabric.Endpoint // whose peer has a window of windowSize
	far *fabric.Endpoint // its peer
	off int64            // of that window
	// full is connected to an end that reads nothing, leaving is for its close.
	full, leaving *fabric.Endpoint
}

// meet connects an application at n with d.
func (d *doomed) meet(l *lab, n *node) *meeting {
	t := l.t
	t.Helper()
	m := &meeting{app: n.attach()}
	m.ep, m.far = d.connect(t, m.app)
	m.full, _ = d.connect(t, m.app)
	m.leaving, _ = d.connect(t, m.app)
	window, _, err := openWindow(within(t, stepLimit), d.app, m.far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { window.Close() })
	if m.off, err = peerWindow(within(t, stepLimit), m.ep); err != nil {
		t.Fatal(err)
	}
	return m
}

// connect connects app with d and returns both ends.
func (d *doomed) connect(t testing.TB, app *fabric.Node) (near, far *fabric.Endpoint) {
	t.Helper()
	dialed := make(chan error, 1)
	var c *fabric.Conn
	go func() { // one answer
		var err error
		c, err = app.DialAddr(within(t, stepLimit), d.open.Addr().(fabric.Addr))
		dialed <- err
	}()
	accepted, err := d.open.AcceptConn(within(t, stepLimit))
	if err := errors.Join(err, <-dialed); err != nil {
		t.Fatal(err)
	}
	return c.Endpoint(), accepted.Endpoint()
}

// alloc allocates windowSize bytes that are freed at the end.
func (m *meeting) alloc(t testing.TB) *fabric.Memory {
	t.Helper()
	mem, err := m.app.Alloc(windowSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	return mem
}

// register makes a window of windowSize for the peer.
func (m *meeting) register(t testing.TB) int64 {
	t.Helper()
	off, err := m.ep.Register(m.alloc(t).Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	return off
}

// mirror makes a mirror of the peer's window.
func (m *meeting) mirror(t testing.TB) *fabric.Mirror {
	t.Helper()
	mirror, err := fabric.NewMirror(m.ep, m.off, windowSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	return mirror
}

// waitingCalls returns calls that wait for an answer of the peer.
func (m *meeting) waitingCalls(t testing.TB) []func() *call {
	own, withdrawn, second := m.register(t), m.register(t), m.alloc(t)
	mirror, changed := m.mirror(t), m.mirror(t)
	if err := changed.Write(0, pattern('m', 64)); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"fence wait": func(ctx context.Context) error {
			if err := m.ep.VWriteTo(pattern('v', windowSize), m.off, 0); err != nil {
				return err
			}
			mark, err := m.ep.FenceMark(fabric.InitSelf)
			if err != nil {
				return err
			}
			return m.ep.FenceWait(ctx, mark)
		},
		"fence wait for the peer's transfers": func(ctx context.Context) error {
			mark, err := m.ep.FenceMark(fabric.InitPeer)
			if err != nil {
				return err
			}
			return m.ep.FenceWait(ctx, mark)
		},
		"register": func(context.Context) error {
			_, err := m.ep.Register(second.Bytes(), 0, fabric.ProtRead, 0)
			return err
		},
		"unregister":       func(context.Context) error { return m.ep.Unregister(withdrawn, windowSize) },
		"fetching add":     func(ctx context.Context) error { _, err := m.ep.FetchAdd64(ctx, m.off, 1); return err },
		"compare and swap": func(ctx context.Context) error { _, err := m.ep.CompareAndSwap32(ctx, m.off, 0, 1); return err },
		"read with SYNC":   func(context.Context) error { return m.ep.VReadFrom(make([]byte, windowSize), m.off, fabric.Sync) },
		"read into a window with SYNC": func(context.Context) error {
			return m.ep.ReadFrom(own, windowSize/2, m.off, fabric.Sync)
		},
		"write with SYNC": func(context.Context) error { return m.ep.VWriteTo(make([]byte, 64), m.off, fabric.Sync) },
		"write from a window with SYNC": func(context.Context) error {
			return m.ep.WriteTo(own+windowSize/2, windowSize/2, m.off+windowSize/2, fabric.Sync)
		},
		"acquire of a mirror": func(ctx context.Context) error { return mirror.Acquire(ctx, 0, windowSize) },
		"release of a mirror": func(ctx context.Context) error {
			err := changed.Release(ctx)
			if len(changed.Dirty()) == 0 {
				return fmt.Errorf("release of a mirror says %v, and nothing is dirty", err)
			}
			return err
		},
	}
	// A close waits until the peer has the bytes that were sent, and succeeds in any case.
	all := []func() *call{func() *call {
		return start("close", func(context.Context) error { return m.leaving.Close() })
	}}
	for name, f := range calls {
		all = append(all, func() *call { return start(name, f, reset) })
	}
	return all
}

// streamingCalls returns calls that do not wait, again and again until they fail.
func (m *meeting) streamingCalls() []func() *call {
	calls := map[string]func(context.Context) error{
		"try send": func(context.Context) error {
			_, err := m.full.TrySend([]byte("x"))
			time.Sleep(time.Millisecond) // it never waits
			return err
		},
		"write": func(context.Context) error { return m.ep.VWriteTo(make([]byte, 4096), m.off, 0) },
		"add":   func(context.Context) error { return m.ep.Add64(m.off, 1) },
		"put with signal": func(context.Context) error {
			return m.ep.VPutSignal(make([]byte, 64), m.off, fabric.Notice{Offset: m.off + wordOffset, Value: 1})
		},
		"fence signal": func(context.Context) error {
			err := m.ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: m.off + wordOffset, RemoteValue: 1})
			if errors.Is(err, syscall.ENOBUFS) { // as many wait as may
				time.Sleep(time.Millisecond)
				return nil
			}
			return err
		},
	}
	var all []func() *call
	for name, f := range calls {
		all = append(all, func() *call { return start(name, untilItFails(f), reset) })
	}
	return all
}

// untilItFails returns f again and again.
func untilItFails(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := f(ctx); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
}

// sendsWhenRemoved returns the call of an application at n that sends to d inside
// the callback of its node's NODE_REMOVED.
func (d *doomed) sendsWhenRemoved(l *lab, n *node) *call {
	l.t.Helper()
	app := n.attach()
	ep, _ := d.connect(l.t, app)
	return start("send inside NODE_REMOVED", func(ctx context.Context) error {
		said := make(chan error, 1)
		cancel := app.OnEvent(func(ev fabric.Event) {
			if ev.Kind == fabric.NodeRemoved && ev.Node == ep.RemoteAddr().Node {
				_, err := ep.Send(ctx, []byte("x"))
				said <- err
			}
		})
		defer cancel()
		select {
		case err := <-said:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, reset)
}

// pollHup waits until poll shows the loss and returns the error of the next call.
func pollHup(ctx context.Context, n *fabric.Node, ep *fabric.Endpoint) error {
	items := []fabric.PollItem{{Endpoint: ep}}
	if _, err := n.Poll(ctx, items); err != nil {
		return err
	}
	if items[0].Revents&fabric.PollHup == 0 {
		return fmt.Errorf("poll says %v, want PollHup", items[0].Revents)
	}
	_, err := ep.Send(ctx, []byte("x"))
	return err
}

// check fails t unless d knows that its node is gone, at every call.
func (d *doomed) check(t testing.TB) {
	t.Helper()
	select {
	case <-d.app.Done():
	case <-time.After(promptly):
		t.Error("the lost node's application is not notified that its node is gone")
	}
	if _, err := d.app.Open(); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("open at the lost node: %v, want ENODEV", err)
	}
	if _, _, err := d.app.Nodes(); err == nil {
		t.Error("the lost node's application still lists nodes")
	}
	if _, err := d.open.Accept(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("accept at the lost node: %v, want an error", err)
	}
}
