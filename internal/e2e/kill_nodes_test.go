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
	want []syscall.Errno // one of these
	done chan struct{}
	err  error     // read after done
	at   time.Time // of its return; read after done
}

// start begins a call that is to fail with one of want.
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

// check waits for the call's return and fails t unless it is the right one. It
// returns how long after since that was.
func (c *call) check(t testing.TB, since time.Time) time.Duration {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Until(since.Add(promptly))):
		t.Errorf("%s still blocks %v after the loss", c.name, promptly)
		return promptly
	}
	right := func(e syscall.Errno) bool { return errors.Is(c.err, e) }
	if !slices.ContainsFunc(c.want, right) {
		t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
	}
	if c.err != nil {
		if _, ok := errors.AsType[*fabric.OpError](c.err); !ok {
			t.Errorf("%s: %v is no *fabric.OpError", c.name, c.err)
		}
	}
	return c.at.Sub(since)
}

// A flow is a healthy connection with traffic all the time.
type flow struct {
	stop chan struct{}
	done chan struct{}
	n    int   // round trips; read after done
	err  error // read after done
}

// flow begins traffic between applications at n and m.
func (l *lab) flow(n, m *node) *flow {
	l.t.Helper()
	e := l.pair(n, m)
	f := &flow{stop: make(chan struct{}), done: make(chan struct{})}
	go func() { // until end
		defer close(f.done)
		for ; f.err == nil; f.n++ {
			select {
			case <-f.stop:
				return
			case <-time.After(time.Millisecond):
				f.err = e.trip()
			}
		}
	}()
	return f
}

// end ends the traffic and fails t if anything had disturbed it.
func (f *flow) end(t testing.TB) {
	t.Helper()
	close(f.stop)
	<-f.done
	if f.err != nil || f.n < 5 {
		t.Errorf("a healthy pair: %v after %d round trips", f.err, f.n)
	}
}

// TestKilledNodesAreRemovedOnce kills each of four nodes with SIGKILL, the host
// too, while calls of all kinds are blocked, and starts it again.
func TestKilledNodesAreRemovedOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(3)
	for i := len(nodes) - 1; i >= 0; i-- { // the host last
		victim := nodes[i]
		survivors := slices.Delete(slices.Clone(nodes), i, i+1)
		l.loseAndReturn(victim, survivors)
	}
}

// loseAndReturn kills victim and starts it again, with everything checked.
func (l *lab) loseAndReturn(victim *node, survivors []*node) {
	t := l.t
	t.Helper()
	old := victim.life()
	var watchers []*watcher
	var flows []*flow
	for i, s := range survivors {
		watchers = append(watchers, s.watch())
		flows = append(flows, l.flow(s, survivors[(i+1)%len(survivors)]))
	}
	v := l.doomed(victim)
	calls := v.ownCalls(l, survivors[0])
	for _, s := range survivors {
		calls = append(calls, v.callsFrom(l, s)...)
	}
	victim.stop(t) // so that what needs the victim blocks
	for _, block := range v.later {
		calls = append(calls, block())
	}
	time.Sleep(50 * time.Millisecond) // nothing tells that a call blocks
	for _, c := range calls {
		c.blocked(t)
	}

	killed := victim.kill()
	slowest := map[string]time.Duration{}
	for _, c := range calls {
		slowest[c.name] = max(slowest[c.name], c.check(t, killed))
	}
	var told []time.Duration
	for _, w := range watchers {
		ev := w.removed(promptly, old)
		told = append(told, ev.at.Sub(killed).Round(10*time.Microsecond))
		if ev.Reason != "crashed" {
			t.Errorf("%s: reason %q, want crashed", w.name, ev.Reason)
		}
	}
	t.Logf("%s killed: NODE_REMOVED after %v; calls returned after at most %v", victim.name, told, slowest)
	v.check(t)
	for _, s := range survivors {
		_, err := s.attach().Dial(within(t, stepLimit), victim.at(v.port))
		if !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%s: connect to the lost node: %v, want ENODEV", s.name, err)
		}
	}

	victim.start()
	next := fabric.Life{Node: old.Node, Generation: old.Generation + 1}
	if victim.life() != next {
		t.Errorf("%s is %v again, want %v", victim.name, victim.life(), next)
	}
	for _, w := range watchers {
		w.added(stepLimit, next)
	}
	l.agree(append(survivors, victim)...)
	for _, s := range survivors {
		l.pair(s, victim).pace(t.(*testing.T), 3)
	}
	for _, f := range flows {
		f.end(t)
	}
	for _, w := range watchers {
		w.saw(fmt.Sprintf("%v removed, %v added", old, next))
	}
}

// doomed is an application at a node that is going to be killed.
type doomed struct {
	app   *fabric.Node
	port  fabric.Port      // of open
	open  *fabric.Listener // whose connections are accepted, with a window each
	busy  *fabric.Listener // whose requests nobody accepts
	later []func() *call   // calls that block only while the node stands still
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

// ownCalls blocks calls of the application itself.
func (d *doomed) ownCalls(l *lab, other *node) []*call {
	l.t.Helper()
	far, err := other.attach().Listen(0) // whose requests nobody accepts
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
			_, err := d.app.Dial(ctx, far.Addr().(fabric.Addr))
			return err
		}, gone...),
	}
}

// callsFrom connects an application at n and blocks its calls, and those of d
// on the other end.
func (d *doomed) callsFrom(l *lab, n *node) []*call {
	t := l.t
	t.Helper()
	app := n.attach()
	dialed := make(chan error, 1)
	var near *fabric.Conn
	go func() { // one answer
		var err error
		near, err = app.Dial(within(t, stepLimit), d.open.Addr().(fabric.Addr))
		dialed <- err
	}()
	far, err := d.open.AcceptConn(within(t, stepLimit))
	if err := errors.Join(err, <-dialed); err != nil {
		t.Fatal(err)
	}
	window, _, err := openWindow(within(t, stepLimit), d.app, far.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { window.Close() })
	ep := near.Endpoint()
	off, err := peerWindow(within(t, stepLimit), ep)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := app.Alloc(windowSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	const reset = syscall.ECONNRESET
	d.later = append(d.later,
		func() *call {
			return start("fence wait", func(ctx context.Context) error {
				if err := ep.VWriteTo(pattern('v', windowSize), off, 0); err != nil {
					return err
				}
				m, err := ep.FenceMark(fabric.InitSelf)
				if err != nil {
					return err
				}
				return ep.FenceWait(ctx, m)
			}, reset)
		},
		func() *call {
			return start("register", func(context.Context) error {
				_, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead, 0)
				return err
			}, reset)
		},
		func() *call {
			return start("atomic", func(ctx context.Context) error {
				_, err := ep.FetchAdd64(ctx, off, 1)
				return err
			}, reset)
		},
		func() *call {
			return start("read with SYNC", func(context.Context) error {
				return ep.VReadFrom(make([]byte, windowSize), off, fabric.Sync)
			}, reset)
		},
	)
	return []*call{
		start("recv", func(ctx context.Context) error { _, err := ep.Recv(ctx, make([]byte, 1)); return err }, reset),
		start("recv of its own application", func(ctx context.Context) error {
			_, err := far.Endpoint().Recv(ctx, make([]byte, 1))
			return err
		}, reset, syscall.ENODEV),
		start("connect", func(ctx context.Context) error {
			_, err := app.Dial(ctx, d.busy.Addr().(fabric.Addr))
			return err
		}, syscall.ENODEV),
		start("send inside NODE_REMOVED", func(ctx context.Context) error {
			return sendWhenRemoved(ctx, app, ep)
		}, reset),
		start("poll", func(ctx context.Context) error { return pollHup(ctx, app, ep) }, reset),
	}
}

// sendWhenRemoved waits for the removal of ep's peer and returns what a Send
// says inside the callback.
func sendWhenRemoved(ctx context.Context, n *fabric.Node, ep *fabric.Endpoint) error {
	said := make(chan error, 1)
	cancel := n.OnEvent(func(ev fabric.Event) {
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
}

// pollHup waits until poll shows the loss and returns what a call then says.
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
		t.Error("the lost node's application is not told that its node is gone")
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
