package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// upTestLimit bounds one test of up with processes.
const upTestLimit = 60 * time.Second

// An upRun is a `fabricd up --json` that a test reads.
type upRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan upLine // closed at the end of standard output
	stderr bytes.Buffer
	nodes  map[string]upLine
}

// startUp starts an up in tmp and returns when its nodes are ready.
func startUp(t *testing.T, tmp string, args ...string) *upRun {
	t.Helper()
	cmd, _ := self(t, append([]string{"up", "--json"}, args...)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	u := &upRun{t: t, cmd: cmd, lines: make(chan upLine, 64), nodes: map[string]upLine{}}
	cmd.Stderr = &u.stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it fails for one that has ended, as it should
	go func() {                                  // ends with up
		defer close(u.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			var l upLine
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				l = upLine{Event: "malformed", Reason: in.Text()}
			}
			u.lines <- l
		}
	}()
	u.event("ready", "")
	return u
}

// next returns the next line that want takes. It keeps the nodes that it passes.
func (u *upRun) next(what string, want func(upLine) bool) upLine {
	u.t.Helper()
	limit := time.After(upTestLimit)
	for {
		select {
		case l, ok := <-u.lines:
			switch {
			case !ok:
				u.t.Fatalf("up ended without %s: %v\n%s", what, u.cmd.Wait(), u.stderr.String())
			case want(l):
				return l
			case l.Event == "node":
				u.nodes[l.Name] = l
			case l.Event == "malformed":
				u.t.Fatalf("no JSON: %s", l.Reason)
			}
		case <-limit:
			u.t.Fatalf("no %s", what)
		}
	}
}

// event returns the next line with an event, of a name if it is not empty.
func (u *upRun) event(event, name string) upLine {
	u.t.Helper()
	return u.next(event+" "+name, func(l upLine) bool { return l.Event == event && (name == "" || l.Name == name) })
}

// end sends a signal and checks how up ends.
func (u *upRun) end(sig os.Signal) {
	u.t.Helper()
	if err := u.cmd.Process.Signal(sig); err != nil {
		u.t.Fatal(err)
	}
	u.event("stopped", "")
	for range u.lines {
		u.t.Error("it prints on behind its end")
	}
	if err := u.cmd.Wait(); err != nil {
		u.t.Errorf("%v, want exit code 0:\n%s", err, u.stderr.String())
	}
}

// kill kills a node, as a person does.
func (u *upRun) kill(name string) {
	u.t.Helper()
	if err := syscall.Kill(u.nodes[name].PID, syscall.SIGKILL); err != nil {
		u.t.Fatal(err)
	}
}

// talk exchanges messages between applications at two sockets.
func talk(ctx context.Context, one, two string) error {
	a, err := fabric.Attach(ctx, one)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := fabric.Attach(ctx, two)
	if err != nil {
		return err
	}
	defer b.Close()
	l, err := b.Listen(demoPort)
	if err != nil {
		return err
	}
	defer l.Close()
	answered := make(chan error, 1)
	go func() { // ends with the connection, which the caller waits for
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(c, c, 5)
			err = errors.Join(err, c.Close())
		}
		answered <- err
	}()
	c, err := a.DialAddr(ctx, fabric.Addr{Node: b.ID(), Port: demoPort})
	if err != nil {
		return err
	}
	defer c.Close()
	got := make([]byte, 5)
	if _, err = io.WriteString(c, "hello"); err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err == nil && string(got) != "hello" {
		err = fmt.Errorf("the answer is %q", got)
	}
	return errors.Join(err, <-answered)
}

// upTmp returns a directory with a path that is short enough for sockets.
func upTmp(t *testing.T) string {
	t.Helper()
	_, tmp := self(t)
	return tmp
}

// TestUp: two nodes, two applications that talk, a node that is killed, and an end
// that leaves nothing.
func TestUp(t *testing.T) {
	t.Parallel()
	tmp := upTmp(t)
	u := startUp(t, tmp, "--nodes", "2", "--verbose")
	host, node := u.nodes["host"], u.nodes["node-1"]
	if len(u.nodes) != 2 || host.ID == nil || *host.ID != fabric.Host || node.ID == nil || *node.ID != 1 {
		t.Fatalf("nodes %+v", u.nodes)
	}
	for _, n := range u.nodes {
		if out, stderr, code := run(t, nil, "status", "--admin", n.Admin); code != exitOK || !strings.Contains(out, n.Data) {
			t.Errorf("status of %s: exit code %d, no %s in %s%s", n.Name, code, n.Data, out, stderr)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), upTestLimit)
	defer cancel()
	if err := talk(ctx, node.Socket, host.Socket); err != nil {
		t.Errorf("two applications: %v", err)
	}
	u.kill("node-1")
	// Both come, in any order.
	endedOrLost := func(l upLine) bool { return l.Event == "ended" || l.Event == "lost" }
	first := u.next("end or loss of node-1", endedOrLost)
	second := u.next("end and loss of node-1", endedOrLost)
	if first.Event == second.Event || first.Name != "node-1" || second.Name != "node-1" {
		t.Errorf("got %+v and %+v, want ended and lost of node-1", first, second)
	}
	u.end(syscall.SIGTERM)
	if !strings.Contains(u.stderr.String(), "node-1   ") || !strings.Contains(u.stderr.String(), "joined a cluster") {
		t.Errorf("-v shows no log of node-1: %q", u.stderr.String())
	}
	nothingLeft(t, tmp)
}

// TestUpContinues: with --dir a cluster goes on, with --restart a node does, and
// neither the nodes nor the lock survive an up that is killed.
func TestUpContinues(t *testing.T) {
	t.Parallel()
	tmp := upTmp(t)
	dir := filepath.Join(tmp, "c")
	u := startUp(t, tmp, "--dir", dir, "--nodes", "2", "--restart", "--enable-faults")
	admin := u.nodes["node-1"].Admin
	if out, stderr, code := run(t, nil, "faults", "list", "--admin", admin); code != exitOK {
		t.Errorf("faults list: exit code %d, %s%s", code, out, stderr)
	}
	if out, stderr, code := run(t, nil, "events", "--once", "--admin", admin); code != exitOK || !strings.Contains(out, `"host"`) {
		t.Errorf("events --once: exit code %d, want the arrival of the host: %s%s", code, out, stderr)
	}
	if _, stderr, code := run(t, nil, "up", "--dir", dir); code != exitFail || !strings.Contains(stderr, "runs in "+dir+" already") {
		t.Errorf("a second up: exit code %d, %q", code, stderr)
	}
	u.kill("host")
	u.event("started", "host")
	if l := u.event("joined", "host"); *l.ID != fabric.Host || l.Generation <= u.nodes["host"].Generation {
		t.Errorf("the host is back as %+v, was %+v", l, u.nodes["host"])
	}
	u.end(os.Interrupt)
	if left := processes(t, tmp); len(left) > 0 {
		t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}

	again := startUp(t, tmp, "--dir", dir, "--nodes", "3")
	if was, is := u.nodes["node-1"], again.nodes["node-1"]; *was.ID != *is.ID || is.Generation <= was.Generation {
		t.Errorf("node-1 was %+v and is %+v, want a later incarnation of the same node", was, is)
	}
	if len(again.nodes) != 3 || *again.nodes["node-2"].ID != 2 {
		t.Errorf("nodes %+v, want a new one with ID 2", again.nodes)
	}
	if err := again.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = again.cmd.Wait() // it was killed
	noneLeft(t, tmp)
	d, err := openUpDir(dir)
	if err != nil {
		t.Fatalf("after an up that was killed: %v", err)
	}
	d.close()
}

// TestUpThatCannotStart: the output has the reason and the log of the node that failed.
func TestUpThatCannotStart(t *testing.T) {
	t.Parallel()
	tmp := upTmp(t)
	dir := filepath.Join(tmp, "c")
	state := filepath.Join(dir, "node-1", "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "identity"), []byte("noise"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, _ := self(t, "up", "--dir", dir)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitFail {
		t.Errorf("%v, want exit code %d", err, exitFail)
	}
	for _, want := range []string{"node-1: fabricd: state-dir", "damaged", "fabricd: node-1 did not start: node-1 ended: exit status 2"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if left := processes(t, tmp); len(left) > 0 {
		t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}
}
