package fabrictest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// networks runs f over the network in memory, inside a bubble, and over
// QUIC and TCP.
func networks(t *testing.T, f func(t *testing.T, opts ...fabrictest.Option)) {
	t.Run("mem", func(t *testing.T) { bubble.Test(t, func(t *testing.T) { f(t) }) })
	t.Run("quic", func(t *testing.T) { f(t, fabrictest.QUIC()) })
	t.Run("tcp", func(t *testing.T) { f(t, fabrictest.TCP()) })
	t.Run("tcp plaintext", func(t *testing.T) { f(t, fabrictest.TCPPlaintext()) })
}

// connect returns the two ends of a connection from one node to another.
func connect(t *testing.T, from, to *fabric.Node) (near, far *fabric.Endpoint) {
	t.Helper()
	l, err := to.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *fabric.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.AcceptConn(context.Background()); err == nil {
			accepted <- c
		}
	}()
	conn, err := from.DialAddr(context.Background(), l.Addr().(fabric.Addr))
	if err != nil {
		t.Fatal(err)
	}
	c := <-accepted
	if c == nil {
		t.Fatal("nothing accepted")
	}
	return conn.Endpoint(), c.Endpoint()
}

// watch returns the node's events as strings.
func watch(n *fabric.Node) <-chan string {
	events := make(chan string, 64)
	n.OnEvent(func(ev fabric.Event) { events <- ev.String() })
	return events
}

func TestNodesKnowEachOther(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 4, opts...)
		for i := range 4 {
			ids, self, err := c.Node(i).Nodes()
			if want := []fabric.NodeID{0, 1, 2, 3}; err != nil || self != fabric.NodeID(i) || !slices.Equal(ids, want) {
				t.Errorf("node %d: nodes %v, self %d, %v", i, ids, self, err)
			}
		}
		for i := range 4 {
			for j := range 4 {
				near, far := connect(t, c.Node(i), c.Node(j))
				if n, err := near.Send(t.Context(), []byte("hi")); n != 2 || err != nil {
					t.Errorf("%d to %d: sent %d, %v", i, j, n, err)
				}
				if _, err := far.Recv(t.Context(), make([]byte, 2)); err != nil {
					t.Errorf("%d to %d: %v", i, j, err)
				}
			}
		}
	})
}

func TestKillStopAndRestartAreSeenByAll(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 3, opts...)
		seen := []<-chan string{watch(c.Node(0)), watch(c.Node(1))}
		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() { c.Kill(2) }, "node 2.1 removed: crashed"},
			{func() { c.Kill(2) }, ""},
			{func() { c.Restart(2) }, "node 2.2 added"},
			{func() { c.Stop(2) }, "node 2.2 removed: left"},
			{func() { c.Restart(2) }, "node 2.3 added"},
			{func() { c.Evict(2) }, "node 2.3 removed: silent"},
			{func() {}, "node 2.4 added"},
		} {
			step.do()
			for i, events := range seen {
				if step.want == "" {
					continue
				}
				if got := <-events; got != step.want {
					t.Errorf("node %d saw %q, want %q", i, got, step.want)
				}
			}
		}
		if got := c.Node(2).Incarnation(); got != (fabric.Incarnation{Node: 2, Generation: 4}) {
			t.Errorf("node 2 is %v", got)
		}
		connect(t, c.Node(0), c.Node(2))
		connect(t, c.Node(2), c.Node(1))
	})
}

func TestKillFailsTheCallsOfBothSides(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 2, opts...)
		near, far := connect(t, c.Node(0), c.Node(1))
		dead := c.Node(1)
		c.Kill(1)
		if _, err := near.Send(t.Context(), []byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the survivor's send: %v, want ECONNRESET", err)
		}
		if _, err := far.Send(t.Context(), []byte("x")); err == nil {
			t.Error("the dead node's application can still send")
		}
		if _, err := dead.Open(); err == nil {
			t.Error("the dead node still opens endpoints")
		}
		select {
		case <-dead.Done():
		default:
			t.Error("the dead node's application is not notified")
		}
	})
}

func TestStopDeliversWhatWasSent(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 2, opts...)
		near, far := connect(t, c.Node(0), c.Node(1))
		want := make([]byte, 100<<10)
		for i := range want {
			want[i] = byte(i * 7)
		}
		if _, err := far.Send(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		c.Stop(1)
		got := make([]byte, len(want))
		if n, err := near.Recv(t.Context(), got); err != nil || !slices.Equal(got, want) {
			t.Errorf("received %d of %d bytes, %v", n, len(want), err)
		}
	})
}

func TestPartitionResetsWithoutRemoving(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 3, opts...)
		events := watch(c.Node(0))
		across, _ := connect(t, c.Node(0), c.Node(2))
		inside, insideFar := connect(t, c.Node(0), c.Node(1))
		c.Partition(2)
		if _, err := across.Recv(t.Context(), make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("across the partition: %v, want ECONNRESET", err)
		}
		if _, err := inside.Send(t.Context(), []byte("x")); err != nil {
			t.Errorf("on one side: %v", err)
		}
		if _, err := insideFar.Recv(t.Context(), make([]byte, 1)); err != nil {
			t.Errorf("on one side: %v", err)
		}
		if ids, _, err := c.Node(0).Nodes(); len(ids) != 3 || err != nil {
			t.Errorf("nodes %v, %v; nobody was removed", ids, err)
		}
		c.Heal()
		connect(t, c.Node(0), c.Node(2))
		if len(events) != 0 {
			t.Errorf("saw %q", <-events)
		}
	})
}

func TestAnUnbrokenClusterHasNoDelay(t *testing.T) {
	notes := &failures{TB: t}
	defer func() {
		if recover() == nil || len(notes.said) != 1 || !strings.Contains(notes.said[0], "Unbroken") {
			t.Errorf("a Delay of an Unbroken cluster: %q", notes.said)
		}
	}()
	fabrictest.NewCluster(notes, 2, fabrictest.Unbroken(), fabrictest.Delay(time.Millisecond, 0, 1))
}

func TestDelayTakesTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2, fabrictest.Delay(100*time.Millisecond, 0, 1))
		near, far := connect(t, c.Node(0), c.Node(1))
		start := time.Now()
		if _, err := near.Send(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Recv(t.Context(), make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		// Faults of links keep pieces apart by nanoseconds that are sent at one instant.
		if got := time.Since(start); got < 100*time.Millisecond || got >= 100*time.Millisecond+time.Microsecond {
			t.Errorf("a message took %v with a delay of 100ms", got)
		}
	})
}

func TestConnectTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2, fabrictest.ConnectTimeout(3*time.Second))
		l, err := c.Node(1).Listen(0)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = c.Node(0).DialAddr(t.Context(), l.Addr().(fabric.Addr))
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(start) != 3*time.Second {
			t.Errorf("got %v after %v, want ECONNREFUSED after 3s", err, time.Since(start))
		}
	})
}

func TestPrivilegeIsTheApplications(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	for _, admin := range []bool{true, false} {
		ep, err := c.App(0, admin).Open()
		if err != nil {
			t.Fatal(err)
		}
		_, err = ep.Bind(80)
		if got := errors.Is(err, syscall.EACCES); got == admin {
			t.Errorf("admin %v: bind 80: %v", admin, err)
		}
	}
}

// A cluster is a few lines in a test.
func ExampleNewCluster() {
	c := fabrictest.Start(2) // NewCluster(t, 2) in a test
	defer c.Close()
	fmt.Println(c.Node(0).Nodes())
	// Output: [0 1] 0 <nil>
}
