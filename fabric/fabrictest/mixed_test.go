package fabrictest

import (
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestMixedNodesTalkBoth: node 1 reaches node 0 over QUIC, and node 2 over TCP.
func TestMixedNodesTalkBoth(t *testing.T) {
	c := NewCluster(t, 3, Mixed())
	l, err := c.Node(0).Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, i := range []int{1, 2} {
		accepted := make(chan error, 1)
		go func() {
			far, err := l.Accept()
			if err == nil {
				err = far.Close()
			}
			accepted <- err
		}()
		conn, err := c.Node(i).DialAddr(t.Context(), l.Addr().(fabric.Addr))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if err := <-accepted; err != nil {
			t.Error(err)
		}
	}
	got := map[fabric.NodeID]string{}
	for _, link := range c.nodes[0].engine.Links() {
		got[link.Node] = link.Provider
	}
	if got[1] != "quic" || got[2] != "tcp" {
		t.Errorf("links are over %v, want quic to 1 and tcp to 2", got)
	}
}
