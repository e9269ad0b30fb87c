package e2e

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestWhyNamesTheWay asks the daemon which way messages take: between two
// applications of one node through a channel, once they talk, and to another
// node through a link.
func TestWhyNamesTheWay(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	ctx := within(t, stepLimit)
	here := nodes[0].attach()
	listener, err := here.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the listener
		for {
			c, err := listener.AcceptConn(ctx)
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	var conns []*fabric.Conn
	for _, app := range []*fabric.Node{nodes[0].attach(), nodes[1].attach()} {
		c, err := app.Dial(ctx, nodes[0].at(listener.Addr().(fabric.Addr).Port))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	eventually(t, stepLimit, "fabricd why tells both ways", func() error {
		for _, c := range conns {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				return err
			}
		}
		text, err := l.fabricd("why", "--admin", nodes[0].adminSocket())
		if err != nil {
			return err
		}
		if strings.Count(text, "messages  channel\n") != 2 || strings.Count(text, "messages  socket: the peer is on another node\n") != 1 ||
			strings.Count(text, "rma       node: ") != 3 {
			return fmt.Errorf("it says\n%s", text)
		}
		return nil
	})
	if _, err := l.fabricd("why", "5:999", "--admin", nodes[0].adminSocket()); err == nil || !strings.Contains(err.Error(), "no connection at 5:999") {
		t.Errorf("a connection that is not there: %v", err)
	}
	if _, err := l.fabricd("why", "x"); err == nil || !strings.Contains(err.Error(), "NODE:PORT") {
		t.Errorf("no address: %v", err)
	}
}
