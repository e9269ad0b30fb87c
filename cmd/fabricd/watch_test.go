package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// scripted answers on an admin socket with one answer after the other of a path, and
// ends the command that asks when there is none left.
func scripted(t *testing.T, answers map[string][]string) (environ []string, ctx context.Context) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := map[string]*atomic.Int32{}
	for name := range answers {
		asked[name] = &atomic.Int32{}
	}
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/v1/")
		if asked[name] == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		n := int(asked[name].Add(1))
		if n > len(answers[name]) {
			cancel()
			n = len(answers[name])
		}
		_, _ = io.WriteString(w, answers[name][n-1]) // the test notices a missing answer
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until Close
	}()
	t.Cleanup(func() {
		cancel()
		s.Close()
		<-done
	})
	return []string{"FABRIC_ADMIN=" + path}, ctx
}

func runUntil(ctx context.Context, environ []string, args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = execute(ctx, args, environ, &out, &errs)
	return out.String(), errs.String(), code
}

func TestWatchReportsEachChangeOnce(t *testing.T) {
	link := `{"node":%d,"generation":1,"provider":"quic","since":"2026-01-01T00:00:00Z","conns":%d,"sent_bytes":%d,"silent_ms":%d}`
	rows := func(list ...string) string { return `{"links":[` + strings.Join(list, ",") + `]}` }
	one, two := fmt.Sprintf(link, 1, 0, 5, 1), fmt.Sprintf(link, 2, 0, 5, 1)
	counted, grown := fmt.Sprintf(link, 1, 0, 900, 7), fmt.Sprintf(link, 1, 3, 900, 7)
	answers := map[string][]string{"links": {rows(one), rows(counted, two), rows(grown, two), rows(two), rows(two)}}
	environ, ctx := scripted(t, answers)
	out, stderr, code := runUntil(ctx, environ, "links", "--watch", "--interval", "100ms", "--json")
	var got []string
	for line := range strings.Lines(out) {
		var c struct {
			Time   time.Time
			Change string
			Row    struct{ Node, Conns int }
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.Time.IsZero() {
			t.Fatalf("%q: %v", line, err)
		}
		got = append(got, fmt.Sprint(c.Change, " ", c.Row.Node, " ", c.Row.Conns))
	}
	if want := "added 1 0; added 2 0; changed 1 3; removed 1 3"; strings.Join(got, "; ") != want || code != exitOK {
		t.Errorf("exit code %d, %s: got %s, want %s", code, stderr, strings.Join(got, "; "), want)
	}
	environ, ctx = scripted(t, answers)
	if out, _, code = runUntil(ctx, environ, "links", "-w", "-i", "100ms"); code != exitOK || strings.Contains(out, "\x1b") || out[0] == '\n' || strings.Count(out, "\n\n") < 4 || !strings.Contains(out, "PROVIDER") {
		t.Errorf("exit code %d, %q", code, out)
	}
	if _, stderr, code = run(t, environ, "links", "--watch", "--interval", "1ms"); code != exitUsage || !strings.Contains(stderr, "100ms at least") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func TestTopBeginsWithWhatMovesMost(t *testing.T) {
	conn := func(id, sent, kernel, unread int) string {
		return fmt.Sprintf(`{"id":%d,"local":"1:2050","remote":"2:%d","life":"2.7","state":"connected","path":"path","why":"","sent":%d,"received":0,"unread":%d,`+
			`"socket":{"sent_bytes":%d,"received_bytes":0}}`, id, id, sent, unread, kernel)
	}
	conns := func(list ...string) string { return `{"conns":[` + strings.Join(list, ",") + `]}` }
	status := `{"name":"web-1","state":"joined","counts":{"nodes":3}}`
	link := `{"links":[{"node":2,"name":"db\u001b[2J","provider":"quic","conns":2,"sent_bytes":%d,"silent_ms":3}]}`
	answers := map[string][]string{"status": {status, status},
		"conns": {conns(conn(1, 0, 100, 0), conn(2, 0, 100, 9), conn(3, 50, 0, 0)), conns(conn(1, 0, 100, 0), conn(2, 0, 1000100, 9), conn(3, 40, 0, 8))},
		"links": {fmt.Sprintf(link, 5), fmt.Sprintf(link, 500005)}}
	environ, ctx := scripted(t, answers)
	out, stderr, code := runUntil(ctx, environ, "top", "--once", "--interval", "100ms", "--json")
	var v topView
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != exitOK || len(v.Conns) != 3 || len(v.Links) != 1 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
	}
	if v.Conns[0].ID != 2 || v.Conns[0].Sent < 1e6 || v.Conns[1].ID != 3 || v.Conns[1].Sent != 0 || v.Conns[2].ID != 1 || v.Links[0].Sent < 5e5 {
		t.Errorf("%s", out)
	}
	environ, ctx = scripted(t, answers)
	out, _, code = runUntil(ctx, environ, "top", "--once", "--interval", "100ms")
	for _, want := range []string{"web-1  joined, 3 nodes; 3 connections, 1 link", "SENT/S", "MiB", `db\x1b[2J`, "2.7"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %q in\n%s", code, want, out)
		}
	}
}

func TestValuesAndNodesComplete(t *testing.T) {
	nodes := `{"nodes":[{"id":0,"name":"host","state":"alive"},{"id":3,"name":"db","state":"removed"},{"id":4,"name":"web","state":"suspect"}]}`
	services := `{"services":[{"name":"db","life":"1.1"},{"name":"db","life":"2.1"},{"name":"web","life":"2.1"}]}`
	environ, _ := scripted(t, map[string][]string{"nodes": {nodes}, "services": {services},
		"tokens": {`{"tokens":[{"id":"2f9c01d5a7b3e486"}]}`}})
	for args, want := range map[string]string{
		"forward 15432 ": "db\nweb\n:4\n", "forward ": ":4\n",
		"ping ": "host\tnode 0\nweb\tnode 4\n:4\n", "run --detection ": "fast\nnormal\ncalm\n:4\n", "run --paths o": "lazy\noff\n:4\n",
		"token revoke ": "2f9c01d5a7b3e486\n:4\n", "chaos run --on s": "sim\nlocal\nnetns\ncompose\n:4\n", "faults add --plane m": "gossip\ncontrol\nmessages\nrma\nlink\nall\n:4\n",
		"log-level ": "trace\ndebug\ninfo\nwarn\nerror\n:4\n", "run --max-nodes ": ":4\n", "run --state-dir ": ":16\n", "run --token-file ": ":0\n",
	} {
		words := append([]string{"__complete"}, strings.Split(args, " ")...)
		if out, _, code := run(t, environ, words...); code != exitOK || out != want {
			t.Errorf("%q: exit code %d, %q, want %q", args, code, out, want)
		}
	}
}
