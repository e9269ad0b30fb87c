package fabric_test

import (
	"context"
	"testing"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// apiModes are the ways to reach node i of a cluster.
var apiModes = map[string]func(t testing.TB, c *fabrictest.Cluster, i int) *fabric.Node{
	"embedded": func(_ testing.TB, c *fabrictest.Cluster, i int) *fabric.Node { return c.Node(i) },
	"attached": func(t testing.TB, c *fabrictest.Cluster, i int) *fabric.Node { return attacher(t, c, i)() },
}

// joined connects an endpoint of one application to one of another.
func joined(t testing.TB, listener, dialer *fabric.Node) (at, from *fabric.Endpoint) {
	t.Helper()
	l, err := listener.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *fabric.Conn, 1)
	go func() {
		conn, err := l.AcceptConn(context.Background())
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
	}()
	conn, err := dialer.DialAddr(context.Background(), l.Addr().(fabric.Addr))
	if err != nil {
		t.Fatal(err)
	}
	peer := <-accepted
	if peer == nil {
		t.FailNow()
	}
	t.Cleanup(func() { conn.Close(); peer.Close() })
	return peer.Endpoint(), conn.Endpoint()
}

// window registers memory of n for the peer of ep.
func window(t testing.TB, n *fabric.Node, ep *fabric.Endpoint, pages int, prot fabric.Prot) (mem *fabric.Memory, off int64) {
	t.Helper()
	mem, err := n.Alloc(pages * fabric.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	off, err = ep.Register(mem.Bytes(), 0, prot, 0)
	if err != nil {
		t.Fatal(err)
	}
	return mem, off
}

const rw = fabric.ProtRead | fabric.ProtWrite
