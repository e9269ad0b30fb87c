// Command embedded is a node of the fabric inside a program: no fabricd runs. The
// server makes a cluster and is its host; the client joins with the address and the
// token that the server has put into a directory. In two terminals:
//
//	go run ./examples/embedded serve ./cluster
//	go run ./examples/embedded dial ./cluster
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
)

const port = 2055

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(ctx, args[1])
	case len(args) == 2 && args[0] == "dial":
		return dial(ctx, args[1])
	}
	return errors.New("usage: embedded serve DIR | embedded dial DIR")
}

// config returns the settings common to both nodes: free ports on this machine.
func config(dir, name string) embed.Config {
	return embed.Config{
		Name: name, StateDir: filepath.Join(dir, name),
		Bind: "127.0.0.1", DataPort: -1, GossipPort: -1,
		TokenFile: filepath.Join(dir, "join.token"),
	}
}

// serve is the host of a cluster until the program is interrupted.
func serve(ctx context.Context, dir string) error {
	c := config(dir, "host")
	c.Host = true
	if _, err := os.Stat(c.StateDir); errors.Is(err, os.ErrNotExist) { // the first time
		token, err := embed.Init(c)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.TokenFile, []byte(token), 0o600); err != nil {
			return err
		}
	}
	node, err := embed.Start(ctx, c)
	if err != nil {
		return err
	}
	defer node.Close() // the other nodes see that it has left
	defer node.OnEvent(func(ev fabric.Event) { fmt.Println("event:", ev) })()
	l, err := node.Listen(port)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "host.addr"), []byte(node.DataAddr()), 0o600); err != nil {
		return err
	}
	fmt.Printf("node %d at %s\n", node.ID(), node.DataAddr())
	for {
		conn, err := l.AcceptConn(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "hello from node %d", node.ID()); err != nil {
			fmt.Println(err)
		}
		conn.Close()
	}
}

// dial joins the cluster, reads the host's text, and leaves.
func dial(ctx context.Context, dir string) error {
	host, err := os.ReadFile(filepath.Join(dir, "host.addr"))
	if err != nil {
		return err
	}
	c := config(dir, "node")
	c.Join = []string{string(host)}
	node, err := embed.Start(ctx, c)
	if err != nil {
		return err
	}
	defer node.Close()
	conn, err := node.DialAddr(ctx, fabric.Addr{Node: fabric.Host, Port: port})
	if err != nil {
		return err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	fmt.Printf("node %d reads: %s\n", node.ID(), text)
	return nil
}
