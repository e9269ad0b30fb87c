package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// limit bounds everything that should happen soon.
const limit = 20 * time.Second

// A service is a fake node behind a socket.
type service struct {
	node *fakeNode
	path string
	end  func() // ends the server
	stop func() // ends the server, waits for it and checks that nothing is left
}

func serve(t testing.TB, edit func(*server.Options)) *service {
	t.Helper()
	s := &service{node: newFakeNode(), path: filepath.Join(t.TempDir(), "s")}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	opt := server.Options{Log: zerolog.Nop(), NewSession: s.node.NewSession}
	if edit != nil {
		edit(&opt)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	server, err := server.NewServer(ctx, opt)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve = %v, want nil after its context ended", err)
			}
		case <-time.After(limit):
			buf := make([]byte, 1<<20)
			t.Errorf("Serve has not returned\n%s", buf[:runtime.Stack(buf, true)])
		}
		if a, b, c := s.node.held(); a != 0 || b != 0 || c != 0 {
			t.Errorf("%d sessions, %d ports, %d watchers are left after Serve", a, b, c)
		}
	})
	// The checks run in this order: leaks are looked for when all is closed.
	if _, ok := t.(*testing.T); ok { // a benchmark's parent waits at the same time
		t.Cleanup(func() { goleak.VerifyNone(t) })
	}
	t.Cleanup(s.stop)
	return s
}

func (s *service) dial(t testing.TB) attach.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := Dial(ctx, s.path)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, what string, err error, want status.Code) {
	t.Helper()
	if status.Of(err) != want {
		t.Errorf("%s = %v, want code %q", what, err, want)
	}
}

// An opener is an application's session, or the node's.
type opener[E any] interface{ Open() (E, error) }

type acceptor[E any] interface {
	Bind(addr.Port) (addr.Port, error)
	Listen(int, ...access.Subject) error
	Accept(context.Context) (E, addr.Addr, error)
	LocalAddr() addr.Addr
	RemoteAddr() addr.Addr
	Close() error
}

// connect returns the ends of a connection between two sessions. Its port is
// free again.
func connect[E acceptor[E]](t testing.TB, a attach.Session, b opener[E]) (attach.Endpoint, E) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l := must(b.Open())(t)
	port := must(l.Bind(0))(t)
	if err := l.Listen(1); err != nil {
		t.Fatal(err)
	}
	ep := must(a.Open())(t)
	result := make(chan error, 1)
	go func() { _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: port}); result <- err }()
	peer, from, err := l.Accept(ctx)
	if err != nil {
		t.Fatalf("Accept: %v", err)
	}
	if err := <-result; err != nil {
		t.Fatalf("Connect: %v", err)
	}
	if from != ep.LocalAddr() || peer.RemoteAddr() != from || ep.RemoteAddr() != peer.LocalAddr() {
		t.Errorf("Accept from %v; ends are %v→%v and %v→%v", from, ep.LocalAddr(), ep.RemoteAddr(), peer.LocalAddr(), peer.RemoteAddr())
	}
	check(t, "close of the listener", l.Close(), status.OK)
	return ep, peer
}

func TestSession(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	if got := c.Self(); got != s.node.self {
		t.Errorf("Self = %+v, want %+v", got, s.node.self)
	}
	ids, self, err := c.Nodes()
	if err != nil || self != 3 || !slices.Equal(ids, s.node.live) {
		t.Errorf("Nodes = %v, %v, %v, want %v, 3", ids, self, err, s.node.live)
	}
	ep := must(c.Open())(t)
	check(t, "Close", c.Close(), status.OK)
	check(t, "second Close", c.Close(), status.OK)
	select {
	case <-c.Done():
	default:
		t.Error("Done is open after Close")
	}
	_, err = c.Open()
	check(t, "Open after Close", err, status.BadFD)
	_, err = ep.Bind(0)
	check(t, "Bind after the session's Close", err, status.BadFD)
	check(t, "the endpoint's Close after the session's", ep.Close(), status.BadFD)
}

func TestEndpointStates(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	ctx := context.Background()
	ep := must(c.Open())(t)
	buf := make([]byte, 4)
	_, err := ep.Send(ctx, buf)
	check(t, "Send unbound", err, status.NotConn)
	_, err = ep.TryRecv(buf)
	check(t, "TryRecv unbound", err, status.NotConn)
	if n, err := ep.Send(ctx, nil); n != 0 || err != nil {
		t.Errorf("Send of nothing = %d, %v, want 0: before every other check", n, err)
	}
	check(t, "Listen unbound", ep.Listen(1), status.Invalid)
	check(t, "WriteTo unbound", ep.WriteTo(0, 1, 0, 0), status.NotConn)
	check(t, "VWriteTo unbound", ep.VWriteTo(buf, 0, 0), status.NotConn)
	_, err = ep.Register(make([]byte, 8192)[:1], 0, 0, 0)
	check(t, "Register of half a page", err, status.Invalid)
	if got := ep.Ready(); got != attach.PollErr {
		t.Errorf("Ready unbound = %#x, want PollErr", got)
	}
	if port := must(ep.Bind(2050))(t); port != 2050 || ep.LocalAddr() != (addr.Addr{Node: 3, Port: 2050}) {
		t.Errorf("bound to %d, LocalAddr %v", port, ep.LocalAddr())
	}
	_, err = ep.Bind(2051)
	check(t, "second Bind", err, status.Invalid)
	_, err = ep.Connect(ctx, addr.Addr{Node: 3, Port: 9})
	check(t, "Connect to nobody", err, status.Refused)
	auto := must(c.Open())(t)
	_, err = auto.Connect(ctx, addr.Addr{Node: 3, Port: 9})
	check(t, "Connect unbound to nobody", err, status.Refused)
	if got := auto.LocalAddr().Port; got != addr.FirstEphemeral {
		t.Errorf("port after a failed Connect = %d, want %d, which the endpoint keeps", got, addr.FirstEphemeral)
	}
	_, err = ep.Connect(ctx, addr.Addr{Node: 4, Port: 9})
	check(t, "Connect to no node", err, status.NoDevice)
	check(t, "Listen with backlog -1<<40", ep.Listen(-1<<40), status.Invalid)
	check(t, "Listen", ep.Listen(1<<40), status.OK)
	_, _, err = ep.TryAccept()
	check(t, "TryAccept of nothing", err, status.Again)
	check(t, "Close", ep.Close(), status.OK)
	check(t, "second Close", ep.Close(), status.BadFD)
	_, err = ep.Send(ctx, nil)
	check(t, "Send closed", err, status.BadFD)
	if got := ep.Ready(); got != attach.PollNval {
		t.Errorf("Ready closed = %#x, want PollNval", got)
	}
	if port, err := must(c.Open())(t).Bind(2050); port != 2050 || err != nil {
		t.Errorf("Bind to a port that was closed = %d, %v", port, err)
	}
}

// The bytes of both directions arrive complete and in order, for any sizes of writes and reads.
func TestStreamKeepsItsBytes(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const total = 3 << 20
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	send := func(ep attach.Endpoint, r *rand.Rand, sum chan<- [32]byte) {
		h := sha256.New()
		for left := total; left > 0; {
			p := make([]byte, min(1+r.IntN(100_000), left))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			var n int
			var err error
			if r.IntN(2) == 0 {
				n, err = ep.Send(ctx, p)
			} else if n, err = ep.TrySend(p); n == 0 {
				runtime.Gosched()
			}
			if err != nil {
				t.Errorf("send: %v", err)
				break
			}
			h.Write(p[:n])
			left -= n
		}
		sum <- [32]byte(h.Sum(nil))
	}
	recv := func(ep attach.Endpoint, r *rand.Rand, sum chan<- [32]byte) {
		h := sha256.New()
		for left := total; left > 0; {
			p := make([]byte, 1+r.IntN(100_000))
			n, err := ep.Recv(ctx, p[:min(len(p), left)])
			if err != nil || n == 0 {
				t.Errorf("Recv = %d, %v, want bytes", n, err)
				break
			}
			h.Write(p[:n])
			left -= n
		}
		sum <- [32]byte(h.Sum(nil))
	}
	var sums [4]chan [32]byte
	for i := range sums {
		sums[i] = make(chan [32]byte, 1)
	}
	go send(a, rand.New(rand.NewPCG(seed, 1)), sums[0])
	go recv(b, rand.New(rand.NewPCG(seed, 2)), sums[1])
	go send(b, rand.New(rand.NewPCG(seed, 3)), sums[2])
	go recv(a, rand.New(rand.NewPCG(seed, 4)), sums[3])
	if <-sums[0] != <-sums[1] || <-sums[2] != <-sums[3] {
		t.Error("the bytes that arrived are not the bytes that were sent")
	}
}

func TestCloseDeliversAndThenResets(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	want := bytes.Repeat([]byte("0123456789"), 10_000) // more than the node buffers
	if n, err := a.Send(ctx, want); n != len(want) || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
	check(t, "Close", a.Close(), status.OK) // no reader yet
	var got []byte
	buf := make([]byte, 3000)
	for {
		n, err := b.Recv(ctx, buf)
		got = append(got, buf[:n]...)
		if err != nil {
			check(t, "Recv after the last byte", err, status.Reset)
			if err != attach.ErrPeerClosed {
				t.Errorf("Recv after the last byte = %v, want %v", err, attach.ErrPeerClosed)
			}
			break
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes arrived, want all %d", len(got), len(want))
	}
	if ev := b.Ready(); ev != attach.PollHup {
		t.Errorf("Ready = %#x, want PollHup alone", ev)
	}
	for range 100 { // the peer's end reaches the data socket at once, its other direction soon
		if _, err := b.Send(ctx, buf); err != nil {
			check(t, "Send after the peer's close", err, status.Reset)
			break
		}
	}
	_, err := b.TryRecv(buf)
	check(t, "TryRecv after the peer's close", err, status.Reset)
	check(t, "WriteTo after the peer's close", b.WriteTo(0, 8, 0, 0), status.Reset)
	check(t, "Close", b.Close(), status.OK)
}

// TestNodeThatEndsDeliversWhatItHasAccepted ends the node while an application
// writes: each of its writes has arrived or has failed.
func TestNodeThatEndsDeliversWhatItHasAccepted(t *testing.T) {
	for range 50 {
		delivery, abort := context.WithCancel(context.Background())
		s := serve(t, func(o *server.Options) { o.Delivery = delivery })
		other := must(s.node.NewSession(attach.Credentials{}))(t)
		a, b := connect(t, s.dial(t), other)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		accepted, begun := make(chan int, 1), make(chan struct{})
		go func() {
			total := 0
			for n, err := 0, error(nil); err == nil; total += n {
				if n, err = a.Send(ctx, make([]byte, 100)); total == 0 {
					close(begun)
				}
			}
			accepted <- total
		}()
		go func() {
			<-begun
			s.end()
		}()
		got, buf := 0, make([]byte, 3000)
		for {
			n, err := b.Recv(ctx, buf)
			if got += n; err != nil {
				if !errors.Is(err, status.Reset) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "fabricd of node 3 stopped") {
					t.Errorf("Recv ends with %v, want that the node stopped", err)
				}
				break
			}
		}
		if want := <-accepted; got != want {
			t.Errorf("%d bytes arrived before the end, %d were accepted", got, want)
		}
		other.Close()
		s.stop()
		abort()
		cancel()
	}
}

func TestLossIsNotAClose(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err := a.Send(ctx, []byte("x")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if n, err := b.Recv(ctx, buf); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	removed := make(chan struct{})
	defer a.(*endpoint).c.Watch(func(attach.Event) { close(removed) })()
	s.node.lose()
	s.node.emit(attach.Event{Kind: attach.NodeRemoved})
	<-removed
	_, err := a.TryRecv(buf)
	check(t, "TryRecv after the removal", err, status.Reset)
	_, err = a.TrySend(buf)
	check(t, "TrySend after the removal", err, status.Reset)
	for _, ep := range []attach.Endpoint{a, b} {
		_, err := ep.Recv(ctx, buf)
		check(t, "Recv after the loss", err, status.Reset)
		if errors.Is(err, io.EOF) {
			t.Errorf("Recv after the loss = %v, which claims a close", err)
		}
	}
}

func TestBlockedCallsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(s *service, ep attach.Endpoint, sess attach.Session, cancel func())
		accept status.Code
		others status.Code
	}{
		"with their context": {func(_ *service, _ attach.Endpoint, _ attach.Session, cancel func()) { cancel() }, status.Canceled, status.Canceled},
		"with Close":         {func(_ *service, ep attach.Endpoint, _ attach.Session, _ func()) { ep.Close() }, status.Intr, status.Reset},
		"with their session": {func(_ *service, _ attach.Endpoint, sess attach.Session, _ func()) { sess.Close() }, status.Intr, status.Reset},
		"with the node":      {func(s *service, _ attach.Endpoint, _ attach.Session, _ func()) { s.stop() }, status.Reset, status.Reset},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil)
			sess := s.dial(t)
			a, _ := connect(t, sess, s.dial(t))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			lis := must(sess.Open())(t)
			port := must(lis.Bind(0))(t)
			lis.Listen(5)
			con := must(sess.Open())(t)
			quiet := must(sess.Open())(t) // without connections
			must(quiet.Bind(0))(t)
			quiet.Listen(1)
			if name == "with Close" {
				quiet = lis
			}

			type result struct {
				call string
				err  error
			}
			results := make(chan result, 8)
			run := func(call string, f func() error) { go func() { results <- result{call, f()} }() }
			run("Accept", func() error {
				_, _, err := quiet.Accept(ctx)
				return err
			})
			run("Recv", func() error { _, err := a.Recv(ctx, make([]byte, 1)); return err })
			run("Send", func() error { _, err := a.Send(ctx, make([]byte, 1<<20)); return err })
			run("FenceWait", func() error { return a.FenceWait(ctx, fence.Mark{Side: fence.InitSelf, Seq: 1}) })
			want := 4
			if name != "with Close" {
				want++
				run("Connect", func() error { _, err := con.Connect(ctx, addr.Addr{Node: 3, Port: port}); return err })
			}
			waitRequests(t, sess, want-2)
			eventually(t, "Send and Recv wait", func() bool {
				e := a.(*endpoint)
				return e.sending.taken() && e.receiving.taken()
			})
			c.end(s, a, sess, cancel)
			if name == "with Close" {
				lis.Close()
			}
			for range want {
				select {
				case r := <-results:
					code := c.others
					if r.call == "Accept" {
						code = c.accept
					}
					check(t, r.call, r.err, code)
				case <-time.After(limit):
					t.Fatal("a blocked call has not returned")
				}
			}
			if name == "with the node" {
				<-sess.Done()
				_, err := sess.Open()
				check(t, "Open after the node's end", err, status.NoDevice)
			}
		})
	}
}

// waitRequests waits until n requests of s are outstanding.
func waitRequests(t testing.TB, s attach.Session, n int) {
	t.Helper()
	eventually(t, "requests outstanding", func() bool {
		c := s.(*session)
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.calls) == n
	})
}

// eventually waits for an effect of other goroutines or processes, without a bound that a slow
// machine could reach.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

func TestDoneContextSucceedsWithoutWaiting(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if n, err := a.Send(ctx, []byte("hi")); n != 2 || err != nil {
		t.Errorf("Send that need not wait = %d, %v", n, err)
	}
	eventually(t, "bytes arrive", func() bool { return b.Ready()&attach.PollIn != 0 })
	buf := make([]byte, 8)
	if n, err := b.Recv(ctx, buf); n != 2 || err != nil {
		t.Errorf("Recv that need not wait = %d, %v", n, err)
	}
	_, err := b.Recv(ctx, buf)
	check(t, "Recv that must wait", err, status.Canceled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Recv = %v, want context.Canceled in its chain", err)
	}
}

func TestWindows(t *testing.T) {
	s := serve(t, nil)
	ca, cb := s.dial(t), s.dial(t)
	a, b := connect(t, ca, cb)
	ma, mb := must(ca.Alloc(8192))(t), must(cb.Alloc(3<<20))(t)
	const rw = rma.ProtRead | rma.ProtWrite
	offA := must(a.Register(ma.Bytes(), 0, rw, 0))(t)
	offB := must(b.Register(mb.Bytes(), 0, rw, 0))(t)
	if offA != rma.FirstOffset || offB != offA {
		t.Errorf("offsets %#x and %#x, want both %#x", offA, offB, rma.FirstOffset)
	}
	copy(ma.Bytes(), "written by a")
	check(t, "WriteTo", a.WriteTo(offA, 12, offB+100, rma.Sync), status.OK)
	if got := string(mb.Bytes()[100:112]); got != "written by a" {
		t.Errorf("b's memory has %q", got)
	}
	check(t, "ReadFrom", a.ReadFrom(offA+4096, 12, offB+100, rma.Sync), status.OK)
	if got := string(ma.Bytes()[4096 : 4096+12]); got != "written by a" {
		t.Errorf("a's memory has %q", got)
	}

	// More than the bounce memory's pieces, from private and from window memory.
	big := make([]byte, 2<<20+777)
	for i := range big {
		big[i] = byte(i * 7)
	}
	check(t, "VWriteTo", a.VWriteTo(big, offB+1, 0), status.OK)
	if !bytes.Equal(mb.Bytes()[1:1+len(big)], big) {
		t.Error("VWriteTo from private memory: other bytes arrived")
	}
	back := make([]byte, len(big))
	check(t, "VReadFrom", a.VReadFrom(back, offB+1, 0), status.OK)
	if !bytes.Equal(back, big) {
		t.Error("VReadFrom to private memory: other bytes arrived")
	}
	check(t, "VReadFrom to window memory", a.VReadFrom(ma.Bytes()[10:20], offB+1, 0), status.OK)
	if !bytes.Equal(ma.Bytes()[10:20], big[:10]) {
		t.Error("VReadFrom to window memory: other bytes arrived")
	}
	check(t, "VWriteTo outside", a.VWriteTo(big, offB+3<<20, 0), status.NoAddress)
	check(t, "VWriteTo of nothing", a.VWriteTo(nil, offB, 0), status.Invalid)

	old, err := a.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: offB + 3<<20 - 8, Operand: 5})
	if old != 0 || err != nil || mb.Bytes()[3<<20-8] != 5 {
		t.Errorf("Atomic = %d, %v, memory %d, want 0, then 5", old, err, mb.Bytes()[3<<20-8])
	}
	mark := must(a.FenceMark(fence.InitSelf))(t)
	if mark != (fence.Mark{Side: fence.InitSelf, Seq: 42}) {
		t.Errorf("mark %+v", mark)
	}
	check(t, "FenceWait", a.FenceWait(context.Background(), mark), status.OK)
	sig := fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal | fence.SignalRemote, LocalOffset: offA, LocalValue: 1, RemoteOffset: offB, RemoteValue: 2}
	check(t, "FenceSignal", a.FenceSignal(sig), status.OK)
	if ma.Bytes()[0] != 1 || mb.Bytes()[0] != 2 {
		t.Errorf("signals stored %d and %d, want 1 and 2", ma.Bytes()[0], mb.Bytes()[0])
	}

	m, err := a.Mmap(offB+4096, 4096, rw)
	if err != nil {
		t.Fatalf("Mmap: %v", err)
	}
	m.Bytes()[9] = 99
	if mb.Bytes()[4096+9] != 99 {
		t.Error("the mapping is other memory than the window")
	}
	check(t, "Unregister", b.Unregister(offB, 3<<20), status.OK)
	check(t, "WriteTo after Unregister", a.WriteTo(offA, 8, offB, 0), status.NoAddress)
	check(t, "Memory.Close", mb.Close(), status.OK)
	check(t, "Close", a.Close(), status.OK)
	if m.Bytes()[9] != 99 {
		t.Error("the mapping did not survive")
	}
	check(t, "Mapping.Close", m.Close(), status.OK)
	check(t, "second Mapping.Close", m.Close(), status.BadFD)
	_, err = b.Register(make([]byte, 1), 0, rw, 0)
	check(t, "Register of no page", err, status.Invalid)
	check(t, "Memory.Close", ma.Close(), status.OK)
}

func TestRegisterTakesOnlyMemoryOfTheSession(t *testing.T) {
	s := serve(t, nil)
	ca, cb := s.dial(t), s.dial(t)
	a, _ := connect(t, ca, cb)
	foreign := must(cb.Alloc(4096))(t)
	_, err := a.Register(foreign.Bytes(), 0, rma.ProtRead, 0)
	check(t, "Register of another session's memory", err, status.Fault)
	check(t, "Close", foreign.Close(), status.OK)
	check(t, "second Close", foreign.Close(), status.BadFD)
}

func TestReadOnlyMappingCannotWrite(t *testing.T) {
	s := serve(t, nil)
	ca, cb := s.dial(t), s.dial(t)
	a, b := connect(t, ca, cb)
	mem := must(cb.Alloc(4096))(t)
	defer mem.Close()
	off := must(b.Register(mem.Bytes(), 0, rma.ProtRead, 0))(t)
	_, err := a.Mmap(off, 4096, rma.ProtWrite)
	check(t, "Mmap for writing", err, status.Access)
	m := must(a.Mmap(off, 4096, rma.ProtRead))(t)
	defer m.Close()
	region := m.(*mapping).region
	check(t, "a store into it", region.WriteAt([]byte{1}, 0), status.Fault)
	mem.Bytes()[3] = 8
	if m.Bytes()[3] != 8 {
		t.Error("the mapping is other memory than the window")
	}
}

func TestReadinessIsNotified(t *testing.T) {
	s := serve(t, nil)
	ca, cb := s.dial(t), s.dial(t)
	wait := func(ep attach.Endpoint, ch chan struct{}, want attach.Events) {
		t.Helper()
		for ep.Ready() != want {
			select {
			case <-ch:
			case <-time.After(limit):
				t.Fatalf("Ready = %#x and no notification, want %#x", ep.Ready(), want)
			}
		}
	}
	lch, cch, ach := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	l := must(cb.Open())(t)
	port := must(l.Bind(0))(t)
	check(t, "Listen", l.Listen(2), status.OK)
	defer l.Notify(lch)()
	wait(l, lch, 0)
	c := must(ca.Open())(t)
	defer c.Notify(cch)()
	dst := addr.Addr{Node: 3, Port: port}
	_, err := c.TryConnect(dst)
	check(t, "TryConnect", err, status.InProgress)
	_, err = c.TryConnect(dst)
	check(t, "TryConnect again", err, status.InProgress)
	wait(l, lch, attach.PollIn)
	a, _, err := l.TryAccept()
	if err != nil {
		t.Fatalf("TryAccept with PollIn: %v", err)
	}
	stop := a.Notify(ach)
	defer stop()
	wait(l, lch, 0)
	wait(c, cch, attach.PollOut)
	if p, err := c.TryConnect(dst); err != nil || p != c.LocalAddr().Port {
		t.Fatalf("TryConnect when done = %d, %v", p, err)
	}
	wait(c, cch, attach.PollOut)
	if _, err := c.TrySend([]byte("x")); err != nil {
		t.Fatal(err)
	}
	wait(a, ach, attach.PollIn|attach.PollOut)
	if n, err := a.TryRecv(make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("TryRecv with PollIn = %d, %v", n, err)
	}
	wait(a, ach, attach.PollOut)
	check(t, "Close", c.Close(), status.OK)
	wait(a, ach, attach.PollHup)
}

func TestEventsAreDeliveredInOrder(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	const n = 200
	got := make(chan attach.Event, n+1)
	cancel := c.Watch(func(ev attach.Event) { got <- ev })
	var self func()
	once := make(chan struct{})
	set := make(chan struct{})
	self = c.Watch(func(attach.Event) { <-set; self(); close(once) }) // must not wait for itself, and run once
	close(set)
	for i := range n {
		s.node.emit(attach.Event{Kind: attach.NodeAdded, Incarnation: addr.Incarnation{Node: 17, Generation: addr.Generation(i)}, Name: "n", Reason: "r"})
	}
	for i := range n {
		select {
		case ev := <-got:
			if ev != (attach.Event{Kind: attach.NodeAdded, Incarnation: addr.Incarnation{Node: 17, Generation: addr.Generation(i)}, Name: "n", Reason: "r"}) {
				t.Fatalf("event %d is %+v", i, ev)
			}
		case <-time.After(limit):
			t.Fatalf("event %d does not come", i)
		}
	}
	<-once
	cancel()
	s.node.emit(attach.Event{Kind: attach.NodeRemoved})
	s.node.mu.Lock()
	s.node.self.Incarnation.Generation++
	s.node.mu.Unlock()
	if g := c.Self().Incarnation.Generation; g != 8 {
		t.Errorf("Self has generation %d, want 8", g)
	}
	c.Close()
	if len(got) != 0 {
		t.Error("an event came after cancel")
	}
}

func TestCloseInsideAWatcher(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	c.Watch(func(attach.Event) { c.Close() })
	s.node.emit(attach.Event{Kind: attach.NodeRemoved})
	select {
	case <-c.Done():
	case <-time.After(limit):
		t.Fatal("Close waits for the function that calls it")
	}
}

func TestDialErrors(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	_, err := Dial(ctx, filepath.Join(dir, "nobody"))
	check(t, "Dial without a socket", err, status.NoDevice)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Dial = %v, want the cause in its chain", err)
	}
	path := filepath.Join(dir, "mute")
	ln := must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))(t)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, path)
	check(t, "Dial of a node that does not answer", err, status.TimedOut)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, err = Dial(context.Background(), path)
	check(t, "Dial of a node that hangs up", err, status.Reset)
}

func TestRefusals(t *testing.T) {
	s := serve(t, func(o *server.Options) {
		o.Authorize = func(c attach.Credentials) (attach.Credentials, error) {
			if c.UID != uint32(os.Getuid()) || c.PID != int32(os.Getpid()) {
				return c, errors.New("these are not the caller's credentials")
			}
			return c, errors.New("not you")
		}
	})
	_, err := Dial(context.Background(), s.path)
	check(t, "Dial", err, status.Access)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("not you")) {
		t.Errorf("Dial = %v, want the reason", err)
	}
	s.stop()
	s = serve(t, func(o *server.Options) {
		o.NewSession = func(attach.Credentials) (attach.NodeSession, error) { return nil, io.ErrUnexpectedEOF }
	})
	_, err = Dial(context.Background(), s.path)
	check(t, "Dial of a node without sessions", err, status.NoDevice)
}

func TestPrivilegeIsTheNodesToJudge(t *testing.T) {
	s := serve(t, func(o *server.Options) {
		o.Authorize = func(c attach.Credentials) (attach.Credentials, error) { c.Admin = false; return c, nil }
	})
	ep := must(s.dial(t).Open())(t)
	_, err := ep.Bind(80)
	check(t, "Bind(80) without privilege", err, status.Access)
}

func TestLimits(t *testing.T) {
	s := serve(t, func(o *server.Options) {
		o.Session = server.Limits{Endpoints: 4, Windows: 2, WindowBytes: 4 * 4096}
		o.User = server.Limits{Sessions: 3, Endpoints: 6, Windows: 8, WindowBytes: 6 * 4096}
	})
	ca, cb := s.dial(t), s.dial(t)
	a, b := connect(t, ca, cb)
	for range 3 {
		must(ca.Open())(t)
	}
	_, err := ca.Open()
	check(t, "a fifth endpoint of a session", err, status.NoMemory)
	must(cb.Open())(t)
	_, err = cb.Open()
	check(t, "a seventh endpoint of a user", err, status.NoMemory)

	mem := must(ca.Alloc(2 * 4096))(t)
	o1 := must(a.Register(mem.Bytes(), 0, rma.ProtRead, 0))(t)
	must(a.Register(mem.Bytes(), 0, rma.ProtRead, 0))(t)
	_, err = a.Register(mem.Bytes(), 0, rma.ProtRead, 0)
	check(t, "a third window", err, status.NoMemory)
	check(t, "Unregister", a.Unregister(o1, 2*4096), status.OK)
	must(a.Register(mem.Bytes(), 0, rma.ProtRead, 0))(t)
	big := must(ca.Alloc(3 * 4096))(t)
	_, err = a.Register(big.Bytes(), 0, rma.ProtRead, 0)
	check(t, "bytes over the session's limit", err, status.NoMemory)
	other := must(cb.Alloc(4 * 4096))(t)
	must(b.Register(other.Bytes(), 0, rma.ProtRead, 0))(t)
	for _, m := range []attach.Memory{mem, big, other} {
		check(t, "Memory.Close", m.Close(), status.OK)
	}

	cc := s.dial(t)
	_, err = Dial(context.Background(), s.path)
	check(t, "a fourth session", err, status.NoMemory)
	cc.Close()
	eventually(t, "the session's place is free", func() bool {
		c, err := Dial(context.Background(), s.path)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}
