package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/engine"
)

func TestDurationsAreRounded(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                          "0s",
		7 * time.Nanosecond:        "7ns",
		1234 * time.Nanosecond:     "1.23µs",
		930842 * time.Nanosecond:   "931µs",
		12345678 * time.Nanosecond: "12.3ms",
		1500 * time.Millisecond:    "1.5s",
		59900 * time.Millisecond:   "59s",
		61 * time.Second:           "1m1s",
		3*time.Hour + 59*time.Minute + 59*time.Second: "3h59m",
		76 * time.Hour: "3d4h",
		-time.Second:   "-1s",
	} {
		if got := duration(d); got != want {
			t.Errorf("%v is shown as %s, want %s", d, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 5 << 30: "5 GiB", 1 << 63: "8388608 TiB",
	} {
		if got := size(n); got != want {
			t.Errorf("%d is shown as %s, want %s", n, got, want)
		}
	}
}

func TestAges(t *testing.T) {
	now := time.Unix(1000, 0)
	for want, at := range map[string]time.Time{"-": {}, "0s ago": now.Add(time.Hour), "1s ago": now.Add(-1900 * time.Millisecond), "16m40s ago": time.Unix(0, 0)} {
		if got := ago(at, now); got != want {
			t.Errorf("%v is shown as %q, want %q", at, got, want)
		}
	}
}

// The table of links has a column for the provider and one for the reason; long
// texts are in the JSON only.
func TestLinksShowTheirProvider(t *testing.T) {
	text, err := json.Marshal(map[string][]engine.LinkInfo{"links": {{Node: 1, Provider: "tcp", Why: "the ones before did not work",
		Considered: []engine.Considered{{Provider: "quic", Reason: "UDP is blocked"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := showRows(&out, "links", text); err != nil {
		t.Fatal(err)
	}
	head, row, _ := strings.Cut(out.String(), "\n")
	for column, want := range map[string]string{"PROVIDER": "tcp", "WHY": "the ones before did not work"} {
		at := strings.Index(head, column)
		if at < 0 || !strings.HasPrefix(row[at:], want) {
			t.Errorf("column %s is not %q:\n%s", column, want, out.String())
		}
	}
	for _, word := range []string{"CONSIDERED", "UDP"} {
		if strings.Contains(out.String(), word) {
			t.Errorf("the table has %s:\n%s", word, out.String())
		}
	}
}

func TestStatusSaysEachThingOnce(t *testing.T) {
	st := daemon.Status{Name: "rack-1", Role: daemon.RoleNode, State: "joining", Detail: "no ID yet: waiting for the host",
		ID: 0xFFFF, Host: "lost", HostDetail: "lost: connection refused", Term: 3, UptimeSec: 125,
		Rings: daemon.RingStatus{Slots: 256, Data: 256 << 10, Release: 25, HugePages: "try", Small: "too small", ShmPath: 561152}, Trust: "host", Panics: 3, Counts: daemon.Counts{Nodes: 2, Links: 1},
		Warnings: []string{"link to 2: cut"}, Findings: []daemon.Finding{{Severity: "broken", Kind: "node", Text: "node 2 (b) was lost 3.0 s ago"}, {Severity: "note", Kind: "fault", Text: "broken on purpose: link to 2: cut"}}}
	text, err := json.Marshal(struct {
		daemon.Status
		New  int  `json:"new_thing_ms"`
		Flag bool `json:"flag"`
	}{st, 1500, true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := showStatus(&out, text); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		key, _, _ := strings.Cut(line, "  ")
		if seen[key] {
			t.Errorf("%s is said twice:\n%s", key, out.String())
		}
		seen[key] = true
	}
	for _, want := range []string{"no ID yet  rack-1 (node)\n", "joining: no ID yet: waiting for the host\n", "lost: connection refused, term 3\n",
		"2m5s, version", "2, 1 link from here\n", "0 connections, 0 ports, 0 windows\n", "3 caught: each is a bug", "256 slots and 256 KiB each way, released by 25 %, 548 KiB in all; huge pages try, small ones at the start: too small\n",
		"warning       link to 2: cut\n", "new thing     1.5s\n", "flag          yes\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("status does not say %q:\n%s", want, out.String())
		}
	}
	if last := "\nproblem       broken: node 2 (b) was lost 3.0 s ago\n"; !strings.HasSuffix(out.String(), last) || strings.Contains(out.String(), "on purpose") {
		t.Errorf("status does not end with %q alone:\n%s", last, out.String())
	}
}

func TestADetailDoesNotRepeatItsWord(t *testing.T) {
	for detail, want := range map[string]string{
		"": "lost", "lost": "lost", "lost: banned": "lost: banned", "silent": "lost: silent",
		"lost; the latest dial: no host": "lost; the latest dial: no host",
	} {
		if got := withDetail("lost", detail); got != want {
			t.Errorf("%q: %q, want %q", detail, got, want)
		}
	}
}

func TestATokenOfAnEarlierAuthorityIsShownAsVoid(t *testing.T) {
	var out bytes.Buffer
	if err := showTokens(&out, daemon.Tokens{Tokens: []daemon.TokenInfo{{ID: "aa", Void: true}}}); err != nil || !strings.Contains(out.String(), "void: the authority was rotated") {
		t.Errorf("%v:\n%s", err, out.String())
	}
}

// pagesOf prints every page for people with one text in the place of all that a peer
// can choose: names, addresses and reasons.
func pagesOf(t *testing.T, text string) map[string]string {
	t.Helper()
	node := daemon.NodeInfo{ID: 1, Generation: 1, Name: text, State: text, Addresses: []string{text}}
	asJSON := func(v any) json.RawMessage {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	printed := map[string]string{}
	for name, print := range map[string]func(*bytes.Buffer) error{
		"nodes": func(w *bytes.Buffer) error { return showNodes(w, daemon.Nodes{Nodes: []daemon.NodeInfo{node}}) },
		"links": func(w *bytes.Buffer) error {
			return showRows(w, "links", asJSON(map[string][]engine.LinkInfo{"links": {{Remote: text, Why: text}}}))
		},
		"status": func(w *bytes.Buffer) error {
			return showStatus(w, asJSON(map[string]any{"name": text, "host_detail": text, "warnings": []string{text}, "findings": []daemon.Finding{{Severity: text, Text: text}}, text: text}))
		},
		"events": func(w *bytes.Buffer) error {
			return printLine(w, "%s", eventLine(daemon.NodeEvent{Event: text, Node: &node, Reason: text, Detail: text}))
		},
		"why": func(w *bytes.Buffer) error {
			return printPath(w, connPaths{Local: text, Remote: text, Provider: text, Messages: part{text, text}, RMA: part{text, text},
				Link: &engine.LinkInfo{Remote: text, Considered: []engine.Considered{{Provider: text, Reason: text}}}, Findings: []daemon.Finding{{Severity: text, Text: text}}})
		},
	} {
		var out bytes.Buffer
		if err := print(&out); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		printed[name] = out.String()
	}
	return printed
}

// TestWhatPeersSaidStaysInItsPlace gives every page text that ends lines, moves the
// cursor and sets window titles: each has the lines that it has with a plain name,
// and nothing that a terminal obeys.
func TestWhatPeersSaidStaysInItsPlace(t *testing.T) {
	plain := pagesOf(t, "web-1")
	for name, got := range pagesOf(t, "a\r\n0  1  forged  alive\x1b]0;title\a\u009b2J\u202e\t\xff") {
		if lines, want := strings.Count(got, "\n"), strings.Count(plain[name], "\n"); lines != want {
			t.Errorf("%s: %d lines, want %d:\n%q", name, lines, want, got)
		}
		for _, r := range strings.ReplaceAll(got, "\n", "") {
			if !unicode.IsPrint(r) {
				t.Errorf("%s prints %q: %q", name, r, got)
			}
		}
		if !strings.Contains(got, `\x1b]0;title`) {
			t.Errorf("%s does not show the name: %q", name, got)
		}
	}
}

func TestErrorsOfPeersStayInTheirLine(t *testing.T) {
	var out bytes.Buffer
	if err := printLine(&out, "fabricd: %s", "refused: \x1b[2Jnobody"); err != nil || out.String() != "fabricd: refused: \\x1b[2Jnobody\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestMistypedFlagsAreFound(t *testing.T) {
	for b, want := range map[string]bool{"timeout": false, "timeuot": true, "timout": true, "timeoutt": true, "timeout5": true, "tim": false, "tlmeout": true, "timoeut": true, "xxmeout": false} {
		if got := mistyped("timeout", b); got != want {
			t.Errorf("mistyped(timeout, %s) is %v, want %v", b, got, want)
		}
	}
}

func TestPingsAreSummedUp(t *testing.T) {
	got := pingSummary(4, []time.Duration{time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond})
	if want := "3 of 4 answered; fastest 1ms, mean 2ms, slowest 3ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStatusCountsStrayLists(t *testing.T) {
	for c, want := range map[daemon.Counts]string{
		{Refused: 1}: "1 connection", {Refused: 2, StrayLists: 3}: "2 connections, 3 lists of services of another incarnation than the sender's",
	} {
		if got := refusals(c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}

// The table of connections counts what their paths have carried, and all rows have the same columns.
func TestConnectionsCountTheirPaths(t *testing.T) {
	conns := []engine.ConnInfo{
		{ID: 1, Sent: 1 << 10, Received: 2 << 10},
		{ID: 2, Sent: 1 << 10, Received: 2 << 10, Socket: &engine.PathInfo{SentBytes: 5 << 20, ReceivedBytes: 7 << 20}, RMASocket: &engine.PathInfo{}},
	}
	text, err := json.Marshal(map[string][]engine.ConnInfo{"conns": conns})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := showConns(&out, text); err != nil {
		t.Fatal(err)
	}
	head, rows, _ := strings.Cut(out.String(), "\n")
	lines := strings.Split(strings.TrimSpace(rows), "\n")
	if len(lines) != 2 || strings.Contains(out.String(), "SOCKET") {
		t.Fatalf("want two rows and no column for a socket:\n%s", out.String())
	}
	for column, want := range map[string][2]string{"SENT": {"1 KiB", "5 MiB"}, "RECEIVED": {"2 KiB", "7 MiB"}} {
		for i, line := range lines {
			if at := strings.Index(head, " "+column) + 1; !strings.HasPrefix(line[at:], want[i]) {
				t.Errorf("row %d: column %s is not %q:\n%s", i, column, want[i], out.String())
			}
		}
	}
}
