package fabric_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// on attaches to node i of a cluster. A program on a machine with a fabricd leaves the field
// Attach of a Dialer and a ListenConfig nil.
func on(c *fabrictest.Cluster, i int) func(context.Context) (*fabric.Node, error) {
	return func(context.Context) (*fabric.Node, error) { return c.App(i, false), nil }
}

// greet says hello to each connection until the listener ends.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(conn, "hello")
		conn.Close()
	}
}

// A client goes on when its fabricd is restarted: the Dialer attaches to the next one.
func ExampleDialer() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	l, err := cluster.Node(0).Listen(0, fabric.Service("greeter"))
	if err != nil {
		log.Fatal(err)
	}
	go greet(l)

	d := &fabric.Dialer{Attach: on(cluster, 1)}
	defer d.Close()
	for range 2 {
		conn, err := d.Dial(ctx, "greeter")
		if err != nil {
			log.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		fmt.Printf("%s %v\n", text, err)
		conn.Close()
		cluster.Restart(1)
	}
	// Output:
	// hello <nil>
	// hello <nil>
}

// A server goes on when its fabricd is restarted: its listener serves the name again.
func ExampleListenConfig() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	back := make(chan struct{})
	config := fabric.ListenConfig{Attach: on(cluster, 0), Lost: func(err error) {
		if err == nil {
			close(back)
		}
	}}
	defer config.Close()
	l, err := config.Listen(ctx, 0, fabric.Service("greeter"))
	if err != nil {
		log.Fatal(err)
	}
	go greet(l)

	cluster.Restart(0)
	<-back
	d := &fabric.Dialer{Attach: on(cluster, 1)} // waits until the name is known on its node
	defer d.Close()
	conn, err := d.Dial(ctx, "greeter")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	fmt.Printf("%s %v\n", text, err)
	// Output: hello <nil>
}

// A program that has to know of every service is called for each: those that are there, and
// then each change.
func ExampleNode_OnService() {
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	events := make(chan fabric.ServiceEvent, 2)
	cancel := cluster.Node(1).OnService(func(ev fabric.ServiceEvent) { events <- ev })
	defer cancel()

	l, err := cluster.Node(0).Listen(2050, fabric.Service("db"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-events)
	l.Close()
	fmt.Println(<-events)
	// Output:
	// service db@node-0 (0:2050) added
	// service db@node-0 (0:2050) removed
}

// Two applications of one node share memory: one maps the other's window, and each sees what
// the other stores.
func ExampleEndpoint_Mmap() {
	ctx := context.Background()
	cluster := fabrictest.Start(1)
	defer cluster.Close()
	owner, user := pair(ctx, cluster.Node(0), cluster.App(0, false))
	mem, off := onePage(cluster.Node(0), owner)
	defer mem.Close()

	m, err := user.Mmap(off, fabric.PageSize, fabric.ProtRead|fabric.ProtWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	copy(m.Bytes(), "written by the peer")
	fmt.Printf("%s\n", mem.Bytes()[:19])
	// Output: written by the peer
}
