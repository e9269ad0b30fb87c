package fabricgrpc_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabricgrpc"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	fabricstatus "github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const inTurn = `{"loadBalancingConfig": [{"round_robin": {}}]}`

// A cluster is one of fabrictest whose fabricds applications lose and find again.
type cluster struct {
	t *testing.T
	*fabrictest.Cluster
	up [4]atomic.Bool
}

func newCluster(t *testing.T, n int) *cluster {
	c := &cluster{t: t, Cluster: fabrictest.NewCluster(t, n)}
	for i := range n {
		c.up[i].Store(true)
	}
	return c
}

// attaching returns a function that attaches to node i while it is up.
func (c *cluster) attaching(i int) func(context.Context) (*fabric.Node, error) {
	return func(context.Context) (*fabric.Node, error) {
		if !c.up[i].Load() {
			return nil, &fabric.OpError{Op: "attach", Local: fabric.Addr{Node: fabric.NoNode}, Err: fabricstatus.NoDevice}
		}
		return c.App(i, false), nil
	}
}

// kill kills node i, which comes back after away.
func (c *cluster) kill(i int, away time.Duration) {
	c.up[i].Store(false)
	c.Kill(i)
	time.AfterFunc(away, func() {
		c.Restart(i)
		c.up[i].Store(true)
	})
}

// serve serves a name at node i until stop is called, or the test ends.
func (c *cluster) serve(i int, name string) (stop func()) {
	c.t.Helper()
	config := &fabric.ListenConfig{Attach: c.attaching(i)}
	l, err := config.Listen(c.t.Context(), 0, fabric.Service(name))
	if err != nil {
		c.t.Fatal(err)
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.Swap(true) {
			return
		}
		srv.Stop()
		if err := <-served; err != nil {
			c.t.Errorf("Serve: %v", err)
		}
		config.Close()
	}
	c.t.Cleanup(stop)
	return stop
}

// A client asks a service for its identity.
type client struct {
	t    *testing.T
	conn *grpc.ClientConn
}

// client returns a client at node i, which ends with the test.
func (c *cluster) client(i int, target string, opts ...grpc.DialOption) *client {
	c.t.Helper()
	d := &fabric.Dialer{Attach: c.attaching(i), Wait: time.Minute}
	conn, err := grpc.NewClient(target, append(fabricgrpc.Options(d), opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			c.t.Error(err)
		}
		d.Close()
	})
	return &client{c.t, conn}
}

// ask returns the node that has answered.
func (c *client) ask(limit time.Duration, opts ...grpc.CallOption) (fabric.NodeID, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	var p peer.Peer
	_, err := healthpb.NewHealthClient(c.conn).Check(ctx, &healthpb.HealthCheckRequest{}, append(opts, grpc.Peer(&p))...)
	if err != nil {
		return 0, err
	}
	return p.Addr.(fabric.Addr).Node, nil
}

// tryCall makes the one call that may fail because its connection ends meanwhile.
func (c *client) tryCall() {
	c.t.Helper()
	if _, err := c.ask(time.Minute, grpc.WaitForReady(true)); err != nil && status.Code(err) != codes.Unavailable {
		c.t.Error(err)
	}
}

// want asks until the nodes have answered n times each in the next n*len(nodes) calls.
func (c *client) want(when string, n int, nodes ...fabric.NodeID) {
	c.t.Helper()
	got := map[fabric.NodeID]int{}
	for range n * len(nodes) {
		node, err := c.ask(time.Minute, grpc.WaitForReady(true))
		if err != nil {
			c.t.Fatalf("%s: %v", when, err)
		}
		got[node]++
	}
	for _, node := range nodes {
		if got[node] != n {
			c.t.Errorf("%s: the nodes have answered %v times, want %d by each of %v", when, got, n, nodes)
		}
	}
}

func TestCallsFollowTheService(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		stop := c.serve(1, "db")
		cl := c.client(0, "fabric:///db")
		cl.want("at first", 2, 1)
		stop()
		c.serve(2, "db")
		cl.tryCall()
		cl.want("after the service has moved", 2, 2)
	})
}

func TestCallsGoToAllNodesInTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		c.serve(1, "db")
		stop := c.serve(2, "db")
		cl := c.client(0, "fabric:///db", grpc.WithDefaultServiceConfig(inTurn))
		settled := func() { time.Sleep(2 * time.Second) } // of the bubble
		cl.conn.Connect()
		settled()
		cl.want("with two nodes", 5, 1, 2)
		c.serve(3, "db")
		settled()
		cl.want("with a third one", 5, 1, 2, 3)
		stop()
		settled()
		cl.want("after one has stopped", 5, 1, 3)
		c.kill(3, time.Hour)
		settled()
		cl.want("after a node is lost", 5, 1)
	})
}

// Either side's fabricd ends and comes back: the calls of one client and one server go on.
func TestCallsGoOnAfterARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.serve(1, "db")
		cl := c.client(2, "fabric:///db", grpc.WithDefaultServiceConfig(inTurn))
		cl.want("at first", 2, 1)
		for _, i := range []int{1, 2} {
			for _, away := range []time.Duration{200 * time.Millisecond, 5 * time.Second} {
				c.kill(i, away)
				began := time.Now()
				cl.tryCall()
				cl.want("after a restart", 1, 1)
				if took := time.Since(began); took > away+3*time.Second {
					t.Errorf("node %d was away for %v, and calls for %v", i, away, took)
				}
				time.Sleep(3 * time.Second) // of the bubble: until the addresses are reported again
				cl.want("and when all is reported", 3, 1)
			}
		}
	})
}

func TestACallOfNobodyFailsOrWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		cl := c.client(0, "fabric:///late")
		_, err := cl.ask(time.Minute)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), `no node serves "late"`) {
			t.Errorf("nobody serves the name: %v", err)
		}
		began := time.Now()
		time.AfterFunc(5*time.Second, func() { c.serve(1, "late") })
		if node, err := cl.ask(time.Minute, grpc.WaitForReady(true)); err != nil || node != 1 {
			t.Errorf("node %d, %v", node, err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 7*time.Second {
			t.Errorf("the name came after 5 s, the answer after %v", took)
		}
		c.up[0].Store(false)
		if _, err := c.client(0, "fabric:///late").ask(time.Minute); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "attach") {
			t.Errorf("without a fabricd: %v", err)
		}
	})
}

func TestOneNodeOrPort(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.serve(1, "db")
		c.serve(2, "db")
		l, err := c.Node(2).Listen(2050)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- conn
		}()
		c.client(0, "fabric:///db@2").want("one node", 3, 2)
		cl := c.client(0, "fabric:///2:2050")
		cl.conn.Connect()
		(<-accepted).Close()
	})
}

func TestATargetIsAnAddressOfTheFabric(t *testing.T) {
	for _, target := range []string{"fabric:///12", "fabric:///a/b", "fabric:///", "fabric:///1:x", "fabric://web/db"} {
		conn, err := grpc.NewClient(target, fabricgrpc.Options(&fabric.Dialer{})...)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		err = conn.Invoke(t.Context(), "/a/b", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "address") {
			t.Errorf("%s: %v", target, err)
		}
		conn.Close()
	}
}
