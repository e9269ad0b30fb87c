package kvstore

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

const port = 2056

// newCluster starts three nodes: the client's, and two with a server.
func newCluster(t *testing.T) (*fabrictest.Cluster, *Client) {
	t.Helper()
	c := fabrictest.NewCluster(t, 3) // ends with the test
	for i := 1; i <= 2; i++ {
		go Serve(listen(t, c.Node(i))) // until its node ends
	}
	return c, &Client{Node: c.Node(0), Servers: []fabric.Addr{{Node: 1, Port: port}, {Node: 2, Port: port}}}
}

func listen(t *testing.T, node *fabric.Node) net.Listener {
	t.Helper()
	l, err := node.Listen(port)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantValue(t *testing.T, client *Client, key, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got, err := client.Get(ctx, key); err != nil || got != want {
		t.Errorf("%s is %q, error %v; want %q", key, got, err, want)
	}
}

func TestValuesOutliveANode(t *testing.T) {
	c, client := newCluster(t)
	if err := client.Put(t.Context(), "color", "blue"); err != nil {
		t.Fatal(err)
	}
	c.Kill(1)
	c.ExpectRemoved(1, 5*time.Second) // every other node has the event
	wantValue(t, client, "color", "blue")
	if err := client.Put(t.Context(), "color", "green"); err != nil {
		t.Error("with one of two servers:", err)
	}
	wantValue(t, client, "color", "green")
	c.Kill(2)
	if err := client.Put(t.Context(), "color", "red"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("without a server: %v, want ENODEV", err)
	}
}

// The node is killed at the worst moment: it has taken the request, and the client waits
// for the answer.
func TestGetGoesOnWhenItsServerIsKilled(t *testing.T) {
	c, client := newCluster(t)
	if err := client.Put(t.Context(), "color", "blue"); err != nil {
		t.Fatal(err)
	}
	silent := listen(t, c.Restart(1)) // takes requests and does not answer
	go func() {
		conn, err := silent.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		c.Kill(1)
	}()
	wantValue(t, client, "color", "blue") // from node 2
}
