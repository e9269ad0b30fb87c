// Command echo is the smallest application of a fabric: a server sends received bytes
// back, and a client sends it the lines of its standard input. Each attaches to the
// fabricd of its machine, and gets a net.Listener or a net.Conn there.
// The client finds the server, which may be on any node, by the name of its service. In
// two terminals:
//
//	FABRIC_SOCKET=./host.sock go run ./examples/echo serve
//	FABRIC_SOCKET=./node.sock go run ./examples/echo dial echo
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/fabricd/fabricd/fabric"
)

func main() {
	node, err := fabric.Attach(context.Background(), "") // $FABRIC_SOCKET
	if err != nil {
		log.Fatal(err)
	}
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = serve(node)
	case len(args) == 2 && args[0] == "dial":
		err = dial(node, args[1])
	default:
		err = errors.New("usage: echo serve | echo dial echo")
	}
	node.Close()
	if err != nil {
		log.Fatal(err)
	}
}

// serve accepts connections until the program is interrupted.
func serve(node *fabric.Node) error {
	l, err := node.Listen(0, fabric.Service("echo"))
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("serving echo at", l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go echo(conn)
	}
}

// echo serves one connection until the client closes it or is lost.
func echo(conn net.Conn) {
	defer conn.Close()
	n, err := io.Copy(conn, conn)
	if err != nil {
		fmt.Printf("%v: lost after %d bytes: %v\n", conn.RemoteAddr(), n, err)
		return
	}
	fmt.Printf("%v: closed after %d bytes\n", conn.RemoteAddr(), n)
}

// dial sends each line of standard input and prints the answer.
func dial(node *fabric.Node, address string) error {
	conn, err := node.Dial(context.Background(), address)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Println("connected to", conn.RemoteAddr())
	answers := bufio.NewReader(conn)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := fmt.Fprintln(conn, lines.Text()); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Print("echo: ", answer)
	}
	return lines.Err()
}
