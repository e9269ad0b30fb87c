package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/engine"
)

func TestPathsAreReported(t *testing.T) {
	links := []engine.LinkInfo{
		{Node: 1, Generation: 2, Remote: "10.0.0.1:7700", Considered: []engine.Considered{
			{Provider: "quic", Reason: "UDP is blocked"}, {Provider: "tcp", Chosen: true, Reason: "the ones before did not work"}}},
		{Node: 1, Generation: 3},
	}
	paths := []connPaths{
		{Local: "0:5", Remote: "0:6", Messages: part{Path: "socket", Why: "the other application does not join"}, RMA: part{Path: "direct"}, Link: linkOf(links, "0.1")},
		{Local: "0:7", Remote: "0:8", Messages: part{Path: "channel", Why: "small pages"}, RMA: part{Path: "direct"}, Link: linkOf(links, "0.1")},
		{Provider: "tcp", Local: "0:5", Remote: "1:6", Messages: part{Path: "socket", Why: "the peer is on another node"}, RMA: part{Path: "node", Why: "no window has been asked for"}, Link: linkOf(links, "1.2")},
		{Local: "0:9", Remote: "0:10", Messages: part{Path: "call", Why: "a gateway"}, RMA: part{Path: "node"}, Link: linkOf(links, "0.1")},
	}
	var out bytes.Buffer
	if err := printPaths(&out, paths, false); err != nil {
		t.Fatal(err)
	}
	want := `0:5 to 0:6
  messages  socket: the other application does not join
  rma       direct
  link      none: the peer is on this node
0:7 to 0:8
  messages  shared-memory path: small pages
  rma       direct
  link      none: the peer is on this node
0:5 to 1:6
  messages  socket: the peer is on another node
  rma       node: no window has been asked for
  link      tcp to 10.0.0.1:7700
            quic not used: UDP is blocked
            tcp used: the ones before did not work
0:9 to 0:10
  messages  in-process: a gateway
  rma       node
  link      none: the peer is on this node
`
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := printPaths(&out, nil, false); err != nil || out.String() != "no connections\n" {
		t.Errorf("without connections: %q, %v", out.String(), err)
	}
}

// The keys of the tables are those that the node's own types give.
func TestAConnectionHasTheLinkOfItsPeer(t *testing.T) {
	environ, _ := fakeHost(t, map[string]any{
		"GET conns": map[string]any{"conns": []engine.ConnInfo{{Local: "0:5", Remote: "1:6", Incarnation: "1.2", Provider: "quic", Path: "socket"}}},
		"GET links": map[string]any{"links": []engine.LinkInfo{{Node: 1, Generation: 2, Remote: "10.0.0.1:7700", Provider: "quic"}}},
		"GET status": daemon.Status{Findings: []daemon.Finding{
			{Severity: "broken", Text: "node 1 (b) is suspect", Node: 1}, {Severity: "broken", Text: "node 2 (c) was lost", Node: 2}, {Severity: "note", Text: "a ban", Node: addr.NoNode}}},
	})
	out, errs, code := run(t, environ, "why")
	if code != exitOK || !strings.Contains(out, "link      quic to 10.0.0.1:7700") {
		t.Errorf("why ended with %d and said %q, %q, want the link over quic to 10.0.0.1:7700", code, out, errs)
	}
	if !strings.HasSuffix(out, "\n  problem   broken: node 1 (b) is suspect\n") || strings.Contains(out, "lost") || strings.Contains(out, "ban") {
		t.Errorf("why does not end with the problem of node 1 alone:\n%s", out)
	}
}
