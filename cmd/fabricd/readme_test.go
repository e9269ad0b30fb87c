package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readmeCommands returns the commands of a section: its indented lines, those
// that end in a backslash joined with the next.
func readmeCommands(t *testing.T, section string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(readme(t), section)
	if !ok {
		t.Fatalf("README.md has no %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	rest = strings.ReplaceAll(rest, "\\\n", " ")
	var all []string
	for line := range strings.Lines(rest) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			command, _, _ = strings.Cut(command, "#")
			all = append(all, strings.TrimSpace(command))
		}
	}
	return all
}

func TestREADMEIsShortAndTrue(t *testing.T) {
	text := readme(t)
	if n := strings.Count(text, "\n"); n > 90 {
		t.Errorf("README.md has %d lines, want 90 at most", n)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range readmeCommands(t, "# fabricd\n") {
		target, ok := strings.CutPrefix(command, "make ")
		if !ok || !strings.Contains(string(makefile), "\n"+target+": ") {
			t.Errorf("%q is no target of the Makefile", command)
		}
	}
	for _, link := range []string{"ARCHITECTURE.md", "LICENSE", "internal/wire/SPEC.md", "internal/attach/proto/SPEC.md"} {
		if !strings.Contains(text, "("+link+")") {
			t.Errorf("README.md does not lead to %s", link)
		}
		if _, err := os.Stat(filepath.Join("../..", link)); err != nil {
			t.Error(err)
		}
	}
	_, block, _ := strings.Cut(text, "```go\n")
	block, _, _ = strings.Cut(block, "```")
	program, err := os.ReadFile("testdata/readme/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if block != string(program) {
		t.Error("the program in README.md is not testdata/readme/main.go, which is what is tested")
	}
}

// TestREADMECommands runs the commands of README.md, and its program on the cluster.
func TestREADMECommands(t *testing.T) {
	_, dir := self(t)
	var last string
	for _, command := range readmeCommands(t, "## A cluster\n") {
		if command != "" {
			last = readmeStep(t, dir, command)
		}
	}
	if !strings.Contains(last, "RTT") && !strings.Contains(last, "ms") && !strings.Contains(last, "µs") {
		t.Errorf("`fabricd ping` prints\n%s", last)
	}
	connectAsREADME(t, dir)
	host, err := fabric.Attach(t.Context(), filepath.Join(dir, "cluster", "host", "app.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	l, err := host.Listen(0, fabric.Service("echo"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan string, 1)
	go func() {
		conn, err := l.AcceptConn(t.Context())
		if err != nil {
			received <- err.Error()
			return
		}
		defer conn.Close()
		text, err := io.ReadAll(io.TeeReader(conn, conn))
		received <- fmt.Sprint(string(text), err)
	}()
	program := exec.CommandContext(t.Context(), moduleOfREADME(t))
	// The module is beside the checkout, and the cluster within it.
	_, socket, ok := strings.Cut(readme(t), "then this with `FABRIC_SOCKET=../fabricd/")
	socket, _, _ = strings.Cut(socket, "`")
	if !ok {
		t.Fatal("README.md does not say which socket the program uses, seen from its own module")
	}
	program.Env = append(os.Environ(), "FABRIC_SOCKET="+filepath.Join(dir, socket))
	if out, err := program.CombinedOutput(); err != nil || string(out) != "hello from node 1\n" {
		t.Errorf("the program of README.md: %v, and printed\n%s", err, out)
	}
	if got, want := <-received, "hello from node 1\n<nil>"; got != want {
		t.Errorf("the host received %q, want %q", got, want)
	}
}

// moduleOfREADME builds the program of README.md in a module of its own, as README.md says,
// and returns the path of the program.
func moduleOfREADME(t *testing.T) string {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(readme(t), "needs `replace ")
	line, _, _ = strings.Cut(line, "`")
	if !ok {
		t.Fatal("README.md does not say what a go.mod needs")
	}
	program, err := os.ReadFile("testdata/readme/main.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod := "module hello\n\ngo 1.26\n\nreplace " + strings.Replace(line, "../fabricd", source, 1) + "\n"
	for name, text := range map[string]string{"main.go": string(program), "go.mod": mod} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", "hello"}} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return filepath.Join(dir, "hello")
}

// connectAsREADME runs the commands of the section about applications that are there, with
// a server and a port of the test's, and talks to the server through them.
func connectAsREADME(t *testing.T, dir string) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return // closed above
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // an error is seen at the other end
			}()
		}
	}()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	local := free.Addr().String()
	free.Close()
	commands := readmeCommands(t, "## Connect what you have\n")
	if len(commands) != 2 {
		t.Fatalf("commands %q, want expose and forward", commands)
	}
	for _, command := range commands {
		command = strings.Replace(command, " localhost:5432", " "+server.Addr().String(), 1)
		command = strings.Replace(command, " localhost:15432", " "+local, 1)
		readmeStep(t, dir, command)
	}
	err = until(t.Context(), func() error {
		c, err := net.Dial("tcp", local)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := fmt.Fprintln(c, "hello"); err != nil {
			return err
		}
		if got, err := bufio.NewReader(c).ReadString('\n'); got != "hello\n" {
			return fmt.Errorf("%q, %w", got, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// readmeStep runs one command in dir. `fabricd up`, expose and forward stay until the test
// ends, and the nodes of up are waited for.
func readmeStep(t *testing.T, dir, command string) string {
	t.Helper()
	args := strings.Fields(command)
	if args[0] != "fabricd" {
		t.Fatalf("README.md: %q: want a fabricd command", command)
	}
	cmd, _ := self(t, args[1:]...)
	cmd.Dir = dir
	if !slices.Contains([]string{"up", "expose", "forward"}, args[1]) {
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// It fails only if the process has ended, which Wait then reports.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, log.String())
		}
	})
	_, cluster, up := strings.Cut(command, "--dir ")
	if !up {
		return ""
	}
	for _, node := range []string{"host", "node-1", "node-2"} {
		err := until(t.Context(), func() error {
			_, stderr, code := run(t, nil, "health", "--admin", filepath.Join(dir, cluster, node, "admin.sock"))
			if code != exitOK {
				return fmt.Errorf("%s", stderr)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %s: %v", command, node, err)
		}
	}
	return ""
}
