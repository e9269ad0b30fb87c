package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/daemon"
)

// pageCommands matches the commands of a page: in a sentence, a table, or on a line of its own.
var pageCommands = regexp.MustCompile("(?m)(?:`fabricd\\s([^`]+)`|^    fabricd (.+)$)")

// runsOnPages are the commands that the test runs: those that read, and those that a cluster
// outlives. What follows is a flag, or an argument with a digit or a sign in it: no command below.
var runsOnPages = regexp.MustCompile(`^(nodes|nodes enrolled|events|health|doctor|status|services|ports|conns|links|gateways|why|top|ping|version|debug|backup|restore|` +
	`log-level debug|token list|token create|keys rotate|ca rotate|faults add|faults list|faults steps|faults clear|chaos validate|chaos run|chaos compare)( [^a-z].*| [a-z0-9]+[-./0-9].*)?$`)

// inPart are commands that a page names without all of their arguments, or that run until Ctrl-C.
var inPart = regexp.MustCompile(`[A-Z]|--watch|^(restore|faults add|chaos run)$|--ttl --uses`)

// TestPagesOnACluster makes the cluster of docs/install.md with its commands, and runs those of all
// pages on it. The others are parsed (TestCommandsOnPagesExist).
func TestPagesOnACluster(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	scenarios, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	_, dir := self(t)
	t.Chdir(dir)
	if err := os.Symlink(scenarios, "deploy"); err != nil {
		t.Fatal(err)
	}
	host, node := installAsPage(t, dir, texts["install.md"])
	if err := os.Remove("join.token"); err != nil { // both have joined
		t.Fatal(err)
	}
	ran := 0
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		for _, m := range pageCommands.FindAllStringSubmatch(texts[file], -1) {
			line := strings.Join(strings.Fields(m[1]+m[2]), " ")
			if file == "reference.md" || !runsOnPages.MatchString(line) || inPart.MatchString(line) {
				continue
			}
			args := strings.Fields(strings.NewReplacer("/backup/", dir+"/", "/var/lib/", dir+"/var-").Replace(line))
			switch { // what a person ends, or answers by a default that is no place for a test
			case args[0] == "events":
				args = append(args, "--since", "5m", "--once")
			case args[0] == "top":
				args = append(args, "--once")
			case args[0] == "backup" || args[0] == "debug":
				args = append([]string{args[0], "--out", fmt.Sprint(dir, "/out-", ran)}, args[1:]...) // the page's, if it has one
			}
			if args[0] == "backup" {
				args = append(args, "--state-dir", "host")
			}
			admin := host
			if file == "test-failures.md" { // it breaks web-1
				admin = node
			}
			if out, stderr, code := run(t, []string{"FABRIC_ADMIN=" + admin}, args...); code != exitOK && (args[0] != "doctor" || code != exitFail) { // what a machine lacks is no fault of the page
				t.Errorf("%s: `fabricd %s`: exit code %d\n%s%s", file, line, code, out, stderr)
			}
			ran++
		}
	}
	if ran < 40 {
		t.Errorf("the pages have %d commands that a cluster runs", ran)
	}
}

// installAsPage runs the commands of install.md for two machines, both on this one, until both nodes
// have joined, and returns the admin sockets of the host and of web-1.
func installAsPage(t *testing.T, dir, page string) (host, node string) {
	t.Helper()
	_, page, _ = strings.Cut(page, "## Two machines")
	var started []daemon.Status
	for _, m := range pageCommands.FindAllStringSubmatch(page, -1) {
		args := strings.Fields(m[2])
		if len(args) == 0 || args[0] != "init" && args[0] != "run" {
			continue
		}
		if args[0] == "run" {
			if i := slices.Index(args, "HOST:7700"); i > 0 {
				args[i] = started[0].Data[0]
			}
			admin := filepath.Join(dir, fmt.Sprint("admin", len(started)))
			args = append(args, "--socket", admin+".app", "--admin", admin, "--bind", "127.0.0.1", "--data-port", "0", "--gossip-port", "0", "--enable-faults")
			started = append(started, startNode(t, admin, args...))
			host, node = node, admin
			continue
		}
		if _, stderr, code := run(t, nil, args...); code != exitOK {
			t.Fatalf("fabricd %s: %s", m[2], stderr)
		}
	}
	if len(started) != 2 {
		t.Fatalf("install.md runs %d nodes, want a host and another one", len(started))
	}
	return host, node
}

// startNode starts a fabricd that ends with the test, and returns its status when it has joined.
func startNode(t *testing.T, admin string, args ...string) (status daemon.Status) {
	t.Helper()
	cmd, _ := self(t, args...)
	log := &lockedBuffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := daemon.NewClient(admin)
	t.Cleanup(func() {
		client.Close()
		_ = cmd.Process.Kill() // it fails for one that has ended
		_ = cmd.Wait()
	})
	err := until(t.Context(), func() (err error) {
		if status, err = client.Status(t.Context()); err == nil && status.State != "joined" {
			err = fmt.Errorf("it is %s", status.State)
		}
		return err
	})
	if err != nil {
		t.Fatalf("fabricd %q: %v\n%s", args, err, log.String())
	}
	return status
}
