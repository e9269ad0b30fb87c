// Command survive keeps working when a node is lost. The client asks any node where a
// server listens; when that node is lost, its calls fail with ECONNRESET, and it asks
// again elsewhere, or waits until a node comes back. The server attaches again when its
// own fabricd does. In two terminals; then kill the second fabricd and start it again:
//
//	FABRIC_SOCKET=./node.sock go run ./examples/survive serve
//	FABRIC_SOCKET=./host.sock go run ./examples/survive dial
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

const port = 2054

func main() {
	run := map[string]func() error{"serve": serve, "dial": dial}[os.Args[len(os.Args)-1]]
	if len(os.Args) != 2 || run == nil {
		log.Fatal("usage: survive serve | survive dial")
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// serve listens for as long as the program runs, however often its fabricd goes away.
func serve() error {
	for {
		err := listen()
		if !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ECONNRESET) {
			return err // it would be the same next time
		}
		fmt.Println("no fabricd:", err)
		<-time.After(time.Second)
	}
}

// listen echoes on every connection until the node's fabricd goes away.
func listen() error {
	node, err := fabric.Attach(context.Background(), "") // $FABRIC_SOCKET
	if err != nil {
		return err
	}
	defer node.Close()
	l, err := node.Listen(port)
	if err != nil {
		return err
	}
	fmt.Println("listening at", l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // an error ends this client's connection and no other
		}()
	}
}

// dial asks one question after the other. One without an answer is asked again on the
// next connection: a server may have seen it twice.
func dial() error {
	node, err := fabric.Attach(context.Background(), "") // $FABRIC_SOCKET
	if err != nil {
		return err
	}
	defer node.Close()
	defer node.OnEvent(func(ev fabric.Event) { fmt.Println("event:", ev) })()
	for question := 1; ; {
		if conn, err := find(node); err != nil {
			fmt.Println("no server:", err)
		} else {
			fmt.Printf("question %d goes to %v\n", question, conn.RemoteAddr())
			err = ask(conn, &question)
			fmt.Printf("question %d has no answer: %v\n", question, err)
			continue // another node may answer at once
		}
		select {
		case <-time.After(time.Second):
		case <-node.Done():
			return errors.New("the fabricd of this machine went away")
		}
	}
}

// find connects to the first node at which a server listens.
func find(node *fabric.Node) (*fabric.Conn, error) {
	ids, _, err := node.Nodes()
	for _, id := range ids {
		var conn *fabric.Conn
		if conn, err = node.DialAddr(context.Background(), fabric.Addr{Node: id, Port: port}); err == nil {
			return conn, nil
		}
	}
	return nil, err // of the last: ECONNREFUSED, or ENODEV if it was just lost
}

// ask asks until the connection fails: with ECONNRESET if the peer was lost.
func ask(conn *fabric.Conn, question *int) error {
	defer conn.Close()
	for answers := bufio.NewReader(conn); ; *question++ {
		if _, err := fmt.Fprintln(conn, "question", *question); err != nil {
			return err
		}
		if _, err := answers.ReadString('\n'); err != nil {
			return err
		}
		<-time.After(200 * time.Millisecond)
	}
}
