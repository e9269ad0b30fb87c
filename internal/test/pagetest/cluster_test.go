package pagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
)

const (
	waitLimit = 40 * time.Second // for what takes seconds on an idle machine
	root      = "../../.."       // of the repository
)

// lacks reports whether the environment says that this machine has no such thing. What it
// does not say, and is missing, fails the test.
func lacks(t *testing.T, what string, commands ...string) bool {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("FABRICD_TEST_WITHOUT"), ","), what) {
		t.Logf("not tested: FABRICD_TEST_WITHOUT says that there is no %s here", what)
		return true
	}
	for _, c := range commands {
		if _, err := exec.LookPath(c); err != nil {
			t.Fatalf("this test needs %s: %v; install it, or say FABRICD_TEST_WITHOUT=%s", c, err, what)
		}
	}
	return false
}

// program is fabricd, built once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pagetest")
	if err != nil {
		return "", err
	}
	built = dir
	out, err := exec.Command("go", "build", "-o", dir+"/fabricd", root+"/cmd/fabricd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir + "/fabricd", nil
})

var built string // the directory of program

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// A cluster is one of real processes on loopback.
type cluster struct {
	t     *testing.T
	exe   string
	dir   string
	token string
	host  *node
}

// A node is one fabricd.
type node struct {
	name   string
	dir    string
	cmd    *exec.Cmd
	client *daemon.Client
	status daemon.Status
}

func (n *node) socket() string { return filepath.Join(n.dir, "app") }
func (n *node) admin() string  { return filepath.Join(n.dir, "admin") }
func (n *node) page() string   { return "http://" + n.status.HTTP + "/" }
func (n *node) id() string     { return fmt.Sprint(n.status.ID) }

// newCluster starts a host, with more arguments if there are some.
func newCluster(t *testing.T, more ...string) *cluster {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pt") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{t: t, exe: exe, dir: dir, token: filepath.Join(dir, "token")}
	c.command("init", "--name", "host", "--state-dir", filepath.Join(dir, "host", "state"), "--token-file", c.token)
	c.host = c.launch("host", append([]string{"--role", "host"}, more...)...)
	c.joined(c.host)
	return c
}

// command runs fabricd until it ends, and returns what it printed.
func (c *cluster) command(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.exe, args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("fabricd %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// node starts a node that joins.
func (c *cluster) node(name string, more ...string) *node {
	c.t.Helper()
	n := c.launch(name, append([]string{"--join", c.host.status.Data[0], "--token-file", c.token}, more...)...)
	c.joined(n)
	return n
}

// launch starts a fabricd, which is killed with the test.
func (c *cluster) launch(name string, more ...string) *node {
	c.t.Helper()
	n := &node{name: name, dir: filepath.Join(c.dir, name)}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(n.dir, "log"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	n.cmd = exec.Command(c.exe, slices.Concat([]string{"run", "--name", name, "--state-dir", filepath.Join(n.dir, "state"), "--bind", "127.0.0.1",
		"--data-port", "0", "--gossip-port", "0", "--socket", n.socket(), "--admin", n.admin(), "--http", "127.0.0.1:0", "--enable-faults"}, more)...)
	n.cmd.Stderr = log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	n.client = daemon.NewClient(n.admin())
	c.t.Cleanup(func() {
		n.client.Close()
		_ = n.cmd.Process.Kill() // it may have ended
		_ = n.cmd.Wait()
		if c.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			c.t.Logf("the last of %s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return n
}

// joined waits until a node has joined.
func (c *cluster) joined(n *node) {
	c.t.Helper()
	c.await(n.name+" to join", func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n.status, err = n.client.Status(ctx)
		if err == nil && n.status.State != "joined" {
			err = fmt.Errorf("it is %s: %s", n.status.State, n.status.Detail)
		}
		return err
	})
}

// await waits until check succeeds.
func (c *cluster) await(what string, check func() error) {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Since(began) > waitLimit {
			c.t.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
}

// fault breaks a node or its links, and returns what ends that.
func (c *cluster) fault(n *node, args ...string) (end func()) {
	c.t.Helper()
	c.command(slices.Concat([]string{"faults", "add", "--admin", n.admin()}, args)...)
	return func() {
		c.t.Helper()
		c.command("faults", "clear", "--admin", n.admin())
	}
}
