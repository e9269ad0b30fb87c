package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
)

// TestPageOfAccessIsTrue runs a node with the rules of docs/access.md, then
// the commands of the page, and at last changes the rules as on the page.
func TestPageOfAccessIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../docs/access.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	settings, page, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("the page has no settings")
	}
	n := runWithFile(t, "web-1", settings)

	app, err := fabric.Attach(t.Context(), n.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if _, err := app.Listen(2050, fabric.Allow("label:web")); err != nil {
		t.Fatal(err)
	}
	if _, err := app.Listen(3000); !errors.Is(err, syscall.EACCES) && os.Getuid() != 1000 {
		t.Errorf("binding a port of user 1000: %v, want EACCES", err)
	}
	says := map[string]string{
		"ports": "2050-2059 from web-1 label:web  label:web", "status": "default-access: closed, 4 rules, 1 request refused",
		"why web-1 2050":                   "would be refused\n  access    refuses it: listener allows: label:web\n  listener  0 of at most 1024 requests wait\n",
		"why web-1 2050 --uid 1000 --json": `"uid":1000,"connects":false,"allowed":false,"by":"listener allows: label:web"`,
	}
	for line := range strings.Lines(page) {
		command, ok := strings.CutPrefix(line, "    fabricd ")
		if !ok {
			continue
		}
		command = strings.TrimSpace(command)
		out, stderr, code := run(t, nil, append(strings.Fields(command), "--admin", n.admin)...)
		if want, known := says[command]; code != exitOK || !known || !strings.Contains(out, want) {
			t.Errorf("fabricd %s: exit code %d, %s, printed\n%s\nwant %q", command, code, stderr, out, want)
		}
		delete(says, command)
	}
	if len(says) > 0 {
		t.Errorf("not on the page: %q", says)
	}
	takesOver(t, n)
}

// takesOver changes the rules of a running node with SIGHUP: to right ones, to
// wrong ones, which change nothing, and to others.
func takesOver(t *testing.T, n running) {
	t.Helper()
	for _, change := range []struct{ text, rules, logs string }{
		{"access: [2050 from db-1]\n", "[{2050 from db-1 0} {default-access: open 0}]", "added: 2050 from db-1"},
		{"access: [2050 from]\n", "[{2050 from db-1 0} {default-access: open 0}]", "access rules and gateways stay as they are"},
		{"access: [2050 from db-2]\n", "[{2050 from db-2 0} {default-access: open 0}]", "added: 2050 from db-2"},
	} {
		if err := os.WriteFile(n.file, []byte(change.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		err := until(t.Context(), func() error {
			if log := n.log.String(); !strings.Contains(log, change.logs) {
				return errors.New(log)
			}
			return nil
		})
		out, _, _ := run(t, nil, "status", "--json", "--admin", n.admin)
		var st daemon.Status
		if err = errors.Join(err, json.Unmarshal([]byte(out), &st)); err != nil || fmt.Sprint(st.Access) != change.rules {
			t.Errorf("after %q: %v, %v, want %s", change.text, err, st.Access, change.rules)
		}
	}
}

// A running fabricd has a settings file.
type running struct {
	admin, socket, file string
	log                 *lockedBuffer
}

// A lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// runWithFile runs a host with a settings file, as `fabricd run --config` does,
// until the test ends.
func runWithFile(t *testing.T, name, settings string) running {
	t.Helper()
	_, dir := self(t)
	stateDir, token := filepath.Join(dir, "host"), filepath.Join(dir, "token")
	n := running{filepath.Join(dir, "a"), filepath.Join(dir, "s"), filepath.Join(dir, "node.yaml"), new(lockedBuffer)}
	if err := os.WriteFile(n.file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := run(t, nil, "init", "--state-dir", stateDir, "--token-file", token); code != exitOK {
		t.Fatal(stderr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"run", "--config", n.file, "--role", "host", "--name", name, "--state-dir", stateDir, "--bind", "127.0.0.1",
			"--data-port", "0", "--gossip-port", "0", "--socket", n.socket, "--admin", n.admin}, nil, new(bytes.Buffer), n.log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitOK {
			t.Errorf("exit code %d, logged\n%s", code, n.log)
		}
	})
	err := until(t.Context(), func() error {
		if _, stderr, code := run(t, nil, "health", "--admin", n.admin); code != exitOK {
			return errors.New(stderr)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWhyOfAPortWantsAPort(t *testing.T) {
	for _, port := range []string{"0", "65536", "x"} {
		if _, stderr, code := run(t, nil, "why", "web-1", port); code != exitUsage || !strings.Contains(stderr, "1 to 65535") {
			t.Errorf("port %s: exit code %d, %q", port, code, stderr)
		}
	}
}

func TestPreviewsAreReported(t *testing.T) {
	for want, p := range map[string]portPreview{
		"would wait to be accepted\n  access    allows it: 7 from all\n  listener  1 of at most 4 requests wait\n": {
			Preview: daemon.Preview{Connects: true, Allowed: true, By: "7 from all", Listening: true, Waiting: 1, Backlog: 4}},
		"would be refused\n  access    allows it: default-access: open\n  listener  none\n": {Preview: daemon.Preview{Allowed: true, By: "default-access: open"}},
		"would be refused\n  access    refuses it: 7 from none\n  listener  none\n  problem   broken: link silent for 3.0 s\n": {
			Preview: daemon.Preview{By: "7 from none"}, Findings: []daemon.Finding{{Severity: "broken", Text: "link silent for 3.0 s"}}},
	} {
		p.Node, p.Name, p.Port, p.UID = 3, "web-1", 7, 1000
		var out bytes.Buffer
		if err := printPreview(&out, p); err != nil || out.String() != "a connect by user 1000 of this node to 3:7 (web-1) "+want {
			t.Errorf("%+v: %v, printed\n%s", p, err, out.String())
		}
	}
}
