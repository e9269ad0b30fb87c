package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// acceptAll accepts connections of l until it is closed, and closes them when the
// peer does.
func acceptAll(l *fabric.Listener) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				io.Copy(io.Discard, conn)
				conn.Close()
			})
		}
	})
	return wg.Wait
}

// burst dials l n times at once from each of from, and returns the errors.
func burst(from []*fabric.Node, l *fabric.Listener, n int) (failed []error, took time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, n*len(from))
	begun := time.Now()
	for range n {
		for _, app := range from {
			wg.Go(func() {
				conn, err := app.DialAddr(ctx, l.Addr().(fabric.Addr))
				if errs <- err; err == nil {
					defer conn.Close()
				}
			})
		}
	}
	wg.Wait()
	took = time.Since(begun)
	close(errs)
	for err := range errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed, took
}

// 1,000 dials at once all succeed, on every way between two applications. The race
// detector makes a dial ten times as dear, and gets fewer.
func TestABurstOfDialsSucceeds(t *testing.T) {
	dials := 1000
	if raceEnabled {
		dials = 300
	}
	for name, opts := range map[string][]fabrictest.Option{
		"quic": {fabrictest.QUIC()}, "tcp": {fabrictest.TCP()}, "one node": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := fabrictest.NewCluster(t, 2, opts...)
			server, client := attacher(t, c, 0)(), attacher(t, c, 1%max(2*len(opts), 1))()
			l, err := server.Listen(0)
			if err != nil {
				t.Fatal(err)
			}
			wait := acceptAll(l)
			failed, took := burst([]*fabric.Node{client}, l, dials)
			if len(failed) > 0 {
				t.Errorf("%d of %d dials failed: %v", len(failed), dials, failed[0])
			}
			t.Logf("%d dials took %v", dials, took)
			l.Close()
			wait()
		})
	}
}

// Dials that are more than a listener accepts within the connect time-out wait for
// their turn, from one application and from two that share the backlog.
func TestASlowAcceptorServesABurst(t *testing.T) {
	for _, apps := range []int{1, 2} {
		t.Run(fmt.Sprint(apps), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := fabrictest.NewCluster(t, 3)
				l, err := c.Node(0).Listen(0)
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						defer conn.Close()
						time.Sleep(20 * time.Millisecond)
					}
				})
				failed, took := burst([]*fabric.Node{c.Node(1), c.Node(2)}[:apps], l, 800)
				if len(failed) > 0 {
					t.Errorf("%d of %d dials failed: %v", len(failed), 800*apps, failed[0])
				}
				if want := time.Duration(800*apps) * 20 * time.Millisecond; took > want+5*time.Second {
					t.Errorf("the dials took %v, want the %v of their accepts", took, want)
				}
				l.Close()
				wg.Wait()
			})
		})
	}
}

// A dial that gets no turn ends with its context, or after 10 s without a deadline, and
// holds up no dial to another listener.
func TestDialsToAListenerThatAcceptsNone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2, fabrictest.ConnectTimeout(time.Hour))
		idle, err := c.Node(0).Listen(0)
		if err != nil {
			t.Fatal(err)
		}
		at := idle.Addr().(fabric.Addr)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 128 {
			wg.Go(func() {
				if _, err := c.Node(1).DialAddr(ctx, at); !errors.Is(err, context.Canceled) {
					t.Errorf("Dial to a listener that accepts none: %v", err)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if _, err := c.Node(1).DialAddr(short, at); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("Dial whose context ends before its turn: %v", err)
		}
		if d := time.Since(begun); d != time.Second {
			t.Errorf("Dial whose context ends after 1 s took %v", d)
		}
		begun = time.Now()
		if _, err := c.Node(1).DialAddr(t.Context(), at); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial without a turn: %v, want ECONNREFUSED", err)
		}
		if d := time.Since(begun); d != 10*time.Second {
			t.Errorf("Dial without a turn and a deadline took %v, want 10 s", d)
		}
		l, err := c.Node(0).Listen(0)
		if err != nil {
			t.Fatal(err)
		}
		wait := acceptAll(l)
		conn, err := c.Node(1).DialAddr(t.Context(), l.Addr().(fabric.Addr))
		if err != nil {
			t.Fatalf("Dial to another listener: %v", err)
		}
		conn.Close()
		cancel()
		wg.Wait()
		idle.Close()
		l.Close()
		wait()
	})
}

// A dial waits for a place in a full backlog, within its context; Connect does not.
func TestDialsWaitForAPlaceInTheBacklog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		l, err := c.Node(0).Listen(0, fabric.Backlog(1))
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().(fabric.Addr)
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 5 {
			wg.Go(func() {
				conn, err := c.Node(1).DialAddr(t.Context(), at)
				if err != nil {
					t.Error(err)
					return
				}
				conn.Close()
			})
		}
		synctest.Wait()
		time.Sleep(time.Second)
		ep, err := c.Node(1).Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ep.Connect(t.Context(), at); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Connect beside a full backlog: %v, want ECONNREFUSED", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := c.Node(1).DialAddr(short, at); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial whose context ends: %v", err)
		}
		if d := time.Since(begun); d < time.Second || d > 2*time.Second {
			t.Errorf("Dial whose context ends after 1 s took %v", d)
		}
		for range 5 {
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		wg.Wait()
		ep.Close()
		l.Close()
	})
}

func TestBacklogIsBounded(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	for _, n := range []int{-1, 0, fabric.MaxBacklog + 1} {
		if l, err := c.Node(0).Listen(0, fabric.Backlog(n)); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Listen with a backlog of %d: %v, %v; want EINVAL", n, l, err)
		}
	}
	l, err := c.Node(0).Listen(0, fabric.Backlog(fabric.MaxBacklog))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// attachWith serves node i of c with changed options and attaches to it.
func attachWith(t *testing.T, c *fabrictest.Cluster, i int, change func(*server.Options)) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fabric")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "socket")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	opt := server.Options{NewSession: func(cred attach.Credentials) (attach.NodeSession, error) { return hook.Session(c, i, cred), nil }}
	change(&opt)
	ctx, cancel := context.WithCancel(context.Background())
	server, err := server.NewServer(ctx, opt)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		os.RemoveAll(dir)
	})
	return path
}

// A server whose application has as many endpoints as it may serves on when some are
// closed.
func TestAServerOutlivesAFlood(t *testing.T) {
	c := fabrictest.NewCluster(t, 2, fabrictest.ConnectTimeout(time.Hour)) // a connect without room is refused at once
	path := attachWith(t, c, 0, func(o *server.Options) { o.Session = server.Limits{Endpoints: 20} })
	app, err := fabric.Attach(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	l, err := app.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	client := c.Node(1)
	var open []*fabric.Conn
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if conn, err := client.DialAddr(t.Context(), l.Addr().(fabric.Addr)); err == nil {
				mu.Lock()
				open = append(open, conn)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	select {
	case err := <-served:
		t.Fatalf("the server ended at the bound: %v", err)
	default:
	}
	if len(open) == 0 || len(open) > 20 {
		t.Errorf("%d connections, want some and at most the 20 that the application may have", len(open))
	}
	for _, conn := range open {
		conn.Close()
	}
	h := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return client.DialContext(ctx, network, l.Addr().String())
	}, DisableKeepAlives: true}}
	answered := false
	for end := time.Now().Add(time.Minute); !answered && time.Now().Before(end); {
		r, err := h.Get("http://fabric/")
		if err == nil {
			b, _ := io.ReadAll(r.Body)
			r.Body.Close()
			answered = string(b) == "served"
		}
	}
	if !answered {
		t.Error("the server does not serve after the flood")
	}
	srv.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve = %v", err)
	}
}

func TestABoundThatIsReachedIsTemporary(t *testing.T) {
	for code, want := range map[status.Code]bool{
		status.NoMemory: true, status.NoBufs: true, status.NoSpace: true, status.Busy: true, status.TimedOut: true, status.Again: true,
		status.BadFD: false, status.Intr: false, status.Invalid: false, status.Refused: false, status.Reset: false, status.NoDevice: false,
	} {
		err := &fabric.OpError{Op: "accept", Err: fmt.Errorf("wrapped: %w", code)}
		if err.Temporary() != want {
			t.Errorf("%v is temporary: %v, want %v", code, !want, want)
		}
	}
	for op, want := range map[string]bool{"accept": true, "bind": false} { // an Accept fails once for a name that the host bars
		if err := (&fabric.OpError{Op: op, Err: status.Access}); err.Temporary() != want {
			t.Errorf("EACCES of %s is temporary: %v, want %v", op, !want, want)
		}
	}
}

// Attach waits until the node has its ID; its error names the reason why there is none.
func TestAttachWaitsForTheNodesID(t *testing.T) {
	c := fabrictest.NewCluster(t, 2)
	var joined atomic.Bool
	asked := make(chan struct{}, 1)
	path := attachWith(t, c, 1, func(o *server.Options) {
		session := o.NewSession
		o.NewSession = func(cred attach.Credentials) (attach.NodeSession, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			if !joined.Load() {
				return nil, fmt.Errorf("the node has no ID yet: waiting for the host: %w", status.Again)
			}
			return session(cred)
		}
	})
	attach := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := fabric.Attach(ctx, path)
		return err
	}
	err := attach(50 * time.Millisecond)
	if len(asked) == 0 { // a busy machine: the node has not seen it yet
		err = attach(5 * time.Second)
	}
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "the node has no ID yet: waiting for the host") {
		t.Errorf("Attach without an ID: %v", err)
	}
	<-asked
	attached := make(chan *fabric.Node, 1)
	go func() {
		n, err := fabric.Attach(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		attached <- n
	}()
	<-asked
	joined.Store(true)
	n := <-attached
	if n == nil {
		t.FailNow()
	}
	defer n.Close()
	l, err := n.Listen(4444)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n.ID() != 1 || l.Addr().String() != "1:4444" {
		t.Errorf("node %d listens at %v, want 1:4444", n.ID(), l.Addr())
	}
}
