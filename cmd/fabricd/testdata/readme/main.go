package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/fabricd/fabricd/fabric"
)

func main() {
	n, err := fabric.Attach(context.Background(), "") // $FABRIC_SOCKET
	if err != nil {
		log.Fatal(err)
	}
	c, err := n.Dial(context.Background(), "echo") // a net.Conn
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(c, "hello from node", n.ID())
	c.CloseWrite()
	os.Stdout.ReadFrom(c) // until the server closes too
	c.Close()
}
