package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests, which are over real sockets.
const patience = 30 * time.Second

// A world is two nodes with gateways at each.
type world struct {
	t       *testing.T
	cluster *fabrictest.Cluster
	at      [2]*Gateways
}

func newWorld(t *testing.T, opts ...fabrictest.Option) *world {
	w := &world{t: t, cluster: fabrictest.NewCluster(t, 2, opts...)}
	for i := range w.at {
		w.at[i] = New(func(context.Context) (*fabric.Node, error) { return w.cluster.App(i, true), nil }, zerolog.Nop())
		t.Cleanup(w.at[i].Close)
	}
	return w
}

// run runs a gateway until the test ends, or stop, and returns where it listens.
func (w *world) run(node int, kind spec.Kind, line string) (at string, events <-chan spec.Event, stop func()) {
	w.t.Helper()
	g, err := spec.Parse(kind, line)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	all, over := make(chan spec.Event, 8192), make(chan error, 1)
	go func() {
		err := w.at[node].Run(ctx, g, func(ev spec.Event) { all <- ev })
		close(all)
		over <- err
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			w.t.Errorf("%s %s: %v", kind, line, err)
		}
	})
	w.t.Cleanup(stop)
	return await(w.t, all, spec.Started).At, all, stop
}

// await returns the next event of a kind.
func await(t *testing.T, events <-chan spec.Event, kind string) spec.Event {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				t.Fatalf("the events end without %s", kind)
			}
			if ev.Event == kind {
				return ev
			}
		case <-limit:
			t.Fatalf("no event %s", kind)
		}
	}
}

// serve runs handle for each connection to an address of its own, which it returns.
func serve(t *testing.T, network string, handle func(conn)) string {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer context.AfterFunc(ctx, func() { c.Close() })()
				client, err := asConn(c)
				if err != nil {
					return
				}
				defer finish(client)
				handle(client)
			})
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); all.Wait() })
	return l.Addr().String()
}

// dial connects to an address, with a limit for what is done with the connection.
func dial(t *testing.T, address string) conn {
	t.Helper()
	c, err := net.Dial(spec.Network(address), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	client, err := asConn(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// echoAll answers everything with itself, when the end has come.
func echoAll(c conn) {
	text, err := io.ReadAll(c)
	if err != nil {
		return
	}
	c.Write(text)
	c.CloseWrite()
}

// chain leads from an address at node 0 to a server beyond node 1.
func (w *world) chain(handle func(conn), exposeOptions, forwardOptions string) (at string, exposed, forwarded <-chan spec.Event) {
	target := serve(w.t, "tcp", handle)
	_, exposed, _ = w.run(1, spec.Expose, "2050="+target+exposeOptions)
	at, forwarded, _ = w.run(0, spec.Forward, "127.0.0.1:0=1:2050"+forwardOptions)
	return at, exposed, forwarded
}

// TestHalfCloseIsKept: the server hears the end of what the client writes, and answers
// behind it.
func TestHalfCloseIsKept(t *testing.T) {
	for _, opts := range [][]fabrictest.Option{nil, {fabrictest.TCP(), fabrictest.Paths()}} {
		w := newWorld(t, opts...)
		at, exposed, forwarded := w.chain(echoAll, "", "")
		text := bytes.Repeat([]byte("all of it "), 1<<20)
		c := dial(t, at)
		go func() {
			c.Write(text)
			c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, text) {
			t.Fatalf("got %d bytes, %v; want %d", len(got), err, len(text))
		}
		for _, events := range []<-chan spec.Event{exposed, forwarded} {
			opened, closed := await(t, events, spec.Opened), await(t, events, spec.Closed)
			if closed.Detail != "" || closed.Conn.Sent != int64(len(text)) || closed.Conn.Back != int64(len(text)) {
				t.Errorf("closed: %+v %+v", closed, closed.Conn)
			}
			if opened.Conn.Node == "" || opened.Conn.Client == "" {
				t.Errorf("opened without both ends: %+v", opened.Conn)
			}
		}
	}
}

// TestAPeerThatHasClosedNeedsNoEnd: what a client still reads of it is not to be cut off. A
// peer that was lost is no such peer.
func TestAPeerThatHasClosedNeedsNoEnd(t *testing.T) {
	c := fabrictest.NewCluster(t, 2)
	l, err := c.App(1, true).Listen(2050)
	if err != nil {
		t.Fatal(err)
	}
	near := c.App(0, true)
	for _, lost := range []bool{false, true} {
		accepted := make(chan *fabric.Conn, 1)
		go func() {
			far, _ := l.AcceptConn(t.Context()) // nil: Dial fails too
			accepted <- far
		}()
		conn, err := near.Dial(t.Context(), "1:2050")
		if err != nil {
			t.Fatal(err)
		}
		far := <-accepted
		if lost {
			c.Kill(1)
		} else if err := far.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); (err == io.EOF) == lost {
			t.Fatalf("lost %v: read: %v", lost, err)
		}
		if err := EndWrite(conn); (err != nil) != lost {
			t.Errorf("lost %v: EndWrite: %v", lost, err)
		}
		conn.Close()
	}
}

// TestOverUnixSockets: both ends of a chain may be.
func TestOverUnixSockets(t *testing.T) {
	w := newWorld(t)
	target, at := serve(t, "unix", echoAll), filepath.Join(t.TempDir(), "f")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"}) // as a process leaves it that is killed
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	w.run(1, spec.Expose, "2050="+target)
	w.run(0, spec.Forward, at+"=1:2050")
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestASocketFileIsMadeWithItsMode, and leaves those alone to which its name leads.
func TestASocketFileIsMadeWithItsMode(t *testing.T) {
	dir := t.TempDir()
	at, other := filepath.Join(dir, "s"), filepath.Join(dir, "other")
	l, err := listenAt(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(at)
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("made %v, %v", info.Mode(), err)
	}
	if l, err := listenAt(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("what is served is replaced: %v, %v", l, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil { // as another fabricd that replaces it
		t.Fatal(err)
	}
	if l, err := listenAt(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("two replace it at a time: %v, %v", l, err)
	}
	held.Close()
	if err := os.Rename(at, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, at); err != nil {
		t.Fatal(err)
	}
	if l, err := listenAt(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a link to a socket is replaced: %v, %v", l, err)
	}
	if info, err := os.Lstat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what it leads to: %v, %v", info.Mode(), err)
	}
	mask := syscall.Umask(0o077)
	syscall.Umask(mask)
	if mask == 0o111 {
		t.Error("the umask of the process has changed")
	}
}

// reset reports whether a read ends with a reset, after what has come before it.
func reset(c conn) error {
	if n, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("read %d bytes, then %v; want a reset", n, err)
	}
	return nil
}

// dialReset reports whether a connection to an address is reset, at once or later.
func dialReset(t *testing.T, at string) error {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	return errors.Join(c.SetDeadline(time.Now().Add(patience)), reset(c.(*net.TCPConn)))
}

// TestAResetIsPassedOn to either side, and is no end.
func TestAResetIsPassedOn(t *testing.T) {
	w := newWorld(t)
	seen := make(chan error, 1)
	at, exposed, _ := w.chain(func(c conn) {
		word := make([]byte, 5)
		if _, err := io.ReadFull(c, word); err != nil {
			seen <- err
			return
		}
		if string(word) == "reset" {
			abort(errEnded, c)
			return
		}
		io.WriteString(c, "ready")
		seen <- reset(c)
	}, "", "")
	c := dial(t, at)
	io.WriteString(c, "reset")
	if err := reset(c); err != nil {
		t.Error("of the server:", err)
	}
	if ev := await(t, exposed, spec.Closed); !strings.HasPrefix(ev.Detail, "reset: ") {
		t.Errorf("%+v", ev)
	}
	c = dial(t, at)
	io.WriteString(c, "ready")
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	abort(errEnded, c)
	if err := <-seen; err != nil {
		t.Error("of the client:", err)
	}
}

// TestALostNodeIsAReset at the client, also in the middle of a download.
func TestALostNodeIsAReset(t *testing.T) {
	w := newWorld(t)
	at, _, _ := w.chain(func(c conn) {
		io.WriteString(c, "ready")
		io.Copy(io.Discard, c)
	}, "", "")
	c := dial(t, at)
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	w.cluster.Kill(1)
	if err := reset(c); err != nil {
		t.Error(err)
	}
}

// TestASlowReaderHoldsItsSenderOnly: another connection goes on, and nothing is lost.
func TestASlowReaderHoldsItsSenderOnly(t *testing.T) {
	w := newWorld(t)
	const size = 32 << 20
	at, _, _ := w.chain(func(c conn) {
		word := make([]byte, 4)
		if _, err := io.ReadFull(c, word); err != nil {
			return
		}
		n := int64(size)
		if string(word) == "word" {
			n = 4
		}
		io.CopyN(c, zeros{}, n)
		c.CloseWrite()
		io.Copy(io.Discard, c)
	}, "", "")
	slow := dial(t, at)
	io.WriteString(slow, "much")
	for range 5 {
		c := dial(t, at)
		io.WriteString(c, "word")
		c.CloseWrite()
		if got, err := io.ReadAll(c); len(got) != 4 || err != nil {
			t.Fatalf("beside a slow reader: %d bytes, %v", len(got), err)
		}
	}
	if got := w.at[0].List()[0].Back; got >= size {
		t.Errorf("%d bytes have passed to a client that does not read", got)
	}
	slow.CloseWrite()
	if n, err := io.Copy(io.Discard, slow); n != size || err != nil {
		t.Errorf("the slow reader got %d bytes, %v; want %d", n, err, size)
	}
}

// zeros is zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestARefusingTargetIsAResetAndOneLine at either side, which names the other one and the
// cause. The client's side learns no address of the server's.
func TestARefusingTargetIsAResetAndOneLine(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	w.at[0] = New(w.at[0].attach, zerolog.New(&log))
	t.Cleanup(w.at[0].Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	l.Close()
	_, exposed, _ := w.run(1, spec.Expose, "2050="+free)
	at, forwarded, stop := w.run(0, spec.Forward, "127.0.0.1:0=1:2050")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	const want = "node-1: the peer's application gave it up: target: connection refused"
	if ev := await(t, forwarded, spec.Closed); ev.Detail != "reset: "+want {
		t.Errorf("%+v", ev)
	}
	if s := w.at[0].List()[0]; s.Failure != want || s.Reset != 1 {
		t.Errorf("%+v", s)
	}
	stop()
	if text := log.String(); strings.Count(text, want) != 1 || !strings.Contains(text, `"level":"warn","op":"gateway","gateway":"forward 127.0.0.1:0=1:2050"`) {
		t.Errorf("the log:\n%s", text)
	}
	if ev := await(t, exposed, spec.Refused); !strings.Contains(ev.Detail, "target dial tcp "+free+": connect: connection refused") || strings.Contains(ev.Detail, "\n") {
		t.Errorf("%+v", ev)
	}
	if s := w.at[1].List()[0]; s.Refused != 1 || s.Total != 1 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestReasonsNameNoAddress of this machine.
func TestReasonsNameNoAddress(t *testing.T) {
	dialed := func(network, address string, limit time.Duration) error {
		c, err := net.DialTimeout(network, address, limit)
		if err == nil {
			c.Close()
		}
		return fmt.Errorf("target %w", err)
	}
	for want, err := range map[string]error{
		"target: no such file or directory": dialed("unix", "/no/such/socket", patience),
		"target: no answer in time":         dialed("tcp", "192.0.2.1:1", time.Nanosecond),
		"target: no such host":              fmt.Errorf("target %w", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "inner.example", Server: "192.0.2.1"}}),
		"read: connection reset by peer":    &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"the gateway has ended":             errEnded,
	} {
		if got := reason(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// TestAServiceThatComesBackIsReached: connections wait for it for as long as they are to,
// and the forward goes on.
func TestAServiceThatComesBackIsReached(t *testing.T) {
	w := newWorld(t)
	at, forwarded, _ := w.run(0, spec.Forward, "127.0.0.1:0=1:2050 wait 100ms")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	if ev := await(t, forwarded, spec.Refused); !strings.Contains(ev.Detail, "for 1:2050: connect") {
		t.Errorf("%+v", ev)
	}
	patient, _, _ := w.run(0, spec.Forward, "127.0.0.1:0=1:2050 wait 20s")
	c := dial(t, patient)
	target := serve(t, "tcp", echoAll)
	for range 2 {
		_, _, stop := w.run(1, spec.Expose, "2050="+target)
		io.WriteString(c, "hello")
		c.CloseWrite()
		if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		stop()
		c = dial(t, patient)
	}
}

// TestAGatewayComesBackWithItsNode: its node is lost, and has another life.
func TestAGatewayComesBackWithItsNode(t *testing.T) {
	w := newWorld(t)
	at, exposed, _ := w.chain(echoAll, "", " wait 20s")
	w.cluster.Kill(1)
	await(t, exposed, spec.Waiting)
	w.cluster.Restart(1)
	await(t, exposed, spec.Started)
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestPlacesAreBounded: connections beyond them are reset at once, and counted.
func TestPlacesAreBounded(t *testing.T) {
	w := newWorld(t)
	at, forwarded, _ := func() (string, <-chan spec.Event, <-chan spec.Event) {
		a, e, f := w.chain(echoAll, "", " max 2")
		return a, f, e
	}()
	var open []conn
	for range 2 {
		open = append(open, dial(t, at))
		await(t, forwarded, spec.Opened)
	}
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	if ev := await(t, forwarded, spec.Refused); !strings.Contains(ev.Detail, "all of its 2 connections") {
		t.Errorf("%+v", ev)
	}
	open[0].CloseWrite()
	await(t, forwarded, spec.Closed)
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestNoMemberTakesAllPlaces of an expose.
func TestNoMemberTakesAllPlaces(t *testing.T) {
	w := &world{t: t, cluster: fabrictest.NewCluster(t, 3)}
	w.at[1] = New(func(context.Context) (*fabric.Node, error) { return w.cluster.App(1, true), nil }, zerolog.Nop())
	t.Cleanup(w.at[1].Close)
	target := serve(t, "tcp", func(c conn) { io.Copy(c, c) })
	_, exposed, _ := w.run(1, spec.Expose, "2050="+target+" max 8")
	say := func(node int) error {
		c, err := w.cluster.App(node, true).Dial(t.Context(), "1:2050")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte("x")) // the read tells what became of it
		_, err = c.Read(make([]byte, 1))
		return err
	}
	for i := range 10 {
		err := say(0)
		if (err == nil) != (i < 6) {
			t.Fatalf("connection %d of the hostile member: %v", i+1, err)
		}
		if err == nil {
			continue
		}
		const want = "node-0 has its share of connections, 6 of 8"
		if lost, ok := errors.AsType[*fabric.LostError](err); !ok || !strings.HasSuffix(lost.Text, want) {
			t.Errorf("it is told %v", err)
		}
		if ev := await(t, exposed, spec.Refused); ev.Detail != want {
			t.Errorf("%+v", ev)
		}
	}
	if err := say(2); err != nil {
		t.Errorf("another member: %v", err)
	}
}

// TestWaitingClientsLeavePlaces to those of a name that is served.
func TestWaitingClientsLeavePlaces(t *testing.T) {
	w := newWorld(t)
	target := serve(t, "tcp", echoAll)
	w.run(1, spec.Expose, "2050="+target)
	at, events, _ := w.run(0, spec.HTTPProxy, "0 max 4 wait 10m")
	ask := func(name string) conn {
		c := dial(t, at)
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\n\r\n", name)
		return c
	}
	for range 3 {
		ask("1.fabric:2051")
	}
	if ev := await(t, events, spec.Refused); !strings.HasPrefix(ev.Detail, "2 connections wait already: ") {
		t.Errorf("%+v", ev)
	}
	answer := make([]byte, 12)
	if _, err := io.ReadFull(ask("1.fabric:2050"), answer); string(answer) != "HTTP/1.1 200" {
		t.Errorf("another name: %q, %v", answer, err)
	}
}

// A slow is a connection that takes so many bytes a second.
type slow struct {
	conn
	rate  int
	ended chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	select {
	case <-time.After(time.Duration(len(p)) * time.Second / time.Duration(s.rate)):
		return len(p), nil
	case <-s.ended:
		return 0, net.ErrClosed
	}
}
func (s *slow) Close() error         { close(s.ended); return nil }
func (*slow) CloseWrite() error      { return nil }
func (*slow) SetLinger(int) error    { return nil }
func (s *slow) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// A source is a connection that has sent so many bytes, and its end.
type source struct {
	slow
	left int
}

func (s *source) Read(p []byte) (int, error) {
	n := min(len(p), s.left)
	if s.left -= n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestASlowWriteIsNotIdle: its bytes count as they go.
func TestASlowWriteIsNotIdle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			rate int
			want string
		}{{32 << 10, ""}, {4 << 10, "no byte for 1s"}} {
			const size = 1 << 20
			client := &source{slow{ended: make(chan struct{})}, size}
			server := &source{slow{rate: c.rate, ended: make(chan struct{})}, 0}
			carried := &carrier{ends: ends{client, server}, idle: time.Second}
			err := carried.run()
			if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
				t.Errorf("%d bytes a second: %v, want %q", c.rate, err, c.want)
			}
			if n := carried.sent.Load(); (n == size) != (err == nil) {
				t.Errorf("%d bytes a second: %d were sent, %v", c.rate, n, err)
			}
		}
	})
}

// TestAnIdleConnectionIsReset, and one that is in use is not.
func TestAnIdleConnectionIsReset(t *testing.T) {
	w := newWorld(t)
	at, _, forwarded := w.chain(func(c conn) { io.Copy(c, c) }, "", " idle 1s")
	idle, busy := dial(t, at), dial(t, at)
	over := make(chan error, 1)
	go func() { over <- reset(idle) }()
	for waits := true; waits; {
		select {
		case err := <-over:
			if err != nil {
				t.Error(err)
			}
			waits = false
		case <-time.After(100 * time.Millisecond):
			io.WriteString(busy, "x")
			if _, err := io.ReadFull(busy, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ev := await(t, forwarded, spec.Closed); ev.Detail != "reset: no byte for 1s" {
		t.Errorf("%+v", ev)
	}
}

// TestWhatCannotStartSaysWhy in one line.
func TestWhatCannotStartSaysWhy(t *testing.T) {
	w := newWorld(t)
	target := serve(t, "tcp", echoAll)
	_, _, _ = w.run(1, spec.Expose, "2050="+target)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := w.cluster.App(1, true).Listen(2060)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, c := range []struct {
		kind       spec.Kind
		line, want string
	}{
		{spec.Expose, "2050=localhost:1", "2050 is taken on this node: by expose 2050=" + target},
		{spec.Expose, "2060=localhost:1", "the port is taken on this node"},
		{spec.Forward, target + "=0:1", "address already in use"},
		{spec.Forward, path + "=0:1", "address already in use"},
		{spec.Forward, target + "=1:2050", "would come back to it"},
		{spec.Forward, target + "=node-1:2050", "would come back to it"},
	} {
		g, err := spec.Parse(c.kind, c.line)
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		err = w.at[1].Run(context.Background(), g, func(spec.Event) {})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: %v; want %q", c.kind, c.line, err, c.want)
		}
	}
	if n := len(w.at[1].List()); n != 1 {
		t.Errorf("%d gateways are left, want 1", n)
	}
}

// TestSetTouchesOnlyWhatHasChanged.
func TestSetTouchesOnlyWhatHasChanged(t *testing.T) {
	w := newWorld(t)
	target := serve(t, "tcp", func(c conn) { io.Copy(c, c) })
	var all []spec.Gateway
	for _, port := range []string{"2051", "2052", "2053"} {
		g, err := spec.Parse(spec.Expose, port+"="+target)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	say := func(port fabric.Port, c *fabric.Conn) *fabric.Conn {
		t.Helper()
		var err error
		for limit := time.Now().Add(patience); c == nil; {
			if c, err = w.cluster.Node(0).DialAddr(t.Context(), fabric.Addr{Node: 1, Port: port}); err != nil && time.Now().After(limit) {
				t.Fatal(err)
			}
		}
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	w.at[1].Set(all[:2])
	first, second := say(2051, nil), say(2052, nil)
	w.at[1].Set(all[1:])
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of what is gone: %v", err)
	}
	say(2052, second)
	say(2053, nil)
	if _, err := w.cluster.Node(0).DialAddr(t.Context(), fabric.Addr{Node: 1, Port: 2051}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial what is gone: %v", err)
	}
	for _, s := range w.at[1].List() {
		if s.Source != spec.SourceConfig || s.State != spec.Listening || s.At == "" {
			t.Errorf("%+v", s)
		}
	}
}

// TestARingThatAReloadMakesDoesNotRun: a line of the configuration waits, and says why, while
// a command leads its connections back to it.
func TestARingThatAReloadMakesDoesNotRun(t *testing.T) {
	w := newWorld(t)
	at, _, stop := w.run(1, spec.Forward, "127.0.0.1:0=node-1:2050")
	stop()
	_, _, stop = w.run(1, spec.Forward, at+"=node-1:2050")
	line, err := spec.Parse(spec.Expose, "2050="+at)
	if err != nil {
		t.Fatal(err)
	}
	state := func(want string) spec.Status {
		t.Helper()
		for limit, ticks := time.Now().Add(patience), time.Tick(10*time.Millisecond); ; <-ticks {
			all := w.at[1].List()
			if s := all[len(all)-1]; s.State == want && (s.Detail != "") == (want == spec.Waiting) {
				return s
			} else if time.Now().After(limit) {
				t.Fatalf("%+v", s)
			}
		}
	}
	w.at[1].Set([]spec.Gateway{line})
	if s := state(spec.Waiting); !strings.Contains(s.Detail, "would come back to it") {
		t.Errorf("%+v", s)
	}
	stop()
	state(spec.Listening)
}

// TestOnlyThoseAllowedConnect: the rules of a service are the listener's.
func TestOnlyThoseAllowedConnect(t *testing.T) {
	w := newWorld(t)
	at, _, forwarded := w.chain(echoAll, " from node-7 label:x", " wait 0s")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	if ev := await(t, forwarded, spec.Refused); !strings.Contains(ev.Detail, "refused") {
		t.Errorf("%+v", ev)
	}
}

// TestAThousandConnections at a time.
func TestAThousandConnections(t *testing.T) {
	w := newWorld(t)
	at, _, _ := w.chain(func(c conn) { io.Copy(c, c); c.CloseWrite() }, "", " wait 30s")
	var all sync.WaitGroup
	var reached sync.WaitGroup
	reached.Add(1000)
	failed := make(chan error, 1000)
	for i := range 1000 {
		all.Go(func() {
			c, err := net.Dial("tcp", at)
			if err != nil {
				reached.Done()
				failed <- err
				return
			}
			defer c.Close()
			word := fmt.Appendf(nil, "%08d", i)
			c.Write(word)
			got := make([]byte, len(word))
			_, err = io.ReadFull(c, got)
			reached.Done()
			reached.Wait() // so that all are there at once
			if err == nil {
				err = c.(*net.TCPConn).CloseWrite()
			}
			if rest, rerr := io.ReadAll(c); err != nil || rerr != nil || len(rest) > 0 || !bytes.Equal(got, word) {
				failed <- fmt.Errorf("%d: %q, then %d bytes, %v, %v", i, got, len(rest), err, rerr)
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}

// TestProxyHeaderTellsOfTheCaller before the first byte of the connection.
func TestProxyHeaderTellsOfTheCaller(t *testing.T) {
	w := newWorld(t)
	heard := make(chan []byte, 1)
	at, _, _ := w.chain(func(c conn) {
		text, _ := io.ReadAll(c)
		heard <- text
	}, " proxy-protocol", "")
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	text := <-heard
	user := fmt.Sprint(os.Getuid())
	life := "0.1"
	want := "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00" + string(rune(3+6+3+len(life)+3+len(user))) +
		"\xe0\x00\x06node-0" + "\xe1\x00\x03" + life + "\xe2\x00" + string(rune(len(user))) + user + "hello"
	if string(text) != want {
		t.Errorf("the target heard\n%q, want\n%q", text, want)
	}
}

// TestCommandsAreBounded: they must not take the admin interface's connections.
func TestCommandsAreBounded(t *testing.T) {
	w := newWorld(t)
	for range maxCommands {
		w.run(0, spec.Forward, "0=1:2050")
	}
	g, err := spec.Parse(spec.Forward, "0=1:2050")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.at[0].Run(t.Context(), g, func(spec.Event) {}); err == nil || !strings.Contains(err.Error(), "lines of its configuration") {
		t.Errorf("one more: %v", err)
	}
	w.at[0].Set([]spec.Gateway{g})
	if n := len(w.at[0].List()); n != maxCommands+1 {
		t.Errorf("%d gateways, want a line beside %d commands", n, maxCommands)
	}
}
