package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/gateway/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests, which are over real sockets.
const patience = 30 * time.Second

// A world is two nodes with gateways at each.
type world struct {
	t       testing.TB
	cluster *fabrictest.Cluster
	at      [2]*Gateways
	killed  [2]atomic.Bool // of attachedWorld
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
func await(t testing.TB, events <-chan spec.Event, kind string) spec.Event {
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
func serve(t testing.TB, network string, handle func(conn)) string {
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

// dial connects to an address, with a deadline for the connection.
func dial(t testing.TB, address string) conn {
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

// TestHalfCloseIsKept: the server sees the end of the client's bytes, and answers after
// it.
func TestHalfCloseIsKept(t *testing.T) {
	everyWay(t, func(t *testing.T, w *world) {
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
	})
}

// TestAPeerThatHasClosedNeedsNoEnd: bytes that a client still reads from it must not be cut
// off. A peer that was lost is no such peer.
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

// reset returns an error unless reads end with a reset, after the bytes before it.
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
func TestASlowReaderHoldsItsSenderOnly(t *testing.T) { everyWay(t, slowReaderHoldsItsSenderOnly) }

func slowReaderHoldsItsSenderOnly(t *testing.T, w *world) {
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

// TestTheLastTryIsAtTheEndOfTheWait: a service that comes in its last part is reached.
func TestTheLastTryIsAtTheEndOfTheWait(t *testing.T) {
	const wait = 300 * time.Millisecond
	var last time.Duration
	tries, began := 0, time.Now()
	d := newDialer(spec.Gateway{Wait: wait, Max: 2}, func(context.Context) (*fabric.Node, error) {
		tries, last = tries+1, time.Since(began)
		return nil, syscall.ENODEV
	})
	client := dial(t, serve(t, "tcp", echoAll))
	if _, err := d.dial(t.Context(), []string{"db"}, client, &spec.Conn{To: "db"}); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
	if last < wait || tries > 5 {
		t.Errorf("the last of %d tries was after %v, want it after %v", tries, last, wait)
	}
}

// TestAGatewayComesBackWithItsNode: its node is lost, and has another incarnation.
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

// TestProxyHeaderNamesTheCaller before the first byte of the connection.
func TestProxyHeaderNamesTheCaller(t *testing.T) {
	w := newWorld(t)
	received := make(chan []byte, 1)
	at, _, _ := w.chain(func(c conn) {
		text, _ := io.ReadAll(c)
		received <- text
	}, " proxy-protocol", "")
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	text := <-received
	user := fmt.Sprint(os.Getuid())
	incarnation := "0.1"
	want := "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00" + string(rune(3+6+3+len(incarnation)+3+len(user))) +
		"\xe0\x00\x06node-0" + "\xe1\x00\x03" + incarnation + "\xe2\x00" + string(rune(len(user))) + user + "hello"
	if string(text) != want {
		t.Errorf("the target received\n%q, want\n%q", text, want)
	}
}
