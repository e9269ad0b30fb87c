package fabric_test

import (
	"context"
	"fmt"
	"io"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// A listener serves a name, and is dialed by that from another node.
func ExampleService() {
	c := fabrictest.Start(2) // in a program: fabric.Attach on two machines
	defer c.Close()
	l, err := c.Node(0).Listen(0, fabric.Service("greeter"))
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(conn, "hello")
		conn.Close()
	}()
	conn, err := c.Node(1).Dial(context.Background(), "greeter")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, _ := io.ReadAll(conn)
	fmt.Printf("%s from node %d\n", text, conn.RemoteAddr().(fabric.Addr).Node)
	_, err = c.Node(1).Dial(context.Background(), "printer")
	fmt.Println(err)
	// Output:
	// hello from node 0
	// connect node 1: no node serves "printer"
}

func ExampleNode_Services() {
	c := fabrictest.Start(2)
	defer c.Close()
	for i, name := range []string{"db", "web"} {
		if _, err := c.Node(i).Listen(2050, fabric.Service(name)); err != nil {
			fmt.Println(err)
		}
	}
	all, err := c.Node(1).Services()
	if err != nil {
		fmt.Println(err)
	}
	for _, s := range all {
		fmt.Println(s)
	}
	// Output:
	// db@node-0 (0:2050)
	// web@node-1 (1:2050)
}
