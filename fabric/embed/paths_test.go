package embed

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/engine"
)

// testConfig returns the configuration of a node on the loopback interface.
func testConfig(t *testing.T, name string) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{Name: name, StateDir: filepath.Join(dir, "state"), TokenFile: filepath.Join(dir, "token"),
		Bind: "127.0.0.1", DataPort: -1, GossipPort: -1, Detection: "fast",
		Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)}
}

func startTest(t *testing.T, ctx context.Context, c Config) *Node {
	t.Helper()
	n, err := Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// pair starts two nodes, the second configured by change, and connects them.
func pair(t *testing.T, ctx context.Context, change func(*Config)) (nodes [2]*Node, ends [2]*fabric.Conn) {
	t.Helper()
	host := testConfig(t, "host")
	host.Host = true
	token, err := Init(host)
	if err != nil {
		t.Fatal(err)
	}
	nodes[0] = startTest(t, ctx, host)
	c := testConfig(t, "node")
	change(&c)
	c.Join = []string{nodes[0].DataAddr()}
	if err := os.WriteFile(c.TokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes[1] = startTest(t, ctx, c)
	l, err := nodes[0].Listen(2050)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		ends[0], err = l.AcceptConn(ctx)
		accepted <- err
	}()
	if ends[1], err = nodes[1].DialAddr(ctx, fabric.Addr{Port: 2050}); err == nil {
		err = <-accepted
	}
	if err != nil {
		t.Fatal(err)
	}
	return nodes, ends
}

// conn returns a node's row of its one connection to another node.
func (n *Node) conn(t *testing.T) engine.ConnInfo {
	t.Helper()
	rows := n.daemon.Table("conns").([]engine.ConnInfo)
	if len(rows) != 1 {
		t.Fatalf("%d connections, want 1", len(rows))
	}
	return rows[0]
}

// exchange sends a byte to and fro until both nodes report via as the path of messages.
func exchange(t *testing.T, ctx context.Context, nodes [2]*Node, ends [2]*fabric.Conn, via string) {
	t.Helper()
	for i := 0; nodes[0].conn(t).Path != via || nodes[1].conn(t).Path != via || i < 8; i++ {
		for way := range ends {
			sent := []byte{byte(i), byte(way)}
			if _, err := ends[way].Write(sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 2)
			if _, err := io.ReadFull(ends[1-way], got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("received %v, %v, want %v", got, err, sent)
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("messages go by %+v and %+v, want %s", nodes[0].conn(t), nodes[1].conn(t), via)
		}
	}
}

func TestAnEmbeddedNodeWithoutPaths(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	nodes, ends := pair(t, ctx, func(c *Config) { c.Paths = "off" })
	exchange(t, ctx, nodes, ends, "call")
	if row := nodes[1].conn(t); row.Socket != nil || row.Why == "" {
		t.Errorf("%+v, want no path, and why", row)
	}
}
