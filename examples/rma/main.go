// Command rma writes into the memory of another process. The server registers a window
// and polls a signal word behind the data; the client puts a block and its signal with
// one call. A poller that sees the signal sees the whole block. In two terminals:
//
//	FABRIC_SOCKET=./host.sock go run ./examples/rma serve
//	FABRIC_SOCKET=./node.sock go run ./examples/rma dial 0:2052
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/fabricd/fabricd/fabric"
)

const size = 1 << 20 // bytes of a block; the signal word lies behind it

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
		err = errors.New("usage: rma serve | rma dial NODE:PORT")
	}
	node.Close()
	if err != nil {
		log.Fatal(err)
	}
}

// serve opens its memory to one client and ends with it.
func serve(ctx context.Context, node *fabric.Node) error {
	l, err := node.Listen(2052)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening at", l.Addr())
	conn, err := l.AcceptConn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	mem, err := node.Alloc(size + fabric.PageSize)
	if err != nil {
		return err
	}
	defer mem.Close()
	offset, err := conn.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, offset); err != nil { // where the client finds the window
		return err
	}
	return poll(ctx, conn, mem)
}

// poll waits for one signal after the other until the client closes the connection.
func poll(ctx context.Context, conn *fabric.Conn, mem *fabric.Memory) error {
	signal, err := mem.Word64(size)
	if err != nil {
		return err
	}
	// A word in memory does not show that its writer is gone: the connection does.
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		_, err := conn.Read(make([]byte, 1)) // the client sends nothing
		end(err)
	}()
	for round := uint64(1); ; round++ {
		_, err := signal.Wait(ctx, func(v uint64) bool { return v == round })
		if errors.Is(context.Cause(ctx), io.EOF) {
			return nil // the client has closed after its last round
		} else if err != nil {
			return context.Cause(ctx)
		}
		whole := bytes.Count(mem.Bytes()[:size], []byte{byte(round)})
		fmt.Printf("round %d: %d of %d bytes are there\n", round, whole, size)
		if _, err := fmt.Fprintln(conn, round); err != nil { // the client may overwrite the block
			return err
		}
	}
}

// dial puts three blocks, each when the server has read the one before.
func dial(ctx context.Context, node *fabric.Node, address string) error {
	conn, err := node.DialContext(ctx, "scif", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ep := conn.(*fabric.Conn).Endpoint()
	answers := bufio.NewReader(conn)
	var window int64
	if _, err := fmt.Fscanln(answers, &window); err != nil {
		return err
	}
	for round := uint64(1); round <= 3; round++ {
		block := bytes.Repeat([]byte{byte(round)}, size)
		if err := ep.VPutSignal(block, window, fabric.Notice{Offset: window + size, Value: round}); err != nil {
			return err
		}
		var seen uint64
		if _, err := fmt.Fscanln(answers, &seen); err != nil {
			return err
		}
		fmt.Printf("round %d: put, and seen\n", seen)
	}
	return nil
}
