package examples

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A check runs both sides of an example and checks their output.
type check func(t *testing.T, c *cluster, serve, dial string)

var checks = map[string]check{
	"echo":     checkEcho,
	"http":     checkHTTP,
	"grpc":     checkGRPC,
	"postgres": checkPostgres,
	"rma":      checkRMA,
	"atomics":  checkAtomics,
	"embedded": checkEmbedded,
}

// TestExamples runs every example with the two commands of its doc comment.
func TestExamples(t *testing.T) {
	c := startCluster(t, build(t))
	t.Run("all", func(t *testing.T) {
		for name, check := range checks {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				serve, dial := commands(t, name)
				check(t, c, serve, dial)
			})
		}
	})
	// It kills a node that the others use.
	t.Run("survive", func(t *testing.T) {
		serve, dial := commands(t, "survive")
		checkSurvive(t, c, serve, dial)
	})
}

// TestEveryExampleIsListedAndRun holds the folder, README.md and the tests together.
func TestEveryExampleIsListedAndRun(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 40 {
		t.Errorf("README.md has %d lines, want 40 at most", n)
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		name := e.Name()
		if !strings.Contains(string(text), "\n| ["+name+"]("+name+"/") {
			t.Errorf("README.md does not list %s", name)
		}
		// The examples in test are tests themselves.
		if checks[name] == nil && name != "survive" && name != "test" {
			t.Errorf("no test runs %s", name)
		}
	}
	serve, dial := commands(t, "echo")
	if all := indented(t, "README.md"); !slices.Contains(all, serve) || !slices.Contains(all, dial) {
		t.Errorf("README.md has %q, want the commands of echo's doc comment", all)
	}
}

// commands returns the two commands of an example's doc comment.
func commands(t *testing.T, name string) (serve, dial string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(name, "main.go"), nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(f.Doc.Text()) {
		if command, ok := strings.CutPrefix(line, "\t"); ok {
			all = append(all, strings.TrimSpace(command))
		}
	}
	serves := len(all) > 0 && (strings.Contains(all[0], " serve") || strings.HasPrefix(all[0], "fabricd expose "))
	if len(all) != 2 || !serves || !strings.Contains(all[1], " dial") {
		t.Fatalf("the doc comment of %s has the commands %q, want one to serve and one to dial", name, all)
	}
	return all[0], all[1]
}

// program starts a command as a doc comment shows it: variables, `go run`, a folder of
// this one, arguments. The program is built already.
func (c *cluster) program(t *testing.T, command string) *process {
	t.Helper()
	vars, run, ok := strings.Cut(" "+command, " go run ./examples/")
	args := strings.Fields(run)
	if !ok || len(args) == 0 {
		t.Fatalf("%q is no go run ./examples/…", command)
	}
	cmd := exec.Command(filepath.Join(c.bin, args[0]), args[1:]...)
	cmd.Dir, cmd.Env = c.dir, append(environ(), strings.Fields(vars)...)
	return start(t, cmd)
}

func checkEcho(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect(`serving echo at 0:\d+`)
	client := c.program(t, dial)
	client.expect(`connected to 0:\d+`)
	for _, line := range []string{"hello, fabric", "and again"} {
		if _, err := fmt.Fprintln(client.stdin, line); err != nil {
			t.Fatal(err)
		}
		client.expect("echo: " + line)
	}
	client.stdin.Close()
	client.wait()
	server.expect(`1:\d+: closed after 24 bytes`)
}

func checkHTTP(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect(`serving pages at 0:\d+`)
	client := c.program(t, dial)
	client.expect(`200 OK: hello from 0:\d+`)
	client.wait()
	server.expect(`GET /hello from 1:\d+`)
	wrong := c.program(t, strings.Replace(dial, "pages.fabric", "pages", 1))
	wrong.expect(`.*"pages" is no service: want a name below \.fabric.*`)
}

func checkGRPC(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect(`serving greeter at 0:\d+`)
	client := c.program(t, dial)
	client.expect(`hello, fabric, from 0:\d+`)
	client.wait()
	server.expect(`Greet fabric from 1:\d+`)
}

func checkRMA(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect("listening at 0:2052")
	client := c.program(t, dial)
	for round := 1; round <= 3; round++ {
		server.expect(fmt.Sprintf("round %d: 1048576 of 1048576 bytes are there", round))
		client.expect(fmt.Sprintf("round %d: put, and seen", round))
	}
	client.wait()
	server.wait()
}

// checkAtomics has three clients at a time, of which one is on the server's node.
func checkAtomics(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect("listening at 0:2053")
	var clients []*process
	for _, command := range []string{dial, dial, strings.Replace(dial, "node.sock", "host.sock", 1)} {
		clients = append(clients, c.program(t, command))
	}
	var last []string
	for _, client := range clients {
		last = append(last, client.expect(`drew 1000 tickets, the last is number (\d+)`))
		client.wait()
	}
	if !slices.Contains(last, "2999") {
		t.Errorf("the last tickets are %v, want 2999 among them", last)
	}
	server.expect("the counter is at 3000")
}

func checkEmbedded(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect(`node 0 at 127\.0\.0\.1:\d+`)
	for range 2 { // the second time the node has joined before
		client := c.program(t, dial)
		client.expect("node 1 reads: hello from node 0")
		client.wait()
		server.expect(`event: node 1\.\d+ removed: left`)
	}
	server.stop()
	server.wait()
}

// checkSurvive kills the server's node, lets another server take over and kills that,
// and lets the node come back.
func checkSurvive(t *testing.T, c *cluster, serve, dial string) {
	server := c.program(t, serve)
	server.expect("listening at 1:2054")
	client := c.program(t, dial)
	client.expect("question 1 goes to 1:2054")

	c.nodeRuns.kill()
	// The call fails before the event comes, but two goroutines print that.
	client.expect(`question \d+ has no answer: .*connection reset by peer.*`, `event: node 1\.\d+ removed: crashed`)
	client.expect("no server: .*")
	server.expect("no fabricd: .*")

	other := c.program(t, strings.Replace(serve, "node.sock", "host.sock", 1))
	other.expect("listening at 0:2054")
	client.expect(`question \d+ goes to 0:2054`)
	other.kill()
	client.expect(`question \d+ has no answer: .*connection reset by peer.*`)

	c.nodeRuns = c.run(t, c.node)
	server.expect("listening at 1:2054")
	client.expect(`event: node 1\.\d+ added`, `question \d+ goes to 1:2054`)
}
