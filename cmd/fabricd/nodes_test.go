package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
)

// fakeHost answers on an admin socket, by method and path, and records the
// requests. It returns the environment of commands that ask it.
func fakeHost(t *testing.T, answers map[string]any) (environ []string, asked func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var last string
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		last = r.Method + " " + r.URL.Path + " " + string(body)
		answer, ok := answers[r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1/")]
		if !ok {
			w.WriteHeader(http.StatusConflict)
			answer = map[string]string{"error": "this node is not the host"}
		}
		_ = json.NewEncoder(w).Encode(answer) // the test notices a missing answer
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return []string{"FABRIC_ADMIN=" + path}, func() string { return last }
}

func TestOperatorsCommands(t *testing.T) {
	node := daemon.Enrolled{UUID: "u-1", Name: "web-1\x1b[2J", State: "banned", Reason: "stolen", Labels: []string{"db"}, Token: "2f9c01d5a7b3e486"}
	id, left, expires := node, 97, time.Now().Add(time.Hour+time.Minute)
	self := addr.NodeID(3)
	id.ID, id.Generation, id.NewKey = &self, 4, true
	environ, asked := fakeHost(t, map[string]any{
		"POST nodes/ban":     daemon.NodeAction{Node: node, Changed: true, TookMS: 12.3},
		"POST nodes/allow":   daemon.NodeAction{Node: node},
		"POST nodes/remove":  daemon.NodeAction{Node: node, Changed: true, TookMS: 1500},
		"GET nodes/enrolled": daemon.Enrolment{Nodes: []daemon.Enrolled{id}},
		"GET tokens": daemon.Tokens{Tokens: []daemon.TokenInfo{
			{ID: "2f9c01d5a7b3e486", Expires: &expires, Uses: 3, Left: &left, Labels: []string{"db"}}, {ID: "00", Uses: 4, Label: "init"}}},
		"POST tokens":        daemon.Token{Token: "fab1-secret", ID: "00"},
		"POST tokens/revoke": daemon.RevokeRequest{ID: "00"},
		"GET ca":             daemon.Authorities{Trust: "host", Roots: []daemon.Root{{Subject: "CN=fabricd"}}},
		"POST ca/rotate":     daemon.Authorities{Trust: "host", Roots: []daemon.Root{{Subject: "CN=fabricd 2"}}},
	})
	for _, tt := range []struct {
		args, asks string
		want       []string
	}{
		{"nodes ban web-1 --reason stolen", `POST /v1/nodes/ban {"node":"web-1","reason":"stolen"}`, []string{`web-1\x1b[2J is banned, everywhere after 12.3ms`}},
		{"nodes allow 3 --new-key", `POST /v1/nodes/allow {"node":"3","new_key":true}`, []string{"was allowed already"}},
		{"nodes remove web-1", `POST /v1/nodes/remove {"node":"web-1"}`, []string{"is removed, everywhere after 1.5s"}},
		{"nodes enrolled", "GET /v1/nodes/enrolled ", []string{"NAME", `web-1\x1b[2J`, "banned", "3.4", "db", "2f9c01d5a7b3e486", "stolen; may come with a new key"}},
		{"token list", "GET /v1/tokens ", []string{"init", "in 1h", "97", "never", "unlimited"}},
		{"token create", `POST /v1/tokens {"lifetime":"24h","uses":100}`, []string{"fab1-secret\n"}},
		{"token create --ttl never --uses unlimited --label db", `POST /v1/tokens {"lifetime":"never","unlimited":true,"labels":["db"]}`, []string{"fab1-secret"}},
		{"token revoke 00", `POST /v1/tokens/revoke {"id":"00"}`, []string{"token 00 is revoked"}},
		{"ca show", "GET /v1/ca ", []string{"CN=fabricd"}},
		{"ca rotate", "POST /v1/ca/rotate {}", []string{"CN=fabricd 2"}},
	} {
		out, stderr, code := run(t, environ, strings.Fields(tt.args)...)
		if code != exitOK || asked() != tt.asks {
			t.Errorf("%s: exit code %d, %q; asked %q, want %q", tt.args, code, stderr, asked(), tt.asks)
		}
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s prints no %q:\n%s", tt.args, want, out)
			}
		}
		if out, _, code := run(t, environ, append(strings.Fields(tt.args), "--json")...); code != exitOK || !json.Valid([]byte(out)) {
			t.Errorf("%s --json: exit code %d, %q", tt.args, code, out)
		}
	}
	if _, stderr, code := run(t, environ, "keys", "rotate"); code != exitFail || stderr != "fabricd: this node is not the host\n" {
		t.Errorf("a refusal: exit code %d, %q", code, stderr)
	}
}

// The tab key behind nodes ban names the identities that the host knows, and at
// other nodes the nodes that they see.
func TestNamesOfNodesComplete(t *testing.T) {
	host, _ := fakeHost(t, map[string]any{"GET nodes/enrolled": daemon.Enrolment{Nodes: []daemon.Enrolled{{Name: "web-1"}, {Name: "db"}}}})
	node, _ := fakeHost(t, map[string]any{"GET nodes": daemon.Nodes{Nodes: []daemon.NodeInfo{{Name: "seen"}}}})
	for want, environ := range map[string][]string{"web-1\ndb\n:4\n": host, "seen\n:4\n": node, ":4\n": {"FABRIC_ADMIN=/nonexistent"}} {
		if out, _, code := run(t, environ, "__complete", "nodes", "ban", ""); code != exitOK || out != want {
			t.Errorf("exit code %d, %q, want %q", code, out, want)
		}
	}
}
