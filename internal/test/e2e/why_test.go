package e2e

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestWhyNamesTheWay asks the daemon which way messages take: between two
// applications of one node through a shared-memory path, once they talk, and to another
// node through a link.
func TestWhyNamesTheWay(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	l.talk(nodes[0], nodes[0], nodes[1]).shows("messages  shared-memory path\n", 2, "messages  path", 1, "rma       node: ", 3)
	if _, err := l.fabricd("why", "5:999", "--admin", nodes[0].adminSocket()); err == nil || !strings.Contains(err.Error(), "no connection at 5:999") {
		t.Errorf("a connection that is not there: %v", err)
	}
	if _, err := l.fabricd("why", "x"); err == nil || !strings.Contains(err.Error(), "NODE:PORT") {
		t.Errorf("no address: %v", err)
	}
}

// TestPathsLeftOut: with paths off two applications of two nodes talk over the link, and
// with no room for another path the second pair does.
func TestPathsLeftOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(0)
	off, few := l.member(nodes[0], "off", "--paths", "off"), l.member(nodes[0], "few", "--max-paths", "1")
	off.start()
	few.start()
	l.agree(nodes[0], off, few)
	l.talk(off, nodes[0]).shows("messages  socket: paths are off by the setting paths\n", 1)
	l.talk(few, nodes[0], nodes[0]).shows("messages  path", 1, "messages  socket: user 0 may have 1 paths (max-paths)\n", 1)
}

// TestPathsRunOut: a node that may have fewer paths than connections serves the others over
// the link, and says why.
func TestPathsRunOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	poor := l.member(host, "poor", "--max-paths", "8")
	poor.prefix = []string{"/bin/sh", "-c", `ulimit -n 192; exec "$@"`, "sh"}
	poor.start()
	l.agree(host, poor)
	talk := l.talk(poor, slices.Repeat([]*node{host}, 14)...)
	eventually(t, stepLimit, "some connections have a path, and the others a reason", func() error {
		if err := talk.once(); err != nil {
			return fmt.Errorf("%w: %w", errGiveUp, err)
		}
		said, err := l.fabricd("why", "--admin", poor.adminSocket())
		paths, without := strings.Count(said, "messages  path"), strings.Count(said, "may have 6 paths (max-paths)\n")
		if err == nil && (paths == 0 || without == 0 || paths+without != len(talk.conns)) {
			err = fmt.Errorf("%d have a path, %d a reason:\n%s", paths, without, said)
		}
		return err
	})
	if err := talk.once(); err != nil {
		t.Error(err)
	}
	if _, err := poor.status(); err != nil {
		t.Errorf("the node serves its operators no more: %v", err)
	}
}

// TestSharedMemoryLeftOut: with ^shm two applications of one node talk through it.
func TestSharedMemoryLeftOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host("--providers", "^shm")
	const why = "shared memory is left out by the setting providers"
	l.talk(host, host).shows("messages  shared-memory path", 0, "messages  socket: "+why+"\n", 2)
	if text, err := l.fabricd("status", "--admin", host.adminSocket()); err != nil || !strings.Contains(text, "none: "+why) {
		t.Errorf("status says %v\n%s", err, text)
	}
}

// A conversation is connections to an application at a node, which sends everything back.
type conversation struct {
	l     *lab
	at    *node
	conns []*fabric.Conn
}

// talk connects an application at n with one at each of the others.
func (l *lab) talk(n *node, others ...*node) *conversation {
	t := l.t
	t.Helper()
	ctx := within(t, stepLimit)
	listener, err := n.attach().Listen(0)
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
	talk := &conversation{l: l, at: n}
	for _, m := range others {
		c, err := m.attach().DialAddr(ctx, n.at(listener.Addr().(fabric.Addr).Port))
		if err != nil {
			t.Fatal(err)
		}
		talk.conns = append(talk.conns, c)
	}
	return talk
}

// once sends and receives a byte over each connection.
func (c *conversation) once() error {
	for _, conn := range c.conns {
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return err
		}
	}
	return nil
}

// shows goes on until `fabricd why` contains each text as often as it is to.
func (c *conversation) shows(textsAndCounts ...any) {
	c.l.t.Helper()
	eventually(c.l.t, stepLimit, "fabricd why shows the paths", func() error {
		if err := c.once(); err != nil {
			return err
		}
		said, err := c.l.fabricd("why", "--admin", c.at.adminSocket())
		if err != nil {
			return err
		}
		for i := 0; i < len(textsAndCounts); i += 2 {
			text, count := textsAndCounts[i].(string), textsAndCounts[i+1].(int)
			if strings.Count(said, text) != count {
				return fmt.Errorf("%q is not there %d times:\n%s", text, count, said)
			}
		}
		return nil
	})
}
