package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/gateway/spec"
)

// A command is one that runs in this process until it is ended.
type command struct {
	out    *lockedBuffer
	errs   *lockedBuffer
	cancel context.CancelFunc
	code   chan int
}

// begin runs a command line until end.
func begin(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &command{out: &lockedBuffer{}, errs: &lockedBuffer{}, cancel: cancel, code: make(chan int, 1)}
	go func() { c.code <- execute(ctx, args, nil, c.out, c.errs) }()
	t.Cleanup(cancel)
	return c
}

// says waits until the command has printed a text.
func (c *command) says(t *testing.T, text string) {
	t.Helper()
	untilTrue(t, text, func() bool { return strings.Contains(c.out.String(), text) || strings.Contains(c.errs.String(), text) }, c)
}

// untilTrue waits for something that has no event.
func untilTrue(t *testing.T, what string, ok func() bool, c *command) {
	t.Helper()
	err := within(t.Context(), upTestLimit, func() error {
		if !ok() {
			return fmt.Errorf("no %q:\n%s%s", what, c.out.String(), c.errs.String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// end is Ctrl-C.
func (c *command) end(t *testing.T) {
	t.Helper()
	c.cancel()
	if code := <-c.code; code != exitOK {
		t.Errorf("exit code %d:\n%s%s", code, c.out.String(), c.errs.String())
	}
}

// echoServer sends the received bytes back after their end.
func echoServer(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				text, _ := io.ReadAll(c)
				c.Write(text)
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

// through sends a text to an address and returns the answer.
func through(t *testing.T, address, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(upTestLimit))
	io.WriteString(c, text)
	c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("%q: %v", got, err)
	}
	return string(got)
}

// TestGatewaysOfAClusterOfProcesses follows docs/connect.md: expose and forward, their
// output, lines of the configuration that are reloaded, nc and cp.
func TestGatewaysOfAClusterOfProcesses(t *testing.T) {
	tmp := t.TempDir()
	config := filepath.Join(tmp, "fabricd.yaml")
	u := startUp(t, tmp, "--nodes", "2")
	host, node := u.nodes["host"], u.nodes["node-1"]
	target := echoServer(t)
	expose := begin(t, "expose", "db", target, "--admin", host.Admin)
	expose.says(t, "db is served by node 0 (host), target "+target+"; Ctrl-C ends it")
	forward := begin(t, "forward", "0", "db", "--admin", node.Admin, "--json")
	forward.says(t, "\n")
	var started spec.Event
	if err := json.Unmarshal([]byte(forward.out.String()), &started); err != nil || started.Event != spec.Started || started.At == "" {
		t.Fatalf("%s: %v", forward.out, err)
	}
	if got := through(t, started.At, "hello"); got != "hello" {
		t.Errorf("got %q", got)
	}
	expose.says(t, "1 opened: from node-1 (node 1), user ")
	expose.says(t, ": 5 B sent, 5 B received")
	untilTrue(t, "gateway without open connections", func() bool { // its end closes a moment behind the other one
		list, _, code := run(t, nil, "gateways", "--admin", node.Admin)
		return code == 0 && strings.Contains(list, "forward  127.0.0.1:0  db  command  listening  0     1")
	}, forward)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"expose", "db", "localhost:1"}, exitFail, "expose: db is taken on this node: by expose db=" + target},
		{[]string{"forward", target, "db"}, exitFail, "would come back to it"},
		{[]string{"expose", "käthe", "localhost:1"}, exitUsage, "want up to 63 letters"},
		{[]string{"expose", "db", "nowhere"}, exitUsage, "want host:port or the path of a Unix socket"},
		{[]string{"forward", "127.0.0.1:x", "db"}, exitUsage, "want a port from 0 to 65535"},
	} {
		_, stderr, code := run(t, nil, append(c.args, "--admin", host.Admin)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, %s", c.args, code, stderr)
		}
	}
	expose.end(t)
	forward.end(t)
	refusing := begin(t, "expose", "gone", freeAddress(t), "--admin", host.Admin)
	refusing.says(t, "gone is served")
	_, stderr, code := run(t, nil, "nc", "gone", "--socket", node.Socket)
	if want := "the target of an expose refused"; code != exitFail || !strings.HasPrefix(stderr, "fabricd: connect 1:") || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("nc to a target that refuses: exit code %d, %s", code, stderr)
	}
	refusing.end(t)

	// A node of its own with lines, and without a command.
	write := func(lines string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, second := freeAddress(t), freeAddress(t)
	write("forward: [" + first + "=db]\nexpose: [db=" + target + "]\naccess: ['service:secret by none']\n")
	own := filepath.Join(tmp, "own")
	init, _ := self(t, "init", "--state-dir", filepath.Join(own, "state"), "--token-file", filepath.Join(own, "token"))
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fabricd, _ := self(t, "run", "--role", "host", "--config", config, "--state-dir", filepath.Join(own, "state"), "--bind", "127.0.0.1",
		"--data-port", "0", "--gossip-port", "0", "--socket", filepath.Join(own, "app.sock"), "--admin", filepath.Join(own, "admin.sock"))
	log := &lockedBuffer{}
	fabricd.Stderr = log
	if err := fabricd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { fabricd.Process.Kill(); fabricd.Wait() }()
	reached := func(address string) func() bool {
		return func() bool {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return err == nil
		}
	}
	lines := &command{out: log, errs: &lockedBuffer{}}
	untilTrue(t, "first forward", reached(first), lines)
	if got := through(t, first, "lines"); got != "lines" {
		t.Errorf("got %q", got)
	}
	write("forward: [" + second + "=db]\nexpose: [db=" + target + "]\naccess: ['service:secret by none']\n")
	if err := fabricd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	untilTrue(t, "second forward", reached(second), lines)
	if got := through(t, second, "again"); got != "again" {
		t.Errorf("got %q", got)
	}
	untilTrue(t, "end of the first forward", func() bool { return !reached(first)() }, lines)
	write("forward: [" + second + "=no such name]\n")
	if err := fabricd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	lines.says(t, "the settings cannot be used")
	if got := through(t, second, "still"); got != "still" {
		t.Errorf("got %q", got)
	}

	// The host's rules bar a name: the command says so, and what lists the node's names.
	barring := []string{"--admin", filepath.Join(own, "admin.sock")}
	secret := begin(t, append([]string{"expose", "secret", target}, barring...)...)
	secret.says(t, `secret is not served for now: the host does not let this node serve "secret": a rule of its setting access`)
	for list, want := range map[string]string{"services": "barred by the host", "gateways": " barred: a rule of its setting access"} {
		out, _, _ := run(t, nil, append([]string{list}, barring...)...)
		if !strings.Contains(out, want) || strings.Count(out, "secret") != 1 {
			t.Errorf("%s:\n%s", list, out)
		}
	}
	secret.end(t)

	// A fabricd that dies resets its clients' connections: its kernel must not end them.
	c, err := net.Dial("tcp", second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(upTestLimit))
	untilTrue(t, "connection", func() bool {
		list, _, _ := run(t, nil, "gateways", "--admin", filepath.Join(own, "admin.sock"))
		return strings.Contains(strings.Join(strings.Fields(list), " "), c.LocalAddr().String()+" db ")
	}, lines)
	if err := fabricd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the fabricd was killed: %v, want a reset", err)
	}
	u.end(syscall.SIGINT)
}

// freeAddress returns an address of loopback that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestFilesAndBytesOfAClusterOfProcesses: nc and cp.
func TestFilesAndBytesOfAClusterOfProcesses(t *testing.T) {
	tmp := t.TempDir()
	u := startUp(t, tmp, "--nodes", "2")
	host, node := u.nodes["host"], u.nodes["node-1"]
	text := strings.Repeat("many bytes ", 1<<16)
	from, into := filepath.Join(tmp, "from"), filepath.Join(tmp, "into")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(into, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(tmp, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	inbox := begin(t, "cp", "--listen", "inbox", "--into", into, "--socket", host.Socket)
	inbox.says(t, "takes files as inbox")
	if out, stderr, code := run(t, nil, "cp", from, "inbox:file", "--socket", node.Socket); code != 0 || !strings.Contains(out, "sent file, 704 KiB, SHA-256 ") {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	inbox.says(t, "took file, 704 KiB, from node-1, SHA-256 ")
	if got, err := os.ReadFile(filepath.Join(into, "file")); string(got) != text || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for args, want := range map[string]string{
		from + " inbox:file": `the receiver refuses: "file is there already"`,
		from + " inbox":      "want NAME: or NAME:AS",
		from + " inbox:a/b":  "want no directory",
		from + " nobody:":    `no node serves "nobody"`,
		into + " inbox:":     "not a regular file",
		pipe + " inbox:":     "not a regular file",
		"--listen inbox":     "want the directory",
	} {
		_, stderr, code := run(t, nil, append(append([]string{"cp"}, strings.Fields(args)...), "--socket", node.Socket)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("cp %s: exit code %d, %s", args, code, stderr)
		}
	}
	inbox.end(t)

	one, _ := self(t, "nc", "--listen", "box", "--socket", host.Socket)
	one.Stdin = strings.NewReader("from the listener")
	var received bytes.Buffer
	one.Stdout = &received
	if err := one.Start(); err != nil {
		t.Fatal(err)
	}
	defer one.Process.Kill()
	var out []byte
	err := within(t.Context(), upTestLimit, func() (err error) { // until it listens
		two, _ := self(t, "nc", "box", "--socket", node.Socket)
		two.Stdin = strings.NewReader(text)
		out, err = two.Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Wait(); err != nil || string(out) != "from the listener" || received.String() != text {
		t.Errorf("%v: received %q and %d bytes", err, out, received.Len())
	}
	u.end(syscall.SIGINT)
}
