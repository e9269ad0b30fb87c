package fabric_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// A listener that allows a label lets nodes with it connect, in every API mode, and
// shows them to the acceptor.
func TestAllowAndPeerGoByLabels(t *testing.T) {
	for name, mode := range apiModes {
		t.Run(name, func(t *testing.T) {
			c := fabrictest.NewCluster(t, 3, fabrictest.Labels(1, "db", "eu"), fabrictest.Labels(2, "web"))
			l, err := mode(t, c, 0).Listen(0, fabric.Allow("label:db", "local"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			at := l.Addr().(fabric.Addr)
			if _, err := mode(t, c, 2).DialAddr(context.Background(), at); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("without the label: %v, want ECONNREFUSED", err)
			}
			conn, err := dialed(l, mode(t, c, 1), at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			p, err := conn.Peer()
			if err != nil || p.Node != 1 || p.Generation != 1 || p.Name != "node-1" || !slices.Equal(p.Labels, []string{"db", "eu"}) || p.UID < 0 {
				t.Errorf("peer %+v, %v", p, err)
			}
			p.Labels[0] = "changed" // the caller's own
			if again, err := conn.Peer(); err != nil || again.Labels[0] != "db" {
				t.Errorf("peer again: %+v, %v", again, err)
			}
			conn.Close()
			if _, err := conn.Peer(); !errors.Is(err, syscall.EBADF) {
				t.Errorf("after Close: %v, want EBADF", err)
			}
		})
	}
}

// dialed connects from n to l and returns the listener's end.
func dialed(l *fabric.Listener, n *fabric.Node, at fabric.Addr) (*fabric.Conn, error) {
	done := make(chan error, 1)
	go func() {
		_, err := n.DialAddr(context.Background(), at) // ends with the node
		done <- err
	}()
	conn, err := l.AcceptConn(context.Background())
	return conn, errors.Join(err, <-done)
}
