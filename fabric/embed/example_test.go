package embed_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
)

// Two nodes inside one program, without a fabricd: the host makes the cluster and a token, and
// the other node joins with it. On two machines each has a program and a StateDir of its own.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "embed")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	c := embed.Config{Host: true, Name: "host", StateDir: filepath.Join(dir, "host"), Bind: "127.0.0.1", DataPort: -1, GossipPort: -1}
	token, err := embed.Init(c) // once: the cluster is in StateDir then
	if err != nil {
		log.Fatal(err)
	}
	host, err := embed.Start(ctx, c)
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()

	tokenFile := filepath.Join(dir, "join.token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		log.Fatal(err)
	}
	node, err := embed.Start(ctx, embed.Config{Name: "web-1", StateDir: filepath.Join(dir, "node"), Bind: "127.0.0.1", DataPort: -1, GossipPort: -1,
		Join: []string{host.DataAddr()}, TokenFile: tokenFile})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close() // the host sees that it has left

	l, err := host.Listen(2050)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(conn, "hello from the host")
		conn.Close()
	}()
	conn, err := node.DialAddr(ctx, fabric.Addr{Node: fabric.Host, Port: 2050})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	fmt.Printf("node %d: %s %v\n", node.ID(), text, err)
	// Output: node 1: hello from the host <nil>
}
