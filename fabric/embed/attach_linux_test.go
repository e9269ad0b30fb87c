//go:build !portable

package embed_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
)

func TestOthersAttachToAnEmbeddedNode(t *testing.T) {
	host, c := cluster(t)
	c.Socket = filepath.Join(filepath.Dir(c.StateDir), "app")
	node := start(t, c)
	app, err := fabric.Attach(t.Context(), c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if app.Incarnation() != node.Incarnation() || app.Cluster() != host.Cluster() {
		t.Errorf("attached to %v, want %v", app.Incarnation(), node.Incarnation())
	}
}

// An application that attaches while its fabricd joins gets the node's ID. If its context
// ends before, the error has the reason why the node waits.
func TestAttachWaitsForAFabricdThatJoins(t *testing.T) {
	h := config(t, "host")
	h.Host = true
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.DataPort = ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	host, c := clusterOf(t, h)
	host.Close()
	c.Socket = filepath.Join(filepath.Dir(c.StateDir), "app")
	joining := make(chan *embed.Node, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		n, err := embed.Start(ctx, c)
		if err != nil {
			t.Error(err)
		}
		joining <- n
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(c.Socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no socket")
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := fabric.Attach(short, c.Socket); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the node has no ID yet: ") {
		t.Errorf("Attach without a host: %v", err)
	}
	start(t, h)
	app, err := fabric.Attach(t.Context(), c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	node := <-joining
	if node == nil {
		t.FailNow()
	}
	defer node.Close()
	if app.Incarnation() != node.Incarnation() || app.ID() == fabric.NoNode {
		t.Errorf("attached to %v, want %v", app.Incarnation(), node.Incarnation())
	}
}
