package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pairModes are the ways to attach two applications that connect.
var pairModes = []struct {
	name string
	open func(tb testing.TB) (client, server *fabric.Node)
}{
	{"embedded, across nodes, mem", func(tb testing.TB) (client, server *fabric.Node) {
		c := fabrictest.NewCluster(tb, 2)
		return c.Node(1), c.Node(0)
	}},
	{"embedded, across nodes, quic", func(tb testing.TB) (client, server *fabric.Node) {
		c := fabrictest.NewCluster(tb, 2, fabrictest.QUIC())
		return c.Node(1), c.Node(0)
	}},
	{"embedded, same node", func(tb testing.TB) (client, server *fabric.Node) {
		c := fabrictest.NewCluster(tb, 1)
		return c.App(0, false), c.Node(0)
	}},
	{"attached, across nodes, mem", func(tb testing.TB) (client, server *fabric.Node) {
		c := fabrictest.NewCluster(tb, 2)
		return attacher(tb, c, 1)(), attacher(tb, c, 0)()
	}},
	{"attached, across nodes, quic", func(tb testing.TB) (client, server *fabric.Node) {
		c := fabrictest.NewCluster(tb, 2, fabrictest.QUIC())
		return attacher(tb, c, 1)(), attacher(tb, c, 0)()
	}},
	{"attached, same node", func(tb testing.TB) (client, server *fabric.Node) {
		c := fabrictest.NewCluster(tb, 1)
		app := attacher(tb, c, 0)
		return app(), app()
	}},
}

// attach serves node i through a Unix socket and returns a function that
// attaches an application to it.
func attacher(tb testing.TB, c *fabrictest.Cluster, i int) func() *fabric.Node {
	tb.Helper()
	dir, err := os.MkdirTemp("", "fabric") // a TempDir's path may be too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	path := dir + "/socket"
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server, err := server.NewServer(ctx, server.Options{
		NewSession: func(cred attach.Credentials) (attach.NodeSession, error) { return hook.Session(c, i, cred), nil },
	})
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			tb.Errorf("serve: %v", err)
		}
		os.RemoveAll(dir)
	})
	return func() *fabric.Node {
		n, err := fabric.Attach(context.Background(), path)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { n.Close() })
		return n
	}
}

// inEachAPIMode runs f as a sub-test for every mode.
func inEachAPIMode(t *testing.T, f func(t *testing.T, client, server *fabric.Node)) {
	for _, mode := range pairModes {
		t.Run(mode.name, func(t *testing.T) {
			client, server := mode.open(t)
			f(t, client, server)
		})
	}
}

func TestConnIsNetConn(t *testing.T) {
	inEachAPIMode(t, func(t *testing.T, client, server *fabric.Node) {
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			near, far := dial(t, client, server)
			return near, far, func() { near.Close(); far.Close() }, nil
		})
	})
}

// dial returns the two ends of a new connection.
func dial(tb testing.TB, client, server *fabric.Node) (near, far *fabric.Conn) {
	tb.Helper()
	l, err := server.Listen(0)
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *fabric.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.AcceptConn(context.Background()); err == nil {
			accepted <- c
		}
	}()
	near, err = client.DialAddr(context.Background(), l.Addr().(fabric.Addr))
	if err != nil {
		tb.Fatal(err)
	}
	if far = <-accepted; far == nil {
		tb.Fatal("the listener accepted nothing")
	}
	return near, far
}

func TestHTTPRunsOverPorts(t *testing.T) {
	inEachAPIMode(t, func(t *testing.T, client, server *fabric.Node) {
		for name, want := range map[string]string{"http1": "HTTP/1.1", "http2": "HTTP/2.0"} {
			t.Run(name, func(t *testing.T) {
				protocols := new(http.Protocols)
				protocols.SetHTTP1(name == "http1")
				protocols.SetUnencryptedHTTP2(name == "http2")
				testHTTP(t, client, server, protocols, want)
			})
		}
	})
}

// testHTTP posts a large body to an echo server, several times at once.
func testHTTP(t *testing.T, client, server *fabric.Node, protocols *http.Protocols, proto string) {
	l, err := server.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Protocols: protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Seen", r.Proto+" "+r.RemoteAddr)
			body, _ := io.ReadAll(r.Body)
			w.Write(body)
		}),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	transport := &http.Transport{Protocols: protocols, DialContext: client.DialContext}
	body := bytes.Repeat([]byte("fabric "), 40_000)
	posted := make(chan error, 8)
	for range cap(posted) {
		go func() { posted <- post(transport, l.Addr().String(), body, proto, client.ID()) }()
	}
	for range cap(posted) {
		if err := <-posted; err != nil {
			t.Error(err)
		}
	}
	transport.CloseIdleConnections()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("server ended with %v", err)
	}
}

func post(rt http.RoundTripper, address string, body []byte, proto string, from fabric.NodeID) error {
	resp, err := (&http.Client{Transport: rt}).Post("http://"+address+"/echo", "text/plain", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, body) {
		return errors.New("the echo differs")
	}
	prefix := proto + " " + (fabric.Addr{Node: from}).String()
	if seen := resp.Header.Get("Seen"); !strings.HasPrefix(seen, strings.TrimSuffix(prefix, "0")) {
		return errors.New("the server saw " + seen + ", want " + prefix)
	}
	return nil
}

func TestReadEndsWithEOFOnlyAfterClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		near, far := dial(t, c.Node(0), c.Node(1))
		if _, err := far.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		far.Close()
		if got, err := io.ReadAll(near); err != nil || string(got) != "last words" {
			t.Errorf("read %q, %v; want all of it and no error", got, err)
		}
		if _, err := near.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read after an orderly close: %v, want io.EOF itself", err)
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write after the peer's close: %v, want ECONNRESET", err)
		}

		near, _ = dial(t, c.Node(0), c.Node(1))
		c.Kill(1)
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
			t.Errorf("read after the node's loss: %v, want ECONNRESET and not io.EOF", err)
		}
	})
}

// TestAnAbortSaysWhy to the peer, in one line that is bounded.
func TestAnAbortSaysWhy(t *testing.T) {
	inEachAPIMode(t, func(t *testing.T, client, server *fabric.Node) {
		for reason, want := range map[string]string{
			"":                        "the peer's application gave it up",
			"out of \n\x1bpaper":      "the peer's application gave it up: out of   paper",
			strings.Repeat("x", 1000): "the peer's application gave it up: " + strings.Repeat("x", 221),
		} {
			near, far := dial(t, client, server)
			if err := far.Abort(reason); err != nil {
				t.Error(err)
			}
			if err := far.Close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("close behind an abort: %v", err)
			}
			_, err := near.Read(make([]byte, 1))
			var lost *fabric.LostError
			if !errors.As(err, &lost) || lost.Cause != fabric.PeerAborted || lost.Text != want {
				t.Errorf("%.20q: read: %v, want %q", reason, err, want)
			}
			near.Close()
		}
	})
}

func TestCloseFailsBlockedCallsWithErrClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		near, _ := dial(t, c.Node(0), c.Node(1))
		l, err := c.Node(0).Listen(0)
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 3)
		go func() { _, err := near.Read(make([]byte, 1)); failed <- err }()
		go func() { _, err := near.Write(make([]byte, 64<<20)); failed <- err }()
		go func() { _, err := l.Accept(); failed <- err }()
		synctest.Wait() // all three block
		near.Close()
		l.Close()
		for range 3 {
			if err := <-failed; !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v, want net.ErrClosed", err)
			}
		}
		for _, call := range []func() error{
			near.Close, l.Close,
			func() error { return near.SetDeadline(time.Now()) },
			func() error { _, err := near.Read(nil); return err },
			func() error { _, err := l.Accept(); return err },
		} {
			if err := call(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("after Close: %v, want net.ErrClosed", err)
			}
		}
		if near.LocalAddr() == nil || near.RemoteAddr().(fabric.Addr).Node != 1 || l.Addr().(fabric.Addr).Port == 0 {
			t.Error("the addresses are gone after Close")
		}
	})
}

func TestDeadlineMovesWhileReadBlocks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		near, _ := dial(t, c.Node(0), c.Node(1))
		start := time.Now()
		near.SetReadDeadline(start.Add(time.Second))
		failed := make(chan error, 1)
		go func() { _, err := near.Read(make([]byte, 1)); failed <- err }()
		synctest.Wait()
		near.SetReadDeadline(start.Add(time.Minute))
		err := <-failed
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want os.ErrDeadlineExceeded", err)
		}
		if got := time.Since(start); got != time.Minute {
			t.Errorf("failed after %v, want 1m", got)
		}
	})
}

func TestDialContextRefusesWhatIsNoAddress(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	for _, s := range []string{"", "0", "0:", "65536:1", "example.org:x", "0:1:2", "db@", "a b:80"} {
		if _, err := c.Node(0).DialContext(t.Context(), "scif", s); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("dial %q: %v, want EINVAL", s, err)
		}
	}
}
