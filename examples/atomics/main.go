// Command atomics counts: the server owns a counter in a window of memory, and clients
// draw tickets with fetch-adds, in which the server has no part. No two clients draw the
// same ticket, and none is missing. In two terminals, or more with the second:
//
//	FABRIC_SOCKET=./host.sock go run ./examples/atomics serve
//	FABRIC_SOCKET=./node.sock go run ./examples/atomics dial 0:2053
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/fabricd/fabricd/fabric"
)

const tickets = 1000 // that a client draws

func main() {
	ctx := context.Background()
	node, err := fabric.Attach(ctx, "") // $FABRIC_SOCKET
	if err != nil {
		log.Fatal(err)
	}
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = serve(ctx, node)
	case len(args) == 2 && args[0] == "dial":
		err = dial(ctx, node, args[1])
	default:
		err = errors.New("usage: atomics serve | atomics dial NODE:PORT")
	}
	node.Close()
	if err != nil {
		log.Fatal(err)
	}
}

// serve opens the same page to every client, as a window of its connection.
func serve(ctx context.Context, node *fabric.Node) error {
	mem, err := node.Alloc(fabric.PageSize) // for as long as the program runs
	if err != nil {
		return err
	}
	counter, err := mem.Word64(0)
	if err != nil {
		return err
	}
	l, err := node.Listen(2053)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening at", l.Addr())
	for {
		conn, err := l.AcceptConn(ctx)
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := share(conn, mem); err != nil {
				fmt.Printf("%v: lost: %v\n", conn.RemoteAddr(), err)
			}
			fmt.Println("the counter is at", counter.Load())
		}()
	}
}

// share registers mem for one client, until the client closes its connection.
func share(conn *fabric.Conn, mem *fabric.Memory) error {
	offset, err := conn.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, offset); err != nil { // where the client finds the counter
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// dial draws tickets: the value that a fetch-add returns is this client's alone.
func dial(ctx context.Context, node *fabric.Node, address string) error {
	conn, err := node.DialContext(ctx, "scif", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ep := conn.(*fabric.Conn).Endpoint()
	var counter int64
	if _, err := fmt.Fscanln(conn, &counter); err != nil {
		return err
	}
	var ticket uint64
	for range tickets {
		if ticket, err = ep.FetchAdd64(ctx, counter, 1); err != nil {
			return err
		}
	}
	fmt.Printf("drew %d tickets, the last is number %d\n", tickets, ticket)
	return nil
}
