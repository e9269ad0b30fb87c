package embed_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds each wait of a test.
const patience = 20 * time.Second

// config returns the configuration of a node on the loopback interface.
func config(t *testing.T, name string) embed.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "embed") // a TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return embed.Config{
		Name:     name,
		StateDir: filepath.Join(dir, "state"),
		Bind:     "127.0.0.1", DataPort: -1, GossipPort: -1,
		Detection: "fast",
		Log:       zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	}
}

func start(t *testing.T, c embed.Config) *embed.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := embed.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// cluster starts a host and returns it with the configuration of a node that
// may join.
func cluster(t *testing.T) (host *embed.Node, node embed.Config) {
	t.Helper()
	c := config(t, "host")
	c.Host = true
	return clusterOf(t, c)
}

// clusterOf is cluster with a host of a certain configuration.
func clusterOf(t *testing.T, c embed.Config) (host *embed.Node, node embed.Config) {
	t.Helper()
	token, err := embed.Init(c)
	if err != nil {
		t.Fatal(err)
	}
	node = config(t, "node")
	node.TokenFile = filepath.Join(filepath.Dir(node.StateDir), "token")
	if err := os.WriteFile(node.TokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	host = start(t, c)
	node.Join = []string{host.DataAddr()}
	return host, node
}

func TestTwoNodesTalk(t *testing.T) {
	host, c := cluster(t)
	events := make(chan fabric.Event, 16)
	host.OnEvent(func(ev fabric.Event) { events <- ev })
	node := start(t, c)
	if added := <-events; added.Kind != fabric.NodeAdded || added.Node != node.ID() || added.Name != "node" {
		t.Errorf("the host saw %+v, want node %d added", added, node.ID())
	}
	if host.ID() != fabric.Host || node.ID() == fabric.Host || host.Cluster() != node.Cluster() {
		t.Errorf("host has ID %d, node %d", host.ID(), node.ID())
	}

	l, err := host.Listen(80) // this process's user is an administrator or not
	if errors.Is(err, syscall.EACCES) {
		l, err = host.Listen(2050)
	}
	if err != nil {
		t.Fatal(err)
	}
	echoed := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
			conn.Close()
		}
		echoed <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := node.DialAddr(ctx, l.Addr().(fabric.Addr))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("embedded")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "embedded" {
		t.Errorf("echoed %q, %v", got, err)
	}
	conn.Close()
	if err := <-echoed; err != nil {
		t.Errorf("echo: %v", err)
	}

	if err := node.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if left := <-events; left.Kind != fabric.NodeRemoved || left.Reason != "left" {
		t.Errorf("the host saw %+v, want the node to have left", left)
	}
	if _, err := node.Open(); err == nil {
		t.Error("a closed node opens endpoints")
	}
	if err := node.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestANodeComesBackWithItsID(t *testing.T) {
	_, c := cluster(t)
	node := start(t, c)
	before := node.Incarnation()
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	after := start(t, c).Incarnation()
	if after.Node != before.Node || after.Generation != before.Generation+1 {
		t.Errorf("%v came back as %v", before, after)
	}
}

func TestRingsAreSet(t *testing.T) {
	type rings struct {
		Slots     int    `json:"slots"`
		Data      int    `json:"data_bytes"`
		Release   int    `json:"release_percent"`
		HugePages string `json:"huge_pages"`
	}
	for name, tt := range map[string]struct {
		change func(*embed.Config)
		want   rings
	}{
		"default": {func(*embed.Config) {}, rings{256, 256 << 10, 25, "off"}},
		"set": {func(c *embed.Config) {
			c.RingSlots, c.RingData, c.RingRelease, c.RingHugePages = 1024, 1<<20, 50, "try"
		}, rings{1024, 1 << 20, 50, "try"}},
		"no release": {func(c *embed.Config) { c.RingRelease = -1 }, rings{256, 256 << 10, 0, "off"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := cluster(t)
			c.AdminSocket = filepath.Join(filepath.Dir(c.StateDir), "admin.sock")
			tt.change(&c)
			start(t, c)
			var got rings
			shown(t, c.AdminSocket, "status", "rings", &got)
			if got != tt.want {
				t.Errorf("rings are %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	for field, change := range map[string]func(*embed.Config){
		"state-dir":        func(c *embed.Config) { c.StateDir = "" },
		"name":             func(c *embed.Config) { c.Name = "no spaces" },
		"join":             func(c *embed.Config) { c.Join = []string{"nowhere"} },
		"bind":             func(c *embed.Config) { c.Bind = "localhost:1" },
		"data-port":        func(c *embed.Config) { c.DataPort = 70000 },
		"detection":        func(c *embed.Config) { c.Detection = "sometimes" },
		"lost-pair":        func(c *embed.Config) { c.LostPair = "forget" },
		"connect-timeout":  func(c *embed.Config) { c.ConnectTimeout = -time.Second },
		"cert":             func(c *embed.Config) { c.CA = "ca.pem" },
		"ring-slots":       func(c *embed.Config) { c.RingSlots = 5 },
		"conn-memory":      func(c *embed.Config) { c.ConnMemory = 4096 },
		"app-endpoints":    func(c *embed.Config) { c.AppEndpoints = -1 },
		"app-windows":      func(c *embed.Config) { c.AppWindows = 1 << 21 },
		"ring-data":        func(c *embed.Config) { c.RingData = -1 },
		"max-nodes":        func(c *embed.Config) { c.MaxNodes = -1 },
		"allowed-networks": func(c *embed.Config) { c.AllowedNetworks = []string{"10.1.1.1/8"} },
		"ring-release":     func(c *embed.Config) { c.RingRelease = 91 },
		"ring-huge-pages":  func(c *embed.Config) { c.RingHugePages = "often" },
		"token-file":       func(c *embed.Config) {},
	} {
		c := config(t, "node")
		change(&c)
		_, err := embed.Start(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("a wrong %s: got %v", field, err)
		}
	}
}
