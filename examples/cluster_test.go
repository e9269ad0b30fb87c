package examples

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A cluster is the host and the second node that the commands of README.md start.
type cluster struct {
	dir        string // where every command runs
	bin        string // fabricd and the examples
	env        []string
	host, node string // the `fabricd run` of each
	nodeRuns   *process
}

// build builds fabricd and every example.
func build(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	// As other tests build fabricd, so that the build cache has it.
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin, "../cmd/fabricd", "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// startCluster runs the commands of README.md, with other ports and an address that no other
// test process has.
func startCluster(t *testing.T, bin string) *cluster {
	t.Helper()
	ip := fmt.Sprintf("127.%d.%d.1", 64+rand.IntN(128), rand.IntN(256))
	data, gossip := freePort(t, ip), freePort(t, ip)
	change := strings.NewReplacer("127.0.0.1", ip, "7700", data, "7710", freePort(t, ip), "7711", freePort(t, ip))
	c := &cluster{dir: t.TempDir(), bin: bin}
	// The command line of the second node has other ports, and a flag wins.
	c.env = []string{"FABRIC_BIND=" + ip, "FABRIC_DATA_PORT=" + data, "FABRIC_GOSSIP_PORT=" + gossip, "FABRIC_DETECTION=fast"}
	var fabricd []string
	for _, command := range indented(t, "README.md") {
		if strings.HasPrefix(command, "fabricd ") {
			fabricd = append(fabricd, change.Replace(command+" "))
		}
	}
	if len(fabricd) != 3 {
		t.Fatalf("README.md has %q, want the commands init, run and run", fabricd)
	}
	if !c.fabricd(t, fabricd[0]).wait() {
		t.Fatal(fabricd[0])
	}
	c.host, c.node = fabricd[1], fabricd[2]
	c.run(t, c.host)
	c.nodeRuns = c.run(t, c.node)
	return c
}

// fabricd starts a command of fabricd.
func (c *cluster) fabricd(t *testing.T, command string) *process {
	t.Helper()
	args := strings.Fields(command)
	cmd := exec.Command(filepath.Join(c.bin, args[0]), args[1:]...)
	cmd.Dir, cmd.Env = c.dir, append(environ(), c.env...)
	return start(t, cmd)
}

// run starts a `fabricd run` and waits until its node is in the cluster.
func (c *cluster) run(t *testing.T, command string) *process {
	t.Helper()
	p := c.fabricd(t, command)
	t.Cleanup(func() {
		p.stop()
		if p.cmd.ProcessState.ExitCode() > 0 { // -1: the test has killed it
			t.Errorf("%v; %s", p.cmd.ProcessState, p.said())
		}
	})
	_, admin, _ := strings.Cut(command, "--admin ")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		health := exec.CommandContext(ctx, filepath.Join(c.bin, "fabricd"), "health", "--admin", strings.TrimSpace(admin))
		health.Dir, health.Env = c.dir, environ()
		out, err := health.CombinedOutput()
		if err == nil {
			return p
		}
		if ctx.Err() != nil || p.ended() {
			t.Fatalf("%s: no healthy node: %s\n%s", command, out, p.said())
		}
		<-time.After(20 * time.Millisecond) // another process's state has no event
	}
}

// environ is this process's environment without settings of fabricd.
func environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FABRIC_") {
			env = append(env, kv)
		}
	}
	return env
}

// freePort returns a port that is free for TCP and UDP at ip, below the range from which
// the kernel chooses: a node that is started again finds it free.
func freePort(t *testing.T, ip string) string {
	t.Helper()
	for range 100 {
		at := net.JoinHostPort(ip, strconv.Itoa(20_000+rand.IntN(8_000)))
		l, err := net.Listen("tcp", at)
		if err != nil {
			continue
		}
		defer l.Close()
		packets, err := net.ListenPacket("udp", at)
		if err != nil {
			continue
		}
		defer packets.Close()
		_, port, _ := net.SplitHostPort(at)
		return port
	}
	t.Fatal("no port is free for TCP and UDP")
	return ""
}

// indented returns the commands in a text file: its lines that are indented as code,
// those that end in a backslash joined with the next.
func indented(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("\\\n"), nil)
	var commands []string
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	return commands
}
