package conformance

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A check is one run of a row: its two applications, and the helpers that rows call.
type check struct {
	testing.TB
	ctx  context.Context // ends long before the test binary is given up
	site Site
	pair Pair
	near *fabric.Node // of the endpoint that the row is about
	far  *fabric.Node // of its peer

	settles time.Duration // of the API mode

	// Addresses of a peer in a process of its own, which dies ends: at accepts every connect
	// is accepted, at waits none. dies is nil if there is no such process.
	accepts, waits fabric.Addr
	dies           func()

	stuck []heldEnd // results of the next calls of heldMate; nil: not made yet
}

// patience bounds every wait of a row. Only a row that fails uses it up.
const patience = 20 * time.Second

// An end is an endpoint and the application that opened it.
type end struct {
	*fabric.Endpoint
	app *fabric.Node
}

func (c *check) openOn(app *fabric.Node) end {
	c.Helper()
	ep, err := app.Open()
	if err != nil {
		c.Fatalf("open: %v", err)
	}
	c.Cleanup(func() { ep.Close() })
	return end{ep, app}
}

// unbound returns an endpoint in the state UNBOUND.
func (c *check) unbound() end { c.Helper(); return c.openOn(c.near) }

// bound returns an endpoint in the state BOUND.
func (c *check) bound() end {
	c.Helper()
	e := c.unbound()
	c.bind(e, 0)
	return e
}

func (c *check) bind(e end, port fabric.Port) fabric.Port {
	c.Helper()
	got, err := e.Bind(port)
	if err != nil {
		c.Fatalf("bind %d: %v", port, err)
	}
	return got
}

// listeningOn returns an endpoint in the state LISTENING, and its address.
func (c *check) listeningOn(app *fabric.Node, backlog int) (end, fabric.Addr) {
	c.Helper()
	e := c.openOn(app)
	c.bind(e, 0)
	if err := e.Listen(backlog); err != nil {
		c.Fatalf("listen: %v", err)
	}
	return e, e.LocalAddr()
}

func (c *check) listening() end {
	c.Helper()
	e, _ := c.listeningOn(c.near, 4)
	return e
}

// connecting returns an endpoint whose connect waits to be accepted, and the
// listener that has its request.
func (c *check) connecting() (near, listener end) {
	c.Helper()
	listener, at := c.listeningOn(c.far, 4)
	near = c.unbound()
	c.request(near, at)
	c.await(listener, fabric.PollIn)
	return near, listener
}

// request begins a non-blocking connect.
func (c *check) request(e end, at fabric.Addr) {
	c.Helper()
	if _, err := e.TryConnect(at); !errors.Is(err, syscall.EINPROGRESS) {
		c.Fatalf("first connect of a non-blocking endpoint: %v, want EINPROGRESS", err)
	}
}

// blockedConnect is connecting with a Connect that blocks in a goroutine and
// whose error arrives at result.
func (c *check) blockedConnect() (near, listener end, result <-chan error) {
	c.Helper()
	near, listener, result = c.startedConnect()
	c.await(listener, fabric.PollIn)
	return near, listener, result
}

// startedConnect is blockedConnect for a connect that may time out before its
// request reaches the listener.
func (c *check) startedConnect() (near, listener end, result <-chan error) {
	c.Helper()
	listener, at := c.listeningOn(c.far, 4)
	near = c.unbound()
	result = c.start(func() error { return errOf(near.Connect(c.ctx, at)) })
	return near, listener, result
}

// connected returns the two ends of a connection: near has called connect, far
// was accepted.
func (c *check) connected() (near, far end) {
	c.Helper()
	listener, at := c.listeningOn(c.far, 4)
	defer listener.Close()
	return c.dial(c.unbound(), listener, at)
}

// dial connects near to a listener that no other connect uses meanwhile.
func (c *check) dial(near, listener end, at fabric.Addr) (end, end) {
	c.Helper()
	connected := c.start(func() error { return errOf(near.Connect(c.ctx, at)) })
	far := c.accept(listener)
	if err := <-connected; err != nil {
		c.Fatalf("connect: %v", err)
	}
	c.ready(near, far)
	return near, far
}

// ready brings a new connection to the state in which the API mode's rows expect
// it. An application of the row's own may have come through another socket of its
// node. Its server does not know the other end: its connections stay as they are.
func (c *check) ready(near, far end) {
	c.Helper()
	for _, e := range []end{near, far} {
		if e.app != c.near && e.app != c.far {
			return
		}
	}
	if err := c.site.Ready(c.ctx, near.Endpoint, far.Endpoint); err != nil {
		c.Fatalf("make the connection ready: %v", err)
	}
}

func (c *check) accept(listener end) end {
	c.Helper()
	ep, err := listener.Accept(c.ctx)
	if err != nil {
		c.Fatalf("accept: %v", err)
	}
	c.Cleanup(func() { ep.Close() })
	return end{ep, listener.app}
}

// disconnected returns an endpoint whose peer has closed after sending left.
func (c *check) disconnected(left string) end {
	c.Helper()
	near, far := c.connected()
	c.send(far, left)
	c.closeEnd(far)
	c.await(near, fabric.PollHup)
	return near
}

// closed returns an endpoint after close.
func (c *check) closed() end {
	c.Helper()
	e := c.unbound()
	c.closeEnd(e)
	return e
}

func (c *check) closeEnd(e end) {
	c.Helper()
	if err := e.Close(); err != nil {
		c.Errorf("close: %v", err)
	}
}

// start runs f in a goroutine and returns where its error arrives. The check
// waits for f before it ends.
func (c *check) start(f func() error) <-chan error {
	done := make(chan struct{})
	result := make(chan error, 1)
	c.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		result <- f()
	}()
	return result
}

// blocked runs f, a call of method ("(*Endpoint).Recv"), in a goroutine and
// returns when that goroutine waits inside of the call, in addition to earlier ones.
func (c *check) blocked(method string, f func() error) <-chan error {
	c.Helper()
	result, blocks := c.tryBlocked(method, f)
	if !blocks {
		c.Fatalf("%s does not block", method)
	}
	return result
}

// tryBlocked is blocked for a call that may return at once: it reports whether
// it waits.
func (c *check) tryBlocked(method string, f func() error) (result <-chan error, blocks bool) {
	c.Helper()
	before := waitersIn(method)
	done := c.start(f)
	for until := time.Now().Add(patience); waitersIn(method) <= before; runtime.Gosched() {
		if len(done) > 0 || time.Now().After(until) {
			return done, false
		}
	}
	return done, true
}

// waitersIn returns how many goroutines wait for something inside of package
// fabric's method.
func waitersIn(method string) (n int) {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for g := range bytes.SplitSeq(buf, []byte("\n\n")) {
		head, stack, _ := strings.Cut(string(g), "\n")
		if !strings.Contains(stack, "/fabric."+method+"(") {
			continue
		}
		_, state, _ := strings.Cut(head, "[")
		for _, wait := range []string{"select", "chan receive", "sync.Cond.Wait", "IO wait"} {
			if strings.HasPrefix(state, wait) {
				n++
				break
			}
		}
	}
	return n
}

// await waits until all of events hold at e.
func (c *check) await(e end, events fabric.Events) {
	c.Helper()
	items := []fabric.PollItem{{Endpoint: e.Endpoint, Events: events}}
	if _, err := e.app.Poll(c.ctx, items); err != nil {
		c.Fatalf("poll for %#x: %v", events, err)
	}
	if items[0].Revents&events != events {
		c.Fatalf("poll for %#x: revents %#x", events, items[0].Revents)
	}
}

// revents returns the events that poll reports for e now.
func (c *check) revents(e end, events fabric.Events) fabric.Events {
	c.Helper()
	done, cancel := context.WithCancel(c.ctx)
	cancel()
	items := []fabric.PollItem{{Endpoint: e.Endpoint, Events: events}}
	n, err := e.app.Poll(done, items)
	got := items[0].Revents
	if (got != 0) != (n == 1) || (got == 0) != errors.Is(err, context.Canceled) {
		c.Errorf("poll returned %d, %v with revents %#x", n, err, got)
	}
	return got
}

// want checks that err is errno; 0 is success.
func (c *check) want(err error, errno syscall.Errno) {
	c.Helper()
	switch {
	case errno == anyError && err != nil && c.ctx.Err() == nil:
	case errno == 0 && err != nil:
		c.Errorf("got %v, want success", err)
	case errno != 0 && err == nil:
		c.Errorf("got success, want %s", errnoName(errno))
	case errno != 0 && !errors.Is(err, errno):
		c.Errorf("got %v, want %s", err, errnoName(errno))
	}
}

// is checks a result.
func is[T comparable](c *check, what string, got, want T) {
	c.Helper()
	if got != want {
		c.Errorf("%s: %v (%#[2]v), want %v (%#[3]v)", what, got, want)
	}
}

// errOf returns the error of a call with one other result.
func errOf[T any](_ T, err error) error { return err }

// must ends the row if a preparing step fails.
func (c *check) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *check) send(e end, s string) {
	c.Helper()
	if n, err := e.Send(c.ctx, []byte(s)); n != len(s) || err != nil {
		c.Fatalf("send %d bytes: %d, %v", len(s), n, err)
	}
}

func (c *check) recv(e end, want string) {
	c.Helper()
	p := make([]byte, len(want))
	if n, err := e.Recv(c.ctx, p); err != nil || string(p) != want {
		c.Fatalf("recv: %.40q, %v, want %.40q", p[:n], err, want)
	}
}

// fill sends bytes until there is no room, and returns how many that were.
func (c *check) fill(e end) int {
	c.Helper()
	const bound = 64 << 20
	sent := 0
	for p := make([]byte, 16<<10); sent <= bound; {
		n, err := e.TrySend(p)
		if err != nil {
			c.Fatalf("send after %d bytes: %v", sent, err)
		}
		sent += n
		if n == 0 && !c.room(e) {
			return sent
		}
	}
	c.Fatalf("%d bytes are on their way to a peer that does not receive", sent)
	return 0
}

// room reports whether e can send before long. It waits in many steps: when
// the machine stands still, one of them passes and not all.
func (c *check) room(e end) bool {
	const steps = 10
	for range steps {
		ctx, cancel := context.WithTimeout(c.ctx, c.settles/steps)
		_, err := e.app.Poll(ctx, []fabric.PollItem{{Endpoint: e.Endpoint, Events: fabric.PollOut}})
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// A window is a registered range and its memory.
type window struct {
	off int64
	mem []byte
}

func (c *check) alloc(app *fabric.Node, pages int) []byte {
	c.Helper()
	mem, err := app.Alloc(pages * page)
	c.must(err)
	c.Cleanup(func() { mem.Close() })
	return mem.Bytes()
}

// register registers memory.
func (c *check) register(e end, mem []byte, off int64, prot fabric.Prot, flags fabric.MapFlags) int64 {
	c.Helper()
	off, err := e.Register(mem, off, prot, flags)
	c.must(err)
	return off
}

// window registers new memory at an offset that the endpoint chooses.
func (c *check) window(e end, pages int, prot fabric.Prot) window {
	c.Helper()
	mem := c.alloc(e.app, pages)
	return window{c.register(e, mem, 0, prot, 0), mem}
}

// windowAt registers new memory at off.
func (c *check) windowAt(e end, pages int, off int64, prot fabric.Prot) window {
	c.Helper()
	mem := c.alloc(e.app, pages)
	if got := c.register(e, mem, off, prot, fixed); got != off {
		c.Fatalf("fixed register at %#x returned %#x", off, got)
	}
	return window{off, mem}
}

// mark marks everything that by has begun.
func (c *check) mark(e end, by fabric.Side) fabric.Mark {
	c.Helper()
	m, err := e.FenceMark(by)
	c.must(err)
	return m
}

// fence waits until everything that by has begun is complete.
func (c *check) fence(e end, by fabric.Side) {
	c.Helper()
	c.must(e.FenceWait(c.ctx, c.mark(e, by)))
}

// pull returns n bytes at off of the peer's windows, as a transfer finds them.
func (c *check) pull(e end, off int64, n int) []byte {
	c.Helper()
	p := make([]byte, n)
	c.must(e.VReadFrom(p, off, fabric.Sync))
	return p
}

// same checks that a transfer brought want to got.
func (c *check) same(got, want []byte) {
	c.Helper()
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		c.Errorf("the bytes differ from byte %d of %d on", at, len(want))
	}
}

// pattern returns n bytes that depend on n and seed alone.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed, byte(n), byte(n >> 8), byte(n >> 16)}).Read(p)
	return p
}
